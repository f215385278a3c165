//! Users of the loaded modules, other than those modules themselves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Engine;
use super::in_use_wait::Wait;
use super::not_undone::{NotUndone, not_looked};
use crate::journal::{Journal, JournalEntry};
use crate::steps::{LoadModule, held, is_owned};
use longshore_host::facts::in_use::{Held, InUse};
use longshore_host::verbs::Stage;
use longshore_host::{Host, VerbError};

/// Selects the entries of the journal that are to be undone.
pub type Going<'a> = &'a dyn Fn(&JournalEntry) -> bool;

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
        held_in(self.host, loads(journal, going))
    }

    /// Returns the same, as far as other modules hold them: their references do not depend on the
    /// driver's own daemons.
    pub(super) fn held_by_modules(
        &self,
        journal: &Journal,
        going: Going<'_>,
    ) -> Result<Vec<Held>, VerbError> {
        let mut held = self.held_modules(journal, going)?;
        held.retain(|held| !held.modules.is_empty());
        Ok(held)
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

/// Returns the driver's modules among these entries that others use.
///
/// # Errors
/// If a module cannot be inspected.
pub fn held_of(host: &dyn Host, entries: &[JournalEntry]) -> Result<Vec<Held>, VerbError> {
    held_in(host, entries.iter().filter_map(|e| Some((e, LoadModule::recorded(&e.step)?))))
}

fn held_in<'a>(
    host: &dyn Host,
    loads: impl Iterator<Item = (&'a JournalEntry, &'a LoadModule)>,
) -> Result<Vec<Held>, VerbError> {
    let loads: Vec<_> = loads.collect();
    let names: BTreeSet<&str> = loads.iter().map(|(_, module)| module.name.as_str()).collect();
    let mut all = Vec::new();
    for (entry, module) in &loads {
        let name = module.name.as_str();
        if module.is_of_driver()
            && let Some(state) = host.module(name)?
            && state.stage == Stage::Live
            && is_owned(module, &entry.progress(), host, &state)
            && let Some(held) = held(host, name, &names)?
        {
            all.push(held);
        }
    }
    Ok(all)
}

/// Returns the live module loads of the journal that are `going`, oldest first.
pub(super) fn loads<'a>(
    journal: &'a Journal,
    going: Going<'a>,
) -> impl DoubleEndedIterator<Item = (&'a JournalEntry, &'a LoadModule)> {
    let live = journal.live().filter(move |e| going(e));
    live.filter_map(|entry| Some((entry, LoadModule::recorded(&entry.step)?)))
}
