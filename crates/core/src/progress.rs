//! Progress of long work: name, amount, time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Display of progress: a terminal, a log, or none.
pub trait Progress: Send + Sync {
    /// Begins a task, for example `fetching 71 packages`; `total` is in `unit`s, where known.
    fn begin(&self, what: &str, total: Option<u64>, unit: Unit) -> Box<dyn Task>;
    /// Counts results that were reused, and those that had to be made or fetched.
    fn reused(&self, _what: Reused, _hits: u64, _misses: u64) {}
    /// Notes the time that the compile of a set of modules took.
    fn compiled(&self, _took: Duration) {}
}

/// Kind of result that may be reused from earlier work.
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

/// Unit of a task's amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things: packages, files, compiler runs.
    Items,
}

/// A task in progress. It ends when dropped.
pub trait Task: Send + Sync {
    /// Adds `by` to the amount done.
    fn advance(&self, by: u64);
    /// Corrects the total.
    fn total(&self, total: u64);
    /// Shows the current item, for example a file's name.
    fn note(&self, text: &str);
}

/// Progress that is not displayed.
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
