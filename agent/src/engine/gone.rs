//! End of the entries of a mount that is gone, and of everything that lay on it.

use crate::journal::{Entry, EntryState, Journal};

/// Ends the entries of which nothing is left after another program removed the mount of `gone`: each
/// restart of a pod under the GPU operator would leave some.
pub(super) fn end_with_mount(gone: &Entry, journal: &mut Journal) {
    let Some(mount) = gone.step.mounted() else { return };
    // Entries from before the mount lie under it.
    let is_ended = |entry: &&Entry| {
        entry.seq == gone.seq || (entry.seq > gone.seq && entry.step.lies_in(mount.target))
    };
    let ended: Vec<u64> = journal.live().filter(is_ended).map(|entry| entry.seq).collect();
    for seq in ended {
        journal.record(seq, EntryState::Undone);
    }
}
