//! Checks of longshore's own record, of a running agent, and of the users of the driver.

use std::time::Duration;

use super::{Checked, Input, NOT_LOADED, found_or, passed, skipped};
use crate::doctor::{Look, refusal_by};
use crate::endpoint::client;
use crate::journal::phase::Phase;
use crate::journal::{self, Refused, State};
use crate::steps::LoadModule;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::{Code, Finding};
use longshore_host::facts::holders;
use longshore_host::facts::modules::is_of_driver;
use longshore_host::facts::process_files::Looker;

/// Time limit for the agent's answer: it gives its own task five seconds.
const ASK: Duration = Duration::from_secs(8);

/// Record of the agents on this host.
pub(super) struct Record {
    /// Process id of the agent that runs, in its own PID namespace; or the reason why that is unknown.
    holder: Result<Option<u32>, String>,
    /// State since the host was booted.
    state: Result<Option<State>, Failure>,
}

impl Record {
    /// Reads it; takes no lock, except momentarily to see that it is free.
    pub(super) fn read(look: &Look<'_>) -> Self {
        let paths = look.config.paths.record_below(look.root);
        let boot = look.facts.kernel.boot_id.as_deref();
        let of_boot = |state: Option<State>| state.filter(|state| !state.is_of_another_boot(boot));
        Self {
            holder: journal::holder(&paths.state),
            state: journal::read_state(&paths).map(of_boot),
        }
    }

    fn state(&self) -> Option<&State> {
        self.state.as_ref().ok()?.as_ref()
    }
}

pub(super) fn agent(input: &Input<'_>) -> Checked {
    let Record { holder, state } = &input.record;
    let state = match state {
        Ok(state) => state.as_ref(),
        Err(failure) => return Checked::Found(vec![unread(failure)]),
    };
    let found = match holder {
        // A running agent could otherwise be mistaken for a dead one.
        Err(why) => return skipped(why),
        Ok(Some(pid)) => Some(alive(input.look, *pid, state)),
        Ok(None) => state.and_then(ended),
    };
    found_or(found, || match state {
        Some(state) => format!("the last agent's phase is {}", state.phase),
        None => "no agent has run since the host was booted".to_owned(),
    })
}

pub(super) fn refused_drivers(input: &Input<'_>) -> Checked {
    let found = input.record.state().and_then(|state| state.refused.as_ref()).map(refused);
    found_or(found, || "none since the host was booted".to_owned())
}

/// Returns a finding for a record that cannot be read.
fn unread(failure: &Failure) -> Finding {
    let code = match failure.kind() {
        FailureKind::Verification => Code::StateUnreadable,
        _ => Code::StateOutOfReach,
    };
    refusal_by(failure, code)
}

/// Returns a note about the agent that runs.
fn alive(look: &Look<'_>, pid: u32, state: Option<&State>) -> Finding {
    let phase = state.map_or(String::new(), |s| format!(", in phase {}", s.phase));
    let paths = look.config.paths.record_below(look.root);
    let answers = match client::ask(&paths.state, "/healthz", ASK) {
        Ok(answer) if answer.status == 200 => "it answers".to_owned(),
        Ok(answer) => answer.body.trim_end().to_owned(),
        Err(why) => format!("it does not answer: {why}"),
    };
    let detail = format!("process {pid} (in its own PID namespace) is running{phase}; {answers}");
    Finding::note(Code::AgentAlive, detail)
}

/// Returns a finding for an agent that ended without uninstalling its driver.
fn ended(state: &State) -> Option<Finding> {
    let left = state.entries.iter().filter(|entry| entry.is_live()).count();
    if left == 0 && state.phase != Phase::Failed {
        return None;
    }
    let how = match state.phase {
        Phase::Failed => "failed",
        Phase::InUse => "ended while the driver was in use",
        _ => "died",
    };
    let detail = format!(
        "the last agent {how} (phase {}), and {left} of its changes are on the host",
        state.phase
    );
    Some(Finding::warning(Code::AgentFailed, detail))
}

/// Returns a finding for a driver that was refused as a replacement of the loaded one.
fn refused(refused: &Refused) -> Finding {
    let modules: Vec<String> = refused
        .loads
        .iter()
        .filter_map(LoadModule::from_step)
        .map(|LoadModule { name, version, .. }| match version {
            Some(version) => format!("{name} {version}"),
            None => name.clone(),
        })
        .collect();
    let detail = format!("{}: {}", modules.join(", "), refused.why);
    Finding::warning(Code::DriverRefusedBefore, detail)
}

pub(super) fn users(input: &Input<'_>) -> Checked {
    let look = input.look;
    let facts = look.facts;
    let Some(nvidia) = facts.loaded.get("nvidia") else { return passed(NOT_LOADED) };
    let own: Vec<&String> = facts.loaded.keys().filter(|name| is_of_driver(name)).collect();
    let modules = own.iter().filter_map(|name| facts.loaded.get(*name));
    let mut who: Vec<String> = modules
        .flat_map(|module| &module.holders)
        .filter(|holder| !own.contains(holder))
        .map(|holder| format!("module {holder}"))
        .collect();
    let (limit, looker) = (look.config.deadlines.look, Looker::default());
    match holders::driver_users(look.root.path(), limit, &looker) {
        Ok(seen) => {
            who.extend(seen.users.iter().map(ToString::to_string));
            let others = |why: &String| format!("its other users are unknown: {why}");
            who.extend(seen.unseen.as_ref().map(others));
        }
        Err(e) if who.is_empty() => {
            let count = nvidia.refcount.unwrap_or_default();
            return skipped(format!(
                "processes could not be read ({e}); nvidia is used by {count}"
            ));
        }
        Err(e) => who.push(format!("processes could not be read: {e}")),
    }
    let found = (!who.is_empty()).then(|| Finding::note(Code::DriverInUse, who.join("; ")));
    found_or(found, || "none".to_owned())
}
