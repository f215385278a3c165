//! Differences between a run and an earlier one.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::history::PastRun;
use super::merge::{Cell, Merged};
use super::status::Status;
use crate::results::Line;

/// Differences to an earlier run.
#[derive(Debug)]
pub(crate) struct Differences<'a> {
    /// The earlier run.
    pub id: &'a Line,
    /// Time of its last verdict.
    pub ended: Timestamp,
    /// Cells that are worse now, the worst first.
    pub worse: Vec<Change<'a>>,
    /// Cells that are better now.
    pub better: Vec<Change<'a>>,
    /// Cells that were compiled alone in one of the runs.
    pub other: Vec<Change<'a>>,
    /// Cells that the earlier run had not.
    pub new: Vec<(usize, &'a Cell)>,
    /// Cells that only the earlier run had.
    pub gone: Vec<&'a Line>,
}

/// A cell with another status than before.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    /// Index of the cell.
    pub at: usize,
    /// The cell.
    pub cell: &'a Cell,
    /// Its earlier status.
    pub before: Status,
}

impl<'a> Differences<'a> {
    /// Compares a run with an earlier one.
    pub(crate) fn new(merged: &'a Merged, past: &'a PastRun) -> Self {
        let mut differences = Self {
            id: &past.id,
            ended: past.ended,
            worse: Vec::new(),
            better: Vec::new(),
            other: Vec::new(),
            new: Vec::new(),
            gone: Vec::new(),
        };
        let mut before: BTreeMap<&Line, Status> =
            past.cells.iter().map(|cell| (&cell.name, cell.status)).collect();
        for (at, cell) in merged.cells.iter().enumerate() {
            match before.remove(&cell.planned.name) {
                None => differences.new.push((at, cell)),
                Some(before) => differences.take(Change { at, cell, before }),
            }
        }
        differences.gone = before.into_keys().collect();
        differences.worse.sort_by_key(|change| std::cmp::Reverse(change.cell.status()));
        differences
    }

    fn take(&mut self, change: Change<'a>) {
        let (before, after) = (change.before, change.cell.status());
        // A run that only compiles says nothing about a guest.
        let (was, is) = (before.is_compiled(), after.is_compiled());
        if before == after {
        } else if was && after.is_good() || is && before.is_good() {
            self.other.push(change);
        } else if after > before {
            self.worse.push(change);
        } else {
            self.better.push(change);
        }
    }

    /// Returns the changed cells in groups that are not empty, each with its title.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&'static str, &[Change<'a>])> {
        let groups: [(_, &[Change<'a>]); 3] = [
            ("Worse", &self.worse),
            ("Better", &self.better),
            ("Otherwise different", &self.other),
        ];
        groups.into_iter().filter(|(_, changes)| !changes.is_empty())
    }

    /// Returns the differences in numbers.
    pub(crate) fn summary(&self) -> String {
        let parts = [
            (self.worse.len(), "worse"),
            (self.better.len(), "better"),
            (self.other.len(), "otherwise different"),
            (self.new.len(), "new"),
            (self.gone.len(), "no longer planned"),
        ];
        let said: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        if said.is_empty() { "every cell as before".into() } else { said.join(", ") }
    }
}
