//! Users of the loaded modules, other than those modules themselves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Engine;
use super::in_use_wait::Wait;
use super::undo::{NotUndone, not_looked};
use crate::journal::{Entry, Journal};
use crate::steps::{LoadModule, held, is_owned};
use longshore_host::VerbError;
use longshore_host::in_use::{Held, InUse};
use longshore_host::verbs::Stage;

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
        let names: BTreeSet<&str> =
            loads(journal, going).map(|(_, module)| module.name.as_str()).collect();
        let mut all = Vec::new();
        for (entry, module) in loads(journal, going) {
            let name = module.name.as_str();
            if module.is_of_driver()
                && let Some(state) = self.host.module(name)?
                && state.stage == Stage::Live
                && is_owned(module, &entry.progress(), self.host, &state)
                && let Some(held) = held(self.host, name, &names)?
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
}

/// Returns the live module loads of the journal that are `going`, oldest first.
pub(super) fn loads<'a>(
    journal: &'a Journal,
    going: Going<'a>,
) -> impl DoubleEndedIterator<Item = (&'a Entry, &'a LoadModule)> {
    let live = journal.live().filter(move |e| going(e));
    live.filter_map(|entry| Some((entry, LoadModule::recorded(&entry.step)?)))
}
