//! The report: gathered from events, shown as a table, written as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use longshore_core::sanitize::printable;
use serde::Serialize;

use crate::cell::Cell;
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::judge::event::{Event, Outcome, Resolved, What};
use crate::judge::trials::Trial;

/// Number of lines of reasons that the table shows of a cell; the JSON has all.
const REASONS: usize = 12;

/// Results of a run. Every selected cell is in it from the start, as not run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this format.
    pub format: u32,
    /// The cells, in the order of the matrix.
    pub cells: Vec<CellResult>,
    /// Cells that passed.
    pub passed: usize,
    /// Cells that ran and failed.
    pub failed: usize,
    /// Cells that did not run.
    pub not_run: usize,
    /// Seconds the whole run took.
    pub seconds: f64,
}

/// One cell's result.
#[derive(Debug, Serialize)]
pub struct CellResult {
    /// Its name.
    pub name: String,
    /// Its outcome, with the reasons where it did not pass.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Packages and versions that its names resolved to.
    pub resolved: Option<Resolved>,
    /// Seconds until everything was on disk.
    pub prepare_seconds: f64,
    /// Phase and seconds since QEMU's start.
    pub phases: Vec<(String, f64)>,
    /// Its measurements.
    pub measured: BTreeMap<String, String>,
    /// The agent runs that were cut off in it, and their recoveries.
    pub trials: Vec<Trial>,
    /// Seconds of the whole cell.
    pub seconds: f64,
}

impl Report {
    /// Returns a report in which nothing has run yet.
    pub fn new(cells: &[&Cell]) -> Self {
        let cells = cells
            .iter()
            .map(|cell| CellResult {
                name: cell.name.clone(),
                outcome: Outcome::NotRun("the run ended before it".into()),
                resolved: None,
                prepare_seconds: 0.0,
                phases: Vec::new(),
                measured: BTreeMap::new(),
                trials: Vec::new(),
                seconds: 0.0,
            })
            .collect();
        Self { format: 1, cells, passed: 0, failed: 0, not_run: 0, seconds: 0.0 }
    }

    /// Takes an event that happened `after` the cell's beginning.
    pub fn take(&mut self, event: &Event, after: Duration) {
        let Some(cell) = self.cells.iter_mut().find(|c| c.name == event.cell) else { return };
        match &event.what {
            What::Resolved(resolved) => cell.resolved = Some(resolved.clone()),
            What::Prepared { took } => cell.prepare_seconds = round(*took),
            What::Phase { name, after } => cell.phases.push((name.clone(), round(*after))),
            What::Measured { what, value } => {
                cell.measured.insert(what.clone(), value.clone());
            }
            What::Trial(trial) => cell.trials.push(trial.clone()),
            What::Verdict(outcome) => {
                cell.outcome = outcome.clone();
                cell.seconds = round(after);
            }
            _ => {}
        }
    }

    /// Completes the report with the counts and the duration.
    pub fn finish(&mut self, took: Duration) {
        let count = |of: fn(&Outcome) -> bool| self.cells.iter().filter(|c| of(&c.outcome)).count();
        self.passed = count(|o| matches!(o, Outcome::Passed));
        self.failed = count(|o| matches!(o, Outcome::Failed(_)));
        self.not_run = count(|o| matches!(o, Outcome::NotRun(_)));
        self.seconds = round(took);
    }

    /// True if every cell ran and passed.
    pub fn is_good(&self) -> bool {
        !self.cells.is_empty() && self.cells.iter().all(|c| c.outcome == Outcome::Passed)
    }

    /// Returns the table at the end, with control characters escaped.
    pub fn table(&self) -> String {
        let width = self.cells.iter().map(|c| c.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for cell in &self.cells {
            let resolved = cell.resolved.clone().unwrap_or_default();
            let _ = writeln!(
                text,
                "{:width$}  {:8} {:6.1} s  {}  {} {}",
                cell.name,
                word(&cell.outcome),
                cell.seconds,
                resolved.kernel_release,
                resolved.driver(),
                resolved.flavour,
            );
            for trial in &cell.trials {
                let _ = writeln!(text, "    {}", trial.line());
            }
            let reasons = reasons(&cell.outcome);
            for why in reasons.iter().take(REASONS) {
                let _ = writeln!(text, "{:width$}    {why}", "");
            }
            if reasons.len() > REASONS {
                let more = reasons.len() - REASONS;
                let _ = writeln!(text, "{:width$}    and {more} more, in the JSON", "");
            }
        }
        let _ = write!(
            text,
            "{} passed, {} failed, {} not run, {:.1} s",
            self.passed, self.failed, self.not_run, self.seconds
        );
        printable(&text).into_owned()
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::Unexpected(format!("the report as JSON: {e}")))?;
        bytes.push(b'\n');
        disk::of_this_machine().write_atomically(path, &bytes).at("write", path)
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed(_) => "FAILED",
        Outcome::NotRun(_) => "NOT RUN",
    }
}

fn reasons(outcome: &Outcome) -> Vec<&str> {
    match outcome {
        Outcome::Passed => Vec::new(),
        Outcome::Failed(why) => why.iter().flat_map(|w| w.lines()).collect(),
        Outcome::NotRun(why) => why.lines().collect(),
    }
}

/// Returns the seconds, rounded to a tenth.
fn round(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(name: &str) -> Cell {
        toml::from_str(&format!(
            "name = '{name}'\nscenario = 'refused'\n\
             kernel = {{ suite = 's', package = 'p' }}\ndriver = {{ branch = '535', flavour = 'open' }}"
        ))
        .unwrap()
    }

    fn verdict(cell: &str, outcome: Outcome) -> Event {
        Event { cell: cell.into(), what: What::Verdict(outcome) }
    }

    #[test]
    fn a_declared_cell_that_says_nothing_is_not_run_and_no_success() {
        let (a, b) = (cell("a"), cell("b"));
        let mut report = Report::new(&[&a, &b]);
        report.take(&verdict("a", Outcome::Passed), Duration::from_secs(9));
        report.finish(Duration::from_secs(10));
        assert_eq!((report.passed, report.failed, report.not_run), (1, 0, 1));
        assert!(!report.is_good());
        assert!(report.table().contains("NOT RUN"));
    }

    #[test]
    fn no_cell_at_all_is_no_success() {
        assert!(!Report::new(&[]).is_good());
    }

    #[test]
    fn the_table_is_not_drowned_by_one_cell() {
        let a = cell("a");
        let mut report = Report::new(&[&a]);
        let why = (0..50).map(|n| format!("reason {n}")).collect();
        report.take(&verdict("a", Outcome::Failed(why)), Duration::ZERO);
        let table = report.table();
        assert!(table.contains("reason 11") && !table.contains("reason 12"), "{table}");
        assert!(table.contains("and 38 more"), "{table}");
    }

    #[test]
    fn reasons_are_shown_and_written() {
        let a = cell("a");
        let mut report = Report::new(&[&a]);
        let phase = What::Phase { name: "ready".into(), after: Duration::from_millis(1240) };
        report.take(&Event { cell: "a".into(), what: phase }, Duration::ZERO);
        let failed = Outcome::Failed(vec!["modules: after nvidia".into(), "\x1b[2J".into()]);
        report.take(&verdict("a", failed), Duration::from_secs(3));
        report.finish(Duration::from_secs(3));
        assert!(report.table().contains("modules: after nvidia"));
        assert!(report.table().contains("\\u{1b}[2J"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        report.write(&path).unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(json["cells"][0]["outcome"], "failed");
        assert_eq!(json["cells"][0]["why"][0], "modules: after nvidia");
        assert_eq!(json["cells"][0]["phases"][0][1], 1.2);
        assert_eq!(json["failed"], 1);
    }
}
