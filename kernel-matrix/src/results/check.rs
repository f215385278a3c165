//! Contradictions within results.

use std::collections::BTreeSet;

use super::cell::EXCERPT_LINES;
use super::text::Line;
use super::{CellResult, Results};

/// Largest number of cells of a matrix.
const CELLS: usize = 20_000;

impl Results {
    /// Checks that the parts of the results fit each other.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), String> {
        let kernels = unique("kernel", self.kernels.iter().map(|kernel| &kernel.id))?;
        let drivers = unique("driver", self.drivers.iter().map(|driver| &driver.id))?;
        let planned = unique("planned cell", self.planned.iter().map(|cell| &cell.name))?;
        unique("result of cell", self.cells.iter().map(|cell| &cell.name))?;
        if planned.len() > CELLS {
            return Err(format!("{} cells are planned, {CELLS} are allowed", planned.len()));
        }
        for cell in &self.planned {
            let (kernel, driver) = (&cell.kernel, &cell.driver);
            for (axis, ids, id) in [("kernel", &kernels, kernel), ("driver", &drivers, driver)] {
                if !ids.contains(id) {
                    let name = &cell.name;
                    return Err(format!("cell {name} is of {axis} {id}, which is not listed"));
                }
            }
        }
        if let Some(cell) = self.cells.iter().find(|cell| !planned.contains(&cell.name)) {
            return Err(format!("cell {} has a result and was not planned", cell.name));
        }
        self.check_run()?;
        self.cells.iter().try_for_each(check_log)
    }

    fn check_run(&self) -> Result<(), String> {
        if self.run.id.is_empty() || self.run.nonce.is_empty() {
            return Err("the run has no identifier or no nonce".into());
        }
        if let Some(shard) = self.run.shard
            && !(1..=shard.count).contains(&shard.index)
        {
            return Err(format!("shard {} of {} does not exist", shard.index, shard.count));
        }
        if self.run.ended < self.run.began {
            return Err(format!("the run ended at {}, before its beginning", self.run.ended));
        }
        Ok(())
    }
}

fn unique<'a>(
    kind: &str,
    names: impl Iterator<Item = &'a Line>,
) -> Result<BTreeSet<&'a Line>, String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(format!("a {kind} has no name"));
        }
        if !seen.insert(name) {
            return Err(format!("{kind} {name} is there twice"));
        }
    }
    Ok(seen)
}

fn check_log(cell: &CellResult) -> Result<(), String> {
    let Some(log) = &cell.log else { return Ok(()) };
    let lines = log.excerpt.len();
    if lines > EXCERPT_LINES {
        return Err(format!(
            "cell {}: {lines} lines of a log, {EXCERPT_LINES} are allowed",
            cell.name
        ));
    }
    match log.failing_line {
        Some(line) if usize::try_from(line).is_ok_and(|line| line < lines) => Ok(()),
        Some(line) => Err(format!("cell {}: failing line {line} of {lines}", cell.name)),
        None => Ok(()),
    }
}
