//! Users of the loaded modules, other than those modules themselves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Engine;
use super::patience::Wait;
use super::undo::{NotUndone, not_looked};
use crate::engine::readback;
use crate::host::VerbError;
use crate::host::in_use::{Held, InUse};
use crate::host::verbs::{ModuleState, Stage};
use crate::journal::{Entry, EntryState, Journal};
use crate::step::{ModuleOrigin, Step};

/// Selects the entries of the journal that are to be undone.
pub type Going<'a> = &'a dyn Fn(&Entry) -> bool;

/// Interval of looking at the users: they can change while the reference counts do not.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Engine<'_> {
    /// Waits for the driver's users, and logs them, again when they change.
    pub(super) fn wait_for_users(
        &self,
        wait: &Wait,
        going: Going<'_>,
        journal: &Journal,
    ) -> Result<(), NotUndone> {
        let mut seen: Option<(InUse, Instant)> = None;
        loop {
            let held = self.held_modules(journal, going).map_err(|e| not_looked(&e))?;
            if held.is_empty() {
                self.telemetry.holders(None);
                return Ok(());
            }
            let is_new =
                |(last, at): &(InUse, Instant)| last.held != held || at.elapsed() >= LOOK_AGAIN;
            if seen.as_ref().is_none_or(is_new) {
                let in_use = self.in_use(held);
                if !wait.is_over() && seen.as_ref().is_none_or(|(last, _)| *last != in_use) {
                    let s = wait.left().as_secs_f64();
                    tracing::warn!("waiting up to {s:.0} s for the driver's users: {in_use}");
                }
                seen = Some((in_use, Instant::now()));
            }
            if wait.is_over() {
                let (in_use, _) = seen.unwrap_or_else(|| (InUse::default(), Instant::now()));
                return Err(NotUndone::InUse(in_use));
            }
            wait.pause();
        }
    }

    /// Returns the driver's modules that are `going` and in use by others.
    ///
    /// Modules of the kernel's own that we loaded do not count: one that another program came to
    /// use stays loaded. Nor does a module that replaced ours, or one that is being loaded or
    /// unloaded.
    pub(super) fn held_modules(
        &self,
        journal: &Journal,
        going: Going<'_>,
    ) -> Result<Vec<Held>, VerbError> {
        let names: BTreeSet<&str> = loads(journal, going).map(|(_, name, _)| name).collect();
        let mut all = Vec::new();
        for (entry, name, origin) in loads(journal, going) {
            if matches!(origin, ModuleOrigin::Driver { .. })
                && let Some(state) = self.host.module(name)?
                && state.stage == Stage::Live
                && self.is_ours(entry, &state)
                && let Some(held) = self.held(name, &names)?
            {
                all.push(held);
            }
        }
        Ok(all)
    }

    /// Adds the processes that hold the modules, and reports them to telemetry. They are a help to
    /// the reader; that the modules are held is certain without them.
    pub(super) fn in_use(&self, held: Vec<Held>) -> InUse {
        let in_use = match self.host.driver_users() {
            Ok(seen) => InUse { held, users: seen.users, unseen: seen.unseen },
            Err(error) => InUse { held, users: Vec::new(), unseen: Some(error.to_string()) },
        };
        self.telemetry.holders(Some(&in_use));
        in_use
    }

    /// Returns the holders of one module, apart from `going`.
    pub(super) fn held(
        &self,
        name: &str,
        going: &BTreeSet<&str>,
    ) -> Result<Option<Held>, VerbError> {
        let Some(state) = self.host.module(name)? else { return Ok(None) };
        // A module that uses symbols of another holds exactly one reference to it
        // (kernel/module/main.c, ref_module).
        let references = state.refcount - state.holders.len() as i64;
        let mut modules = state.holders;
        modules.retain(|holder| !going.contains(holder.as_str()));
        let free = modules.is_empty() && references <= 0;
        Ok((!free).then(|| Held { module: name.to_owned(), modules, references }))
    }

    /// True if the loaded module is the one that the entry loaded (docs/decisions/whose-module.md).
    ///
    /// An entry that is done has the number of its loading; one that an older longshore wrote has
    /// the versions alone. An intent whose agent died may have been carried out: a module with the
    /// intended versions and parameters is taken for ours.
    pub(super) fn is_ours(&self, entry: &Entry, state: &ModuleState) -> bool {
        let Step::LoadModule { name, origin, parameters, .. } = &entry.step else { return false };
        let same_build = readback::versions(&entry.step, state).is_ok();
        match (&entry.state, entry.instance, state.instance) {
            (EntryState::Done, Some(ours), Some(there)) => ours == there,
            (EntryState::Done, ..) => same_build,
            _ => {
                let given = matches!(origin, ModuleOrigin::Kernel { .. })
                    || readback::parameters(self.host, name, parameters, &[]).is_ok();
                same_build && given
            }
        }
    }
}

/// Returns the live module loads of the journal that are `going`, oldest first.
pub(super) fn loads<'a>(
    journal: &'a Journal,
    going: Going<'a>,
) -> impl DoubleEndedIterator<Item = (&'a Entry, &'a str, &'a ModuleOrigin)> {
    journal.live().filter(move |e| going(e)).filter_map(|entry| match &entry.step {
        Step::LoadModule { name, origin, .. } => Some((entry, name.as_str(), origin)),
        _ => None,
    })
}
