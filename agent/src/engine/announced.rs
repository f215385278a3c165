//! Announcements of the driver to other programs: withdrawn before the driver changes, and made
//! again where it stays after all.

use super::in_use::{Going, loads};
use super::{Engine, undo};
use crate::journal::{Entry, EntryState, Journal};
use crate::steps::Announces;
use longshore_core::cancel::CancelFlag;

impl Engine<'_> {
    /// Undoes the announcements that the unload of `going` would make wrong, and returns them. One
    /// that cannot be undone is no reason to keep the driver: it is tried again with all other steps.
    pub(super) fn withdraw_for(&self, going: Going<'_>, journal: &mut Journal) -> Vec<Entry> {
        let driver_goes = loads(journal, going).any(|(_, module)| module.is_of_driver());
        self.withdraw_those(&|entry| driver_goes || going(entry), journal)
    }

    /// Undoes all announcements of this subject.
    pub fn withdraw(&self, subject: Announces, journal: &mut Journal) {
        self.withdraw_those(&|entry| entry.step.properties().announces == subject, journal);
    }

    fn withdraw_those(&self, going: Going<'_>, journal: &mut Journal) -> Vec<Entry> {
        let announces = |e: &&Entry| e.step.properties().announces != Announces::Nothing;
        let entries: Vec<Entry> =
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

    /// Makes withdrawn announcements again: the driver stays.
    pub(super) fn announce_again(&self, withdrawn: &[Entry], journal: &mut Journal) {
        for entry in withdrawn.iter().rev() {
            undo::record(journal, entry.seq, EntryState::Intended);
            let cancel = CancelFlag::default();
            if let Err(failure) = self.carry_out(&entry.step, entry.seq, journal, &cancel) {
                tracing::warn!("{}", failure.one_line());
            }
        }
        // No step follows.
        if let Err(failure) = journal.flush() {
            tracing::warn!("{}", failure.one_line());
        }
    }
}
