//! Merges the results of shards.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use longshore_core::driver_version::DriverVersion;

use super::booted::Booted;
use super::origin::Origin;
use super::status::{Status, reason};
use super::support::Judge;
use crate::results::{
    AgentUsed, Authenticity, CellResult, Digest, DriverAxis, Exclusion, KernelAxis, Line,
    PlannedCell, Results, Run,
};
use crate::rules::RuleScenario;

/// Results that were read from a file.
#[derive(Debug)]
pub(crate) struct Source {
    /// The file, for messages.
    pub file: String,
    /// Its results.
    pub results: Results,
    /// Result of the check of its seal.
    pub authenticity: Authenticity,
}

/// A planned cell with its result.
#[derive(Debug)]
pub(crate) struct Cell {
    /// The cell.
    pub planned: PlannedCell,
    /// Its result; none if it is missing.
    pub result: Option<CellResult>,
}

impl Cell {
    /// Returns its status.
    pub(crate) fn status(&self) -> Status {
        self.result.as_ref().map_or(Status::Missing, |result| (&result.verdict).into())
    }

    /// True if its scenario boots a guest.
    fn boots(&self) -> bool {
        self.planned.scenario.as_str() != RuleScenario::Compile.to_string()
    }

    /// True if its result was taken from an earlier run.
    pub(crate) fn is_reused(&self) -> bool {
        self.result.as_ref().is_some_and(|result| result.reused_from.is_some())
    }

    /// Returns the driver version that it used; empty if it did not come to that.
    pub(crate) fn driver_version(&self) -> &str {
        let resolved = self.result.as_ref().and_then(|result| result.resolved.as_ref());
        resolved.map_or("", |resolved| resolved.driver_version.as_str())
    }

    /// Returns the reason of its status in one line.
    pub(crate) fn reason(&self) -> String {
        match &self.result {
            Some(result) => reason(&result.verdict),
            None => {
                "planned, and in no results: its run ended before, or its shard is missing".into()
            }
        }
    }
}

/// Results of all shards of a matrix.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// The runs, in the order of their shards.
    pub runs: Vec<Run>,
    /// Kernels.
    pub kernels: Vec<KernelAxis>,
    /// Drivers.
    pub drivers: Vec<DriverAxis>,
    /// Combinations that are left out.
    pub excluded: Vec<Exclusion>,
    /// Cells, in the order of the plan.
    pub cells: Vec<Cell>,
    /// Faults of the runs themselves, for example a shard that is missing.
    pub problems: Vec<String>,
    /// Remarks on the results' seals.
    pub notes: Vec<String>,
    /// Combinations that cells of longshore's tests booted.
    pub booted: Vec<Booted>,
    /// Origin of the page.
    pub origin: Origin,
    /// Judge of the drivers by the support table; None where they are not judged.
    pub judge: Option<Judge>,
}

impl Merged {
    /// Merges results.
    ///
    /// # Errors
    /// There are none, or they contradict each other.
    pub(crate) fn merge(mut sources: Vec<Source>) -> Result<Self, String> {
        if sources.is_empty() {
            return Err("no results were given".into());
        }
        sources.sort_by_key(|source| source.results.run.shard);
        check_runs(&sources)?;
        let mut merged = Self { problems: shard_problems(&sources)?, ..Self::default() };
        let mut held = BTreeMap::new();
        for Source { file, results, authenticity } in sources {
            merged.remark(&file, &results, &authenticity);
            unite(&mut merged.kernels, results.kernels, "kernel", |kernel| &kernel.id)?;
            unite(&mut merged.drivers, results.drivers, "driver", |driver| &driver.id)?;
            for exclusion in results.excluded {
                if !merged.excluded.contains(&exclusion) {
                    merged.excluded.push(exclusion);
                }
            }
            let mut plan: Vec<PlannedCell> =
                merged.cells.drain(..).map(|cell| cell.planned).collect();
            unite(&mut plan, results.planned, "cell", |cell| &cell.name)?;
            merged.cells = plan.into_iter().map(|planned| Cell { planned, result: None }).collect();
            for cell in results.cells {
                let name = cell.name.clone();
                if held.insert(name.clone(), cell).is_some() {
                    return Err(format!("cell {name} has a result in {file} and in another file"));
                }
            }
            merged.runs.push(results.run);
        }
        for cell in &mut merged.cells {
            cell.result = held.remove(&cell.planned.name);
        }
        merged.kernels.sort_by(by_version);
        merged.count_missing();
        Ok(merged)
    }

    fn remark(&mut self, file: &str, results: &Results, authenticity: &Authenticity) {
        let id = &results.run.id;
        if !results.run.complete {
            self.problems.push(format!("run {id} ({file}) did not come to its end"));
        }
        if let Authenticity::Unproven(why) = authenticity {
            self.notes.push(format!("Nothing vouches for the results of run {id} ({file}): {why}"));
        }
    }

    fn count_missing(&mut self) {
        let missing = self.count(Status::Missing);
        if missing > 0 {
            self.problems.push(format!("{missing} of {} cells have no result", self.cells.len()));
        }
        if !self.cells.is_empty() {
            return;
        }
        if self.runs.iter().all(|run| run.changed_only) {
            self.notes
                .push("No cell has changed: the registry has the sets of all of them.".into());
        } else {
            self.problems.push("no cell was planned".into());
        }
    }

    /// Returns the number of cells of this status.
    pub(crate) fn count(&self, status: Status) -> usize {
        self.cells.iter().filter(|cell| cell.status() == status).count()
    }

    /// Returns the statuses that cells have, with the number of cells, from the best to the worst.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Status, usize)> {
        let counts = Status::ALL.into_iter().map(move |status| (status, self.count(status)));
        counts.filter(|(_, count)| *count > 0)
    }

    /// Returns the number of cells whose answer is good: the scenario passed, or, where it only compiles, the
    /// modules compiled.
    pub(crate) fn good(&self) -> usize {
        let is_good = |cell: &&Cell| match cell.boots() {
            true => cell.status().is_good(),
            false => cell.status().is_compiled(),
        };
        self.cells.iter().filter(is_good).count()
    }

    /// Returns the number of cells that lack no package.
    pub(crate) fn with_sources(&self) -> usize {
        self.cells.len() - self.count(Status::Unavailable)
    }

    /// Returns the number of good cells among those that can be: `216 of 216 that have sources compile`.
    pub(crate) fn headline(&self) -> String {
        let (good, all, verb) = (self.good(), self.with_sources(), self.verb());
        let which = if all < self.cells.len() { " that have sources" } else { "" };
        format!("{good} of {all}{which} {verb}")
    }

    /// Returns the driver version that most cells of a driver used; that of its newest revision where none used any.
    pub(crate) fn version(&self, driver: &DriverAxis) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for cell in self.cells.iter().filter(|cell| cell.planned.driver == driver.id) {
            *counts.entry(cell.driver_version()).or_default() += 1;
        }
        counts.remove("");
        if let Some((version, _)) = counts.into_iter().max_by_key(|(_, count)| *count) {
            return version.to_owned();
        }
        let newest = driver.revisions.first().map_or("", |revision| revision.version.as_str());
        newest.split('-').next().unwrap_or_default().to_owned()
    }

    /// Returns the driver versions that cells of a driver used, newest first; that of its newest revision where none used
    /// any.
    pub(crate) fn versions(&self, driver: &DriverAxis) -> Vec<String> {
        let cells = self.cells.iter().filter(|cell| cell.planned.driver == driver.id);
        let mut versions: Vec<&str> = cells.map(Cell::driver_version).collect();
        versions.retain(|version| !version.is_empty());
        versions.sort_by_key(|version| Reverse(DriverVersion::new(version)));
        versions.dedup();
        if versions.is_empty() {
            let newest = self.version(driver);
            return if newest.is_empty() { Vec::new() } else { vec![newest] };
        }
        versions.into_iter().map(str::to_owned).collect()
    }

    /// Returns the verb for the good cells.
    pub(crate) fn verb(&self) -> &'static str {
        let booted = self.cells.iter().filter(|cell| cell.boots()).count();
        match self.cells.len() - booted {
            0 => "work",
            _ if booted == 0 => "compile",
            _ => "work or compile",
        }
    }

    /// Returns the number of results that were taken from an earlier run.
    pub(crate) fn reused(&self) -> usize {
        self.cells.iter().filter(|cell| cell.is_reused()).count()
    }

    /// True if every run came to its end and every cell has an answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.problems.is_empty() && !self.cells.iter().any(|cell| cell.status().is_red())
    }

    /// Returns the identifier of the runs.
    pub(crate) fn id(&self) -> Line {
        match self.runs.as_slice() {
            [] => Line::default(),
            [run] => run.id.clone(),
            [run, more @ ..] => Line::new(&format!("{}+{}", run.id, more.len())),
        }
    }

    /// Returns the time of the last verdict.
    pub(crate) fn ended(&self) -> Timestamp {
        self.runs.iter().map(|run| run.ended).max().unwrap_or_default()
    }

    /// Returns the indices of the cells of each kernel and driver.
    pub(crate) fn grid(&self) -> BTreeMap<(&Line, &Line), Vec<usize>> {
        let mut grid: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (at, Cell { planned, .. }) in self.cells.iter().enumerate() {
            grid.entry((&planned.kernel, &planned.driver)).or_default().push(at);
        }
        grid
    }

    /// Returns the cell of longshore's tests that booted this kernel with this driver.
    pub(crate) fn booted(&self, cell: &Cell) -> Option<&Booted> {
        let resolved = cell.result.as_ref()?.resolved.as_ref()?;
        let driver = self.drivers.iter().find(|driver| driver.id == cell.planned.driver)?;
        self.booted.iter().find(|booted| {
            booted.kernel == resolved.kernel_release.as_str()
                && booted.driver == resolved.driver_version.as_str()
                && booted.flavour == driver.flavour.as_str()
        })
    }

    /// Returns the number of cells that only compile, and whose kernel and driver another cell booted.
    pub(crate) fn booted_count(&self) -> usize {
        self.cells.iter().filter(|cell| self.booted(cell).is_some()).count()
    }
}

/// Compares kernels by the version of their packages; those without one are the last.
pub(super) fn by_version(a: &KernelAxis, b: &KernelAxis) -> Ordering {
    let version = |kernel: &KernelAxis| match kernel.version.is_empty() {
        true => kernel.release.to_string(),
        false => kernel.version.to_string(),
    };
    let (a, b) = (version(a), version(b));
    let known = b.is_empty().cmp(&a.is_empty()).reverse();
    known.then_with(|| longshore_debian::version::compare(&a, &b))
}

/// Refuses results that were given twice, and results of different archives or agents.
fn check_runs(sources: &[Source]) -> Result<(), String> {
    let mut runs = BTreeMap::new();
    let mut lock = None;
    let mut agent: Option<(&AgentUsed, &String)> = None;
    for Source { file, results: Results { run, .. }, .. } in sources {
        if let Some(other) = runs.insert(&run.nonce, file) {
            return Err(format!("{file} and {other} are of the same run, {}", run.id));
        }
        match (&run.lock, lock) {
            (Some(own), Some((first, other))) if own != first => {
                let why = "were resolved differently, so that they are no parts of one matrix";
                return Err(format!("{file} and {other} {why}"));
            }
            (Some(own), None) => lock = Some((own, file)),
            _ => {}
        }
        let (first, other) = *agent.get_or_insert((&run.agent, file));
        // A shard without a cell that boots has no image.
        let is_other =
            |a: &Option<Digest>, b: &Option<Digest>| a.is_some() && b.is_some() && a != b;
        if first.version != run.agent.version
            || is_other(&first.program, &run.agent.program)
            || is_other(&first.image, &run.agent.image)
        {
            return Err(format!(
                "{file} and {other} are of different programs or images of longshore"
            ));
        }
    }
    Ok(())
}

/// Returns a problem for each shard that is missing.
fn shard_problems(sources: &[Source]) -> Result<Vec<String>, String> {
    let shards: Vec<_> = sources.iter().filter_map(|source| source.results.run.shard).collect();
    let Some(count) = shards.first().map(|shard| shard.count) else { return Ok(Vec::new()) };
    if let Some(other) = shards.iter().find(|shard| shard.count != count) {
        return Err(format!("shards of {count} and of {} are no parts of one matrix", other.count));
    }
    let there: BTreeSet<u32> = shards.iter().map(|shard| shard.index).collect();
    let all = usize::try_from(count).unwrap_or(usize::MAX);
    match all - there.len() {
        0 => Ok(Vec::new()),
        1..=20 => Ok((1..=count)
            .filter(|index| !there.contains(index))
            .map(|index| format!("shard {index} of {count} is missing"))
            .collect()),
        missing => Ok(vec![format!("{missing} of {count} shards are missing")]),
    }
}

/// Adds `more` to `held`; what is in both must be the same.
pub(super) fn unite<T: PartialEq>(
    held: &mut Vec<T>,
    more: Vec<T>,
    kind: &str,
    name: impl Fn(&T) -> &Line,
) -> Result<(), String> {
    let places: BTreeMap<Line, usize> =
        held.iter().enumerate().map(|(at, one)| (name(one).clone(), at)).collect();
    for one in more {
        match places.get(name(&one)) {
            None => held.push(one),
            Some(&at) if held[at] == one => {}
            Some(_) => {
                let name = name(&one);
                return Err(format!("{kind} {name} is not the same in all results"));
            }
        }
    }
    Ok(())
}
