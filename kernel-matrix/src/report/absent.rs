//! Axes of the table, in their order: drivers of branches that are supported on the day first, ended ones apart.
//!
//! Drivers and kernels without sources are apart, too: every cell of theirs lacks a package. A table of the others is
//! shorter, and says the same.

use std::collections::BTreeMap;

use super::merge::{Cell, Merged};
use super::status::Status;
use super::support::{DriverState, Support};
use crate::results::{DriverAxis, KernelAxis, Line};

/// The axes, in their parts.
#[derive(Debug, Default)]
pub(crate) struct Axes<'a> {
    /// Kernels of the table.
    pub kernels: Vec<&'a KernelAxis>,
    /// Drivers of the table: of supported branches, then of unknown ones. Drivers that are not judged, in the order of
    /// the results.
    pub drivers: Vec<&'a DriverAxis>,
    /// Drivers of ended branches, newest first.
    pub ended: Vec<&'a DriverAxis>,
    /// State of each driver with sources; none where they are not judged.
    pub states: BTreeMap<&'a Line, DriverState>,
    /// Kernels without sources.
    pub absent_kernels: Vec<&'a KernelAxis>,
    /// Drivers without sources.
    pub absent_drivers: Vec<&'a DriverAxis>,
}

impl<'a> Axes<'a> {
    /// Parts the axes. Where a part of the table would be empty, all are in the table.
    pub(crate) fn new(merged: &'a Merged) -> Self {
        let is_absent = |id: &Line, of: fn(&Cell) -> &Line| {
            let mut cells = merged.cells.iter().filter(|cell| of(cell) == id).peekable();
            cells.peek().is_some() && cells.all(|cell| cell.status() == Status::Unavailable)
        };
        let (absent_kernels, kernels): (Vec<_>, Vec<_>) =
            merged.kernels.iter().partition(|k| is_absent(&k.id, |cell| &cell.planned.kernel));
        let (absent_drivers, drivers): (Vec<_>, Vec<_>) =
            merged.drivers.iter().partition(|d| is_absent(&d.id, |cell| &cell.planned.driver));
        if kernels.is_empty() || drivers.is_empty() {
            let kernels = merged.kernels.iter().collect();
            let drivers = merged.drivers.iter().collect();
            return Self { kernels, drivers, ..Self::default() }.judged(merged);
        }
        Self { kernels, drivers, absent_kernels, absent_drivers, ..Self::default() }.judged(merged)
    }

    /// Sorts the drivers by the support of their branches, and parts ended ones from the others.
    fn judged(mut self, merged: &Merged) -> Self {
        let Some(judge) = &merged.judge else { return self };
        let state = |driver: &&'a DriverAxis| {
            (&driver.id, judge.state(driver.branch.as_str(), &merged.versions(driver)))
        };
        self.states = self.drivers.iter().map(state).collect();
        let support = |driver: &DriverAxis| self.states.get(&driver.id).map(|of| of.support);
        self.drivers.sort_by_key(|driver| {
            let branch = driver.branch.as_str();
            support(driver).map(|support| support.place(branch))
        });
        let is_ended = |driver: &&DriverAxis| support(driver).is_some_and(Support::is_ended);
        (self.ended, self.drivers) = self.drivers.iter().partition(|driver| is_ended(driver));
        self
    }

    /// Returns the kernels of the table of some drivers: those that have a cell of one of them; all, where it is the only
    /// table.
    pub(crate) fn kernels_of(
        &self,
        merged: &Merged,
        drivers: &[&DriverAxis],
    ) -> Vec<&'a KernelAxis> {
        let is_only = drivers.len() == self.drivers.len() + self.ended.len();
        let has_cell = |kernel: &KernelAxis| {
            let mut cells = merged.cells.iter().filter(|cell| cell.planned.kernel == kernel.id);
            cells.any(|cell| drivers.iter().any(|driver| driver.id == cell.planned.driver))
        };
        let kernels = self.kernels.iter().copied();
        kernels.filter(|kernel| is_only || has_cell(kernel)).collect()
    }

    /// Returns name, number of cells and reason of each driver and each kernel without sources.
    pub(crate) fn absent(&self, merged: &Merged) -> Vec<(String, usize, String)> {
        let reported = |name: String, id: &Line, of: fn(&Cell) -> &Line| {
            let cells: Vec<&Cell> = merged.cells.iter().filter(|cell| of(cell) == id).collect();
            let reason = cells.first().map(|cell| cell.reason()).unwrap_or_default();
            (name, cells.len(), reason)
        };
        let driver = |d: &&DriverAxis| {
            reported(format!("{} {}", d.branch, d.flavour), &d.id, |cell| &cell.planned.driver)
        };
        let kernel = |k: &&KernelAxis| {
            let release = if k.release.is_empty() { &k.id } else { &k.release };
            reported(release.to_string(), &k.id, |cell| &cell.planned.kernel)
        };
        let drivers = self.absent_drivers.iter().map(driver);
        drivers.chain(self.absent_kernels.iter().map(kernel)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::Source;
    use super::*;
    use crate::results::{Authenticity, Part, Verdict, sample};

    fn merged(is_absent: impl Fn(&Line) -> bool) -> Merged {
        let mut results = sample::results();
        for cell in results.cells.iter_mut().filter(|cell| is_absent(&cell.name)) {
            let why = Line::new("not in sid");
            cell.verdict = Verdict::Unavailable { part: Part::Driver, why };
        }
        let source = Source { file: "a".into(), results, authenticity: Authenticity::Sealed };
        Merged::merge(vec![source]).unwrap()
    }

    #[test]
    fn axes_without_sources_are_apart_with_their_reason() {
        let merged = merged(|name| name.as_str().ends_with("470-proprietary"));
        let axes = Axes::new(&merged);
        assert_eq!((axes.kernels.len(), axes.drivers.len()), (4, 1));
        let absent = axes.absent(&merged);
        assert_eq!(absent, [("470 proprietary".into(), 4, "driver: not in sid".into())]);
        assert_eq!(merged.headline(), "1 of 4 that have sources work");
    }

    #[test]
    fn a_matrix_without_any_sources_is_shown_whole() {
        let merged = merged(|_| true);
        let axes = Axes::new(&merged);
        assert_eq!((axes.kernels.len(), axes.drivers.len()), (4, 2));
        assert!(axes.absent(&merged).is_empty());
    }
}
