//! Unloading of the driver's modules: waits for their users, leaves those that hang.

use std::time::Duration;

use nix::errno::Errno;

use super::Engine;
use super::in_use::{Going, loads};
use super::in_use_wait::Wait;
use super::not_undone::{Left, NotUndone};
use super::undo::{record, warn_if_failed};
use crate::journal::{EntryState, Journal, JournalEntry};
use crate::steps::{LoadModule, UndoResult};
use longshore_core::cancel::CancelFlag;
use longshore_host::VerbError;
use longshore_host::facts::in_use::InUse;
use longshore_host::verbs::Stage;

/// Outcome of unloading the modules.
enum Unloaded {
    /// None of ours is left.
    All,
    /// One hangs in the kernel.
    Wedged(Left),
    /// A process uses them again; all are as they were.
    Reopened(InUse),
    /// Another error prevented it.
    Not(Vec<Left>),
}

/// Time limit for retrying a module that is in use at this moment, before those already unloaded
/// are loaded again.
pub(super) const MOMENT: Duration = Duration::from_secs(2);

impl Engine<'_> {
    /// Unloads the modules, and waits for their users. Also waits for a process that opens the
    /// driver between the check and the unload: the kernel then returns EAGAIN.
    ///
    /// Returns the module that hangs in the kernel: such a driver is unusable, so the rest is to be
    /// undone all the same.
    pub(super) fn take_out(
        &self,
        going: Going<'_>,
        journal: &mut Journal,
    ) -> Result<Vec<Left>, NotUndone> {
        let wait = self.in_use_wait.begin();
        let mut withdrawn = Vec::new();
        let why = loop {
            if let Err(not) = self.wait_for_users(&wait, going, journal) {
                break not;
            }
            withdrawn.extend(self.withdraw_for(going, journal));
            match self.unload_modules(&wait, going, journal) {
                Unloaded::All => return Ok(Vec::new()),
                Unloaded::Wedged(left) => return Ok(vec![left]),
                Unloaded::Not(left) => break NotUndone::Left(left),
                Unloaded::Reopened(in_use) if wait.is_over() => break NotUndone::InUse(in_use),
                Unloaded::Reopened(in_use) => {
                    tracing::warn!("a process opened the driver during its unload: {in_use}");
                }
            }
        };
        self.announce_again(&withdrawn, journal);
        Err(why)
    }

    /// Unloads the modules we loaded, in reverse. Where one cannot be unloaded, loads those already
    /// unloaded again: a process opened the driver just now, and a driver without nvidia-uvm is
    /// broken for it.
    fn unload_modules(&self, wait: &Wait, going: Going<'_>, journal: &mut Journal) -> Unloaded {
        let entries: Vec<JournalEntry> =
            loads(journal, going).map(|(e, _)| e.clone()).rev().collect();
        let mut gone = Vec::new();
        for entry in &entries {
            match self.undo_entry(entry, Some(wait)) {
                Ok(state) => {
                    record(journal, entry.seq, state);
                    gone.push(entry);
                }
                Err(error) if error.unanswered.is_some() => {
                    return Unloaded::Wedged(Left::new(&entry.step, &error));
                }
                Err(error) => return self.stopped_at(entry, &error, &gone, going, journal),
            }
        }
        Unloaded::All
    }

    /// Undoes an entry, and retries for a moment where the kernel returns that the module is in
    /// use: a process that only queries the driver, as nvidia-smi does, exits soon. Retries for as
    /// long as users are waited for if the module is being loaded or unloaded: another program may
    /// be doing it.
    pub(super) fn undo_with_retries(
        &self,
        entry: &JournalEntry,
        wait: Option<&Wait>,
    ) -> UndoResult {
        let Some(wait) = wait else { return self.undo_step(entry) };
        let moment = wait.at_most(MOMENT);
        loop {
            match self.undo_step(entry) {
                Err(e) if e.errno == Errno::EAGAIN && !moment.is_over() => moment.pause(),
                Err(e) if !wait.is_over() && self.wedged(entry, &e).is_some() => wait.pause(),
                result => return result,
            }
        }
    }

    fn stopped_at(
        &self,
        entry: &JournalEntry,
        error: &VerbError,
        gone: &[&JournalEntry],
        going: Going<'_>,
        journal: &mut Journal,
    ) -> Unloaded {
        if let Some(wedged) = self.wedged(entry, error) {
            return Unloaded::Wedged(wedged);
        }
        let mut left = self.put_back(gone, journal);
        if left.is_empty()
            && error.errno == Errno::EAGAIN
            && let Ok(held) = self.held_modules(journal, going)
        {
            return Unloaded::Reopened(self.in_use(held));
        }
        left.insert(0, Left::new(&entry.step, error));
        Unloaded::Not(left)
    }

    /// Returns a module that is being loaded or unloaded, for which the kernel returns EBUSY.
    fn wedged(&self, entry: &JournalEntry, error: &VerbError) -> Option<Left> {
        let LoadModule { name, .. } = LoadModule::recorded(&entry.step)?;
        if error.errno != Errno::EBUSY {
            return None;
        }
        let stage = self.host.module(name).ok().flatten()?.stage;
        let hangs = match stage {
            Stage::Live => return None,
            Stage::Coming => "its init function has not come back",
            Stage::Going => "its exit function has not come back",
        };
        let why = format!("{hangs} ({error})");
        Some(Left { what: entry.step.to_string(), why, wedged: true })
    }

    /// Loads again the modules that this undo had unloaded, and returns those that could not be
    /// loaded.
    fn put_back(&self, gone: &[&JournalEntry], journal: &mut Journal) -> Vec<Left> {
        let mut left = Vec::new();
        for entry in gone.iter().rev() {
            let is_kept = |e: &JournalEntry| matches!(e.state, EntryState::Kept(_));
            if journal.state().entries.iter().any(|e| e.seq == entry.seq && is_kept(e)) {
                continue;
            }
            record(journal, entry.seq, EntryState::Intended);
            let cancel = CancelFlag::default();
            if let Err(failure) = self.carry_out(&entry.step, entry.seq, journal, &cancel) {
                let why = format!("unloaded, and cannot be loaded again: {}", failure.one_line());
                // A refused module's entry is no longer live; a hanging one may still come.
                let wedged = journal.live().any(|e| e.seq == entry.seq && !is_done(e));
                left.push(Left { what: entry.step.to_string(), why, wedged });
            }
        }
        // No step follows, and the wait for the driver's users may be long.
        warn_if_failed(journal.flush());
        left
    }
}

fn is_done(entry: &JournalEntry) -> bool {
    entry.state == EntryState::Done
}
