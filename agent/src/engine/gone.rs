//! End of the entries of a mount that is gone, and of everything that lay on it, and of a module that
//! another program unloaded.

use super::Engine;
use super::undo::warn_if_failed;
use crate::journal::{EntryState, Journal, JournalEntry};
use crate::steps::LoadModule;

/// Ends the entry of an effect that another program removed, where nothing is left to undo.
pub(super) fn end(gone: &JournalEntry, journal: &mut Journal) {
    match LoadModule::recorded(&gone.step) {
        Some(_) => journal.record(gone.seq, EntryState::Undone),
        None => end_with_mount(gone, journal),
    }
}

impl Engine<'_> {
    /// Ends the entries of optional modules that another program unloaded. Only warns where that
    /// cannot be written: the entries end with the next load.
    pub fn end_unloaded(&self, journal: &mut Journal) {
        let is_gone = |module: &LoadModule| {
            module.loads_after().is_some() && matches!(self.host.module(&module.name), Ok(None))
        };
        let ended = journal.live().filter(|e| e.state == EntryState::Done);
        let ended = ended.filter(|e| LoadModule::recorded(&e.step).is_some_and(is_gone));
        let ended: Vec<u64> = ended.map(|entry| entry.seq).collect();
        for seq in ended {
            journal.record(seq, EntryState::Undone);
        }
        warn_if_failed(journal.flush());
    }
}

/// Ends the entries of which nothing is left after another program removed the mount of `gone`: each
/// restart of a pod under the GPU operator would leave some.
fn end_with_mount(gone: &JournalEntry, journal: &mut Journal) {
    let Some(mount) = gone.step.mounted() else { return };
    // Entries from before the mount lie under it.
    let is_ended = |entry: &&JournalEntry| {
        entry.seq == gone.seq || (entry.seq > gone.seq && entry.step.is_below(mount.target))
    };
    let ended: Vec<u64> = journal.live().filter(is_ended).map(|entry| entry.seq).collect();
    for seq in ended {
        journal.record(seq, EntryState::Undone);
    }
}
