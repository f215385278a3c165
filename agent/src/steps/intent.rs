//! Journal entry of a step in progress.

use serde::{Deserialize, Serialize};

use longshore_core::failure::Failure;

/// Progress of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryState {
    /// About to act: only the host shows whether it did.
    Intended,
    /// Acted.
    Done,
    /// Undone.
    Undone,
    /// No longer ours to undo, with the reason.
    Kept(String),
}

/// Entries of the journal.
pub trait Entries {
    /// Records an entry's state in memory, for the next write to put on disk.
    fn record(&mut self, seq: u64, state: EntryState);

    /// Like [`Entries::record`]: records that an entry acted, and for a module the number of its
    /// loading.
    fn record_done(&mut self, seq: u64, instance: Option<u64>);

    /// Records an entry's state, on disk.
    ///
    /// # Errors
    /// 15 if it cannot be written; in memory it is recorded all the same.
    fn mark(&mut self, seq: u64, state: EntryState) -> Result<(), Failure>;
}

/// Entry of a step that is being carried out. Only recording its outcome makes an [`Applied`];
/// one that is dropped stays intended, and the host shows whether the step acted.
pub struct Intent<'a> {
    entries: &'a mut dyn Entries,
    seq: u64,
}

/// A step that was carried out, and whose entry has its outcome.
#[derive(Debug)]
#[must_use]
pub struct Applied {
    is_owned: bool,
}

impl<'a> Intent<'a> {
    /// Returns the entry of this number.
    pub fn new(entries: &'a mut dyn Entries, seq: u64) -> Self {
        Self { entries, seq }
    }

    /// Records that the step acted.
    pub fn done(self) -> Applied {
        self.loaded(None)
    }

    /// Records that the step loaded a module, with the number of that loading.
    pub fn loaded(self, instance: Option<u64>) -> Applied {
        self.entries.record_done(self.seq, instance);
        Applied { is_owned: true }
    }

    /// Records that the step acted and is never undone.
    pub fn done_for_good(self, why: &str) -> Applied {
        self.entries.record(self.seq, EntryState::Kept(why.to_owned()));
        Applied { is_owned: true }
    }

    /// Records, on disk, that another program did the same: its work is not undone.
    ///
    /// # Errors
    /// 15 if it cannot be written.
    pub fn left_to_others(self, why: &str) -> Result<Applied, Failure> {
        self.entries.mark(self.seq, EntryState::Kept(why.to_owned()))?;
        Ok(Applied { is_owned: false })
    }

    /// Records, on disk, that the step did not act. Only warns where that cannot be written: the
    /// next undo finds it undone.
    pub fn not_done(self) {
        if let Err(failure) = self.entries.mark(self.seq, EntryState::Undone) {
            tracing::warn!("{}", failure.one_line());
        }
    }
}

impl Applied {
    /// True if the effect is ours, and not another program's.
    pub fn is_owned(&self) -> bool {
        self.is_owned
    }
}
