//! Announcements of the driver to other programs: withdrawn before the driver changes, and made
//! again where it stays after all.

use std::path::Path;

use super::in_use::{Going, loads};
use super::{Engine, undo};
use crate::journal::{EntryState, Journal, JournalEntry};
use crate::steps::{Announces, Step, WriteStatus};
use longshore_core::cancel::CancelFlag;
use longshore_host::verbs::status_file::Status;

impl Engine<'_> {
    /// Undoes the announcements that the unload of `going` would make wrong, and returns them. One
    /// that cannot be undone is no reason to keep the driver: it is tried again with all other steps.
    pub(super) fn withdraw_for(
        &self,
        going: Going<'_>,
        journal: &mut Journal,
    ) -> Vec<JournalEntry> {
        let driver_goes = loads(journal, going).any(|(_, module)| module.is_of_driver());
        self.withdraw_those(&|entry| driver_goes || going(entry), journal)
    }

    /// Undoes all announcements of this subject.
    pub fn withdraw(&self, subject: Announces, journal: &mut Journal) {
        self.withdraw_those(&|entry| entry.step.properties().announces == subject, journal);
    }

    fn withdraw_those(&self, going: Going<'_>, journal: &mut Journal) -> Vec<JournalEntry> {
        let announces = |e: &&JournalEntry| e.step.properties().announces != Announces::Nothing;
        let entries: Vec<JournalEntry> =
            journal.live().rev().filter(|e| announces(e) && going(e)).cloned().collect();
        let mut withdrawn = Vec::new();
        for entry in entries {
            match self.undo_entry(&entry, None) {
                Ok(state) => {
                    undo::record(journal, entry.seq, state.clone());
                    if state == EntryState::Undone && entry.state == EntryState::Done {
                        withdrawn.push(entry);
                    }
                }
                Err(error) => tracing::warn!("{}: {error}", entry.step),
            }
        }
        withdrawn
    }

    /// Makes the startup probe's confirmation a step of the record, if there is one: the probe does
    /// not run again after a change, which withdraws it.
    pub fn keep_confirmation(&self, parent: &Path, journal: &mut Journal) {
        let found = match self.host.status(&WriteStatus::confirmed_at(parent)) {
            Ok(Some(Status::Text(text))) => Some(WriteStatus::confirmation(parent, &text)),
            Ok(Some(Status::Odd) | None) => None,
            Err(error) => return tracing::warn!("{error}"),
        };
        let is_found = |step: &WriteStatus| found.as_ref().is_some_and(|found| found == step);
        let is_stale = |entry: &JournalEntry| {
            let confirmation = WriteStatus::recorded(&entry.step).filter(|s| s.is_confirmation());
            confirmation.is_some_and(|step| !is_found(step))
        };
        self.withdraw_those(&is_stale, journal);
        self.act_or_warn(found.map(Step::WriteStatus), journal);
    }

    /// Writes the confirmation again that the driver before a change had.
    pub fn confirm_again(&self, journal: &mut Journal) {
        let is_it =
            |step: &&Step| WriteStatus::from_step(step).is_some_and(WriteStatus::is_confirmation);
        let confirmation = journal.state().previous.iter().find(is_it).cloned();
        self.act_or_warn(confirmation, journal);
    }

    /// Carries out an announcement without which the driver is Ready.
    fn act_or_warn(&self, step: Option<Step>, journal: &mut Journal) {
        let Some(step) = step else { return };
        let acted = self.act(&step, journal, &CancelFlag::default());
        undo::warn_if_failed(acted.and_then(|_| journal.flush()));
    }

    /// Makes withdrawn announcements again: the driver stays.
    pub(super) fn announce_again(&self, withdrawn: &[JournalEntry], journal: &mut Journal) {
        for entry in withdrawn.iter().rev() {
            undo::record(journal, entry.seq, EntryState::Intended);
            let cancel = CancelFlag::default();
            let acted = self.carry_out(&entry.step, entry.seq, journal, &cancel);
            undo::warn_if_failed(acted.map(drop));
        }
        // No step follows.
        undo::warn_if_failed(journal.flush());
    }
}
