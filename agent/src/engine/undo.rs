//! Undoing from the journal, in reverse.
//!
//! The order is chosen so that stopping half-way is never needed. First the daemons end, which hold
//! the driver; then its modules are checked for users, and unloaded: only that can be refused, and
//! while it is refused nothing else was touched. Only when no module of ours is left are mounts,
//! nodes, parameters and directories removed, in reverse: none of them matters to unloading a
//! module, while a driver without its nodes and libraries would be of no use to the processes that
//! hold it.

use std::time::Instant;

use super::in_use::Going;
use super::in_use_wait::Wait;
use super::not_undone::{Left, NotUndone};
use super::{Engine, InUseWait};
use crate::journal::{EntryState, Journal, JournalEntry};
use crate::steps::{LoadModule, MakeDir, MountTmpfs, UndoResult};
use crate::telemetry::{StepOutcome, StepTimer};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::Failure;

impl Engine<'_> {
    /// Undoes every live entry of the journal; may be called again after any outcome.
    ///
    /// # Errors
    /// [`NotUndone::InUse`] where the driver was in use until the deadline: nothing was changed.
    /// [`NotUndone::Left`] where something could not be undone.
    pub fn undo(&self, journal: &mut Journal) -> Result<(), NotUndone> {
        self.undo_those(&|_| true, journal)
    }

    /// Undoes the live entries that are `going`. An entry that stays counts as a user of those that
    /// go: a module that stays and holds one that is to be unloaded is named as its holder.
    ///
    /// # Errors
    /// As [`Engine::undo`].
    pub fn undo_those(&self, going: Going<'_>, journal: &mut Journal) -> Result<(), NotUndone> {
        let since = Instant::now();
        self.end_daemons(going, journal);
        let deadline = self.in_use_wait.deadline.saturating_sub(since.elapsed());
        let rest = Self { in_use_wait: InUseWait { deadline, ..self.in_use_wait }, ..*self };
        let mut left = rest.take_out(going, journal)?;
        let wedged = !left.is_empty();
        let entries: Vec<JournalEntry> =
            journal.live().rev().filter(|e| going(e)).cloned().collect();
        let mut unmarked = Vec::new();
        let mut inside = Vec::new();
        for entry in &entries {
            // The modules that a wedged module depends on cannot be unloaded either.
            if wedged && LoadModule::recorded(&entry.step).is_some() {
                continue;
            }
            if let Some(mount) = tmpfs_around(entry, &entries) {
                inside.push((mount, entry));
                continue;
            }
            match self.undo_entry(entry, None) {
                // An entry may be kept only because something of ours could not be undone just now:
                // the next undo decides anew.
                Ok(EntryState::Kept(_)) if !left.is_empty() => {}
                Ok(state) => {
                    for (_, gone) in inside.iter().filter(|(mount, _)| *mount == entry.seq) {
                        tell(gone, self.telemetry.begin(&gone.step.step(), true), Some(&state));
                        unmarked.push((gone.seq, state.clone()));
                    }
                    unmarked.push((entry.seq, state));
                }
                Err(e) => left.push(Left::new(&entry.step, &e)),
            }
            // A directory goes right after the mount on it: meanwhile containers can write there.
            if entry.step.mounted().is_none() {
                unmarked.drain(..).for_each(|(seq, state)| record(journal, seq, state));
            }
        }
        unmarked.into_iter().for_each(|(seq, state)| record(journal, seq, state));
        if left.is_empty() { Ok(()) } else { Err(NotUndone::Left(left)) }
    }

    /// Undoes one entry, and logs the outcome in one line.
    pub(super) fn undo_entry(&self, entry: &JournalEntry, wait: Option<&Wait>) -> UndoResult {
        let timer = self.telemetry.begin(&entry.step.step(), true);
        let undone = self.undo_with_retries(entry, wait);
        tell(entry, timer, undone.as_ref().ok());
        undone
    }

    /// Undoes one step; leaves alone anything that is not (or no longer) as the step left it.
    pub(super) fn undo_step(&self, entry: &JournalEntry) -> UndoResult {
        entry.step.undo(&entry.progress(), &self.tools(&CancelFlag::default()))
    }
}

/// Counts and logs the outcome of an entry's undo; None for one that failed.
fn tell(entry: &JournalEntry, timer: StepTimer<'_>, undone: Option<&EntryState>) {
    let outcome = match undone {
        Some(EntryState::Kept(_)) => StepOutcome::Kept,
        Some(_) => StepOutcome::Undone,
        None => StepOutcome::NotUndone,
    };
    let seconds = timer.end(outcome);
    let step = &entry.step.step();
    let (kind, what, module) = (step.kind(), step.subject(), step.module());
    tracing::info!(
        step = kind, what, module, %outcome, seconds, "undo: {step}: {outcome} in {seconds:.3} s"
    );
}

/// Returns the entry of the tmpfs that this entry's directories lie in, if that is undone with it: they
/// go with the mount, and with whatever a daemon left in them.
fn tmpfs_around(entry: &JournalEntry, undone: &[JournalEntry]) -> Option<u64> {
    MakeDir::recorded(&entry.step)?;
    let around = |mount: &&JournalEntry| {
        let target = MountTmpfs::recorded(&mount.step).map(|mount| mount.target.as_path());
        mount.seq < entry.seq && target.is_some_and(|target| entry.step.is_below(target))
    };
    undone.iter().find(around).map(|mount| mount.seq)
}

/// Marks an entry; only warns where that cannot be written: the next undo finds the step undone.
/// The end of the agent run writes the state once more, and fails with the cause.
pub(super) fn record(journal: &mut Journal, seq: u64, state: EntryState) {
    warn_if_failed(journal.mark(seq, state));
}

/// Warns of a failure that is no reason to stop.
pub(super) fn warn_if_failed(result: Result<(), Failure>) {
    if let Err(failure) = result {
        tracing::warn!("{}", failure.one_line());
    }
}
