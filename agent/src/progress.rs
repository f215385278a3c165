//! What a person sees of long work: what, how far, how long.

use serde::{Deserialize, Serialize};

/// Where long work reports to: a terminal, a log, or nowhere.
pub trait Progress: Send + Sync {
    /// Begins a task, for example `fetching 71 packages`; `total` is in `unit`s, where known.
    fn begin(&self, what: &str, total: Option<u64>, unit: Unit) -> Box<dyn Task>;
    /// So many things were at hand already, and so many had to be made or fetched.
    fn reused(&self, _what: Reused, _hits: u64, _misses: u64) {}
}

/// What may be at hand from earlier work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reused {
    /// Sets of built modules.
    Set,
    /// Answers of a driver's conftest.sh.
    Conftest,
    /// Objects of a compile.
    Object,
}

/// What a task counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things: packages, files, compiler runs.
    Items,
}

/// A task in progress. It ends when dropped.
pub trait Task: Send + Sync {
    /// So much more is done.
    fn advance(&self, by: u64);
    /// The total turned out to be this.
    fn total(&self, total: u64);
    /// What it is at, for example a file's name.
    fn note(&self, text: &str);
}

/// Progress that nobody looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>, _: Unit) -> Box<dyn Task> {
        Box::new(Silent)
    }
}

impl Task for Silent {
    fn advance(&self, _: u64) {}
    fn total(&self, _: u64) {}
    fn note(&self, _: &str) {}
}
