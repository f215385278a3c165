//! Checks of longshore's own state: record, running agent, users of the driver, store.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use super::Look;
use crate::config::StorePlace;
use crate::endpoint::client;
use crate::journal::phase::Phase;
use crate::journal::{self, Refused, State};
use crate::steps::LoadModule;
use longshore_build::build;
use longshore_core::failure::FailureKind;
use longshore_core::finding::{Code, Finding};
use longshore_core::store::Store;
use longshore_host::facts::holders;
use longshore_host::facts::modules::is_of_driver;
use longshore_host::facts::process_files::Looker;
use longshore_modules::artifact::ModuleSet;

/// Time limit for the agent's answer: it gives its own task five seconds.
const ASK: Duration = Duration::from_secs(8);

/// Findings and notes of these checks.
#[derive(Default)]
pub(super) struct OfAgent {
    pub(super) findings: Vec<Finding>,
    pub(super) notes: Notes,
}

/// Notes for passed checks; an error is the reason why a check was skipped.
pub(super) struct Notes {
    pub(super) store: String,
    pub(super) record: Result<String, String>,
    pub(super) holders: Result<String, String>,
}

impl Default for Notes {
    fn default() -> Self {
        let nothing = || Ok(String::new());
        Self { store: String::new(), record: nothing(), holders: nothing() }
    }
}

/// Runs these checks; takes no lock, except momentarily to see that it is free.
pub(super) fn look(look: &Look<'_>) -> OfAgent {
    let mut of = OfAgent::default();
    of.record(look);
    of.holders(look);
    of.store(look);
    of
}

impl OfAgent {
    fn record(&mut self, look: &Look<'_>) {
        let paths = look.config.paths.record_below(look.root);
        let holder = journal::holder(&paths.state);
        let state = match journal::read_state(&paths) {
            Ok(state) => state,
            Err(failure) => {
                let code = match failure.kind() {
                    FailureKind::Verification => Code::StateUnreadable,
                    _ => Code::StateOutOfReach,
                };
                let mut found = Finding::refusal(code, failure.one_line());
                if let Some(remedy) = failure.remedy_text() {
                    found = found.remedy(remedy);
                }
                return self.findings.push(found);
            }
        };
        let boot = look.facts.kernel.boot_id.as_deref();
        let state = state.filter(|state| !state.is_of_another_boot(boot));
        self.findings.extend(state.as_ref().and_then(|state| state.refused.as_ref()).map(refused));
        match (holder, &state) {
            // A running agent could otherwise be mistaken for a dead one.
            (Err(why), _) => {
                self.notes.record = Err(why);
                return;
            }
            (Ok(Some(pid)), state) => {
                let phase =
                    state.as_ref().map_or(String::new(), |s| format!(", in phase {}", s.phase));
                let answers = match client::ask(&paths.state, "/healthz", ASK) {
                    Ok(answer) if answer.status == 200 => "it answers".to_owned(),
                    Ok(answer) => answer.body.trim_end().to_owned(),
                    Err(why) => format!("it does not answer: {why}"),
                };
                let detail = format!(
                    "process {pid} (in its own PID namespace) is running{phase}; {answers}"
                );
                self.findings.push(Finding::note(Code::AgentAlive, detail));
            }
            (Ok(None), Some(state)) => self.findings.extend(ended(state)),
            (Ok(None), None) => {}
        }
        self.notes.record = Ok(match &state {
            Some(state) => format!("the last agent's phase is {}", state.phase),
            None => "no agent has run since the host was booted".to_owned(),
        });
    }

    fn holders(&mut self, look: &Look<'_>) {
        let facts = look.facts;
        let Some(nvidia) = facts.loaded.get("nvidia") else {
            self.notes.holders = Ok("no driver is loaded".to_owned());
            return;
        };
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
                self.notes.holders =
                    Err(format!("processes could not be read ({e}); nvidia is used by {count}"));
                return;
            }
            Err(e) => who.push(format!("processes could not be read: {e}")),
        }
        if who.is_empty() {
            self.notes.holders = Ok("none".to_owned());
        } else {
            self.findings.push(Finding::note(Code::DriverInUse, who.join("; ")));
        }
    }

    /// Checks the store quickly: descriptions and names, no digests.
    fn store(&mut self, look: &Look<'_>) {
        let path = look.config.paths.store.as_path();
        let store = Store::at(&look.store(), look.config.disk());
        let through = match look.config.store_place {
            StorePlace::ToAttach => " (the host's, which `run` attaches through process 1)",
            StorePlace::Attached => " (the host's, attached through process 1)",
            StorePlace::AsItIs | StorePlace::InContainer(_) => "",
        };
        let there = match fs::read_dir(store.root()) {
            Ok(_) => true,
            Err(e) if e.kind() == ErrorKind::NotFound => false,
            Err(e) => {
                let detail = format!("{}: {e}", path.display());
                return self.findings.push(Finding::refusal(Code::StoreUnusable, detail));
            }
        };
        if !there {
            let path = path.display();
            self.notes.store = format!("{path}{through} does not exist yet; `run` makes it");
            return;
        }
        let (whole, damaged) = sets(&store);
        if !damaged.is_empty() {
            let names: Vec<String> = damaged.iter().map(|p| p.display().to_string()).collect();
            let detail = format!("not readable, or with modules missing: {}", names.join(", "));
            self.findings.push(Finding::warning(Code::StoreDamaged, detail));
        }
        let failed = build::failed_before(&store);
        if !failed.is_empty() {
            self.findings.push(Finding::warning(Code::CompileFailedBefore, failed.join("; ")));
        }
        self.notes.store = format!("{}{through} has {whole} sets of modules", path.display());
    }
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
        .filter_map(LoadModule::of)
        .map(|LoadModule { name, version, .. }| match version {
            Some(version) => format!("{name} {version}"),
            None => name.clone(),
        })
        .collect();
    let detail = format!("{}: {}", modules.join(", "), refused.why);
    Finding::warning(Code::DriverRefusedBefore, detail)
}

/// Counts the sets that are complete, as far as names tell, and lists the others.
fn sets(store: &Store) -> (usize, Vec<PathBuf>) {
    let mut paths: Vec<PathBuf> = match fs::read_dir(store.dir("sets")) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        // The store is being created.
        Err(_) => return (0, Vec::new()),
    };
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let is_whole = |path: &PathBuf| {
        let set =
            fs::read(path).ok().and_then(|text| serde_json::from_slice::<ModuleSet>(&text).ok());
        set.is_some_and(|set| set.modules.iter().all(|module| store.has_blob(&module.sha256)))
    };
    let (whole, damaged): (Vec<PathBuf>, Vec<PathBuf>) = paths.into_iter().partition(is_whole);
    (whole.len(), damaged)
}
