//! Table of the entries that this program can have written: one rule for every kind of step
//! ([`StepKind::check`](crate::steps::StepKind::check)), with its paths, names and values. A record with
//! any other entry is refused whole, before anything of it is undone.

use std::path::{Path, PathBuf};

use super::{JournalEntry, State};
use crate::steps::{Bounds, Recorded, Step, Unproved, is_below_root, is_plain};
use longshore_core::paths;
use longshore_core::paths::Paths;

/// Proof that an agent wrote a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// Its place, or its seal.
    Whole,
    /// None but the word of a person, who asked to take it over; it lies where others can write.
    Vouched,
}

/// Bounds of the entries, by the settings of the agents that made them.
#[derive(Debug, Clone)]
pub(super) struct Table {
    bounds: Bounds,
    #[cfg(any(test, feature = "testing"))]
    any_entry: bool,
}

/// Checks every step of a record.
///
/// # Errors
/// Names the first one that no agent writes.
pub(super) fn check(state: &State, paths: &Paths, proof: Proof) -> Result<(), String> {
    let mut table = Table::new(state, paths);
    table.bounds.unproved = (proof == Proof::Vouched).then(|| Unproved::read(&paths.root));
    let named = |entry: &JournalEntry| format!("entry {} ({})", entry.seq, entry.step.kind());
    let mut last = 0;
    for entry in &state.entries {
        if entry.seq <= last || entry.seq >= u64::from(u32::MAX) {
            return Err(format!("{} is out of order", named(entry)));
        }
        last = entry.seq;
        table.entry(&entry.step).map_err(|why| format!("{}: {why}", named(entry)))?;
    }
    let refused = state.refused.iter().flat_map(|refused| &refused.loads);
    for step in state.previous.iter().chain(refused) {
        table.step(step).map_err(|why| format!("a step to carry out again: {why}"))?;
    }
    Ok(())
}

impl Table {
    /// Returns the table for entries of this program, made with the settings that the record names,
    /// and the present ones.
    pub(super) fn new(state: &State, paths: &Paths) -> Self {
        let mut driver_roots = vec![paths.driver_root.clone(), PathBuf::from(paths::DRIVER_ROOT)];
        let mut stores = vec![paths.store.clone(), PathBuf::from(paths::STORE)];
        for made_for in &state.made_for {
            driver_roots.push(made_for.driver_root.clone());
            stores.push(made_for.store.clone());
        }
        driver_roots.retain(|root| is_below_root(root));
        stores.retain(|store| is_below_root(store));
        let mut roots = vec![paths.host_root.clone(), PathBuf::from("/")];
        roots.extend(state.host_root.as_ref().map(|root| root.path.clone()));
        roots.retain(|root| is_plain(root));
        let devs = roots.iter().chain(&driver_roots).map(|root| root.join("dev")).collect();
        let states = [&paths.state, Path::new(paths::STATE)];
        let mut daemons = vec![paths.daemons()];
        let stores_of = stores.iter().map(PathBuf::as_path);
        daemons.extend(stores_of.chain(states).map(|dir| dir.join(paths::DAEMONS)));
        daemons.retain(|dir| is_below_root(dir));
        let bounds = Bounds { unproved: None, driver_roots, stores, devs, daemons };
        Self {
            bounds,
            #[cfg(any(test, feature = "testing"))]
            any_entry: paths.any_entry,
        }
    }

    /// Checks a step with the state before it.
    ///
    /// # Errors
    /// A message, if no agent writes such an entry.
    pub(super) fn entry(&self, step: &Recorded) -> Result<(), String> {
        #[cfg(any(test, feature = "testing"))]
        if self.any_entry {
            return Ok(());
        }
        step.check(&self.bounds)
    }

    fn step(&self, step: &Step) -> Result<(), String> {
        #[cfg(any(test, feature = "testing"))]
        if self.any_entry {
            return Ok(());
        }
        step.check(&self.bounds)
    }
}

#[cfg(test)]
mod tests;
