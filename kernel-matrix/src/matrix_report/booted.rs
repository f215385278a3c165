//! Combinations that a cell of longshore's own tests booted, beside those that a run compiled.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::merge::{Cell, Merged};
use crate::error::{At, Error};

/// A kernel and a driver that a cell booted, with all checks of its scenario passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Booted {
    /// Name of the cell.
    pub cell: String,
    /// `uname -r`.
    pub kernel: String,
    /// Driver version.
    pub driver: String,
    /// Flavour of the kernel modules.
    pub flavour: String,
    /// Day and time, UTC.
    pub date: String,
    /// Commit of longshore, shortened.
    pub commit: String,
}

/// Reads a file with an object of JSON in each line.
///
/// # Errors
/// It cannot be read, or a line is no such object.
pub fn read(path: &Path) -> Result<Vec<Booted>, Error> {
    let text = std::fs::read_to_string(path).at("read", path)?;
    let parse = |(at, line): (usize, &str)| {
        let about = |e| Error::Unexpected(format!("{}, line {}: {e}", path.display(), at + 1));
        serde_json::from_str(line).map_err(about)
    };
    text.lines().enumerate().map(parse).collect()
}

impl Merged {
    /// Returns the cell of longshore's tests that booted this kernel with this driver.
    pub fn booted(&self, cell: &Cell) -> Option<&Booted> {
        let resolved = cell.result.as_ref()?.resolved.as_ref()?;
        let driver = self.drivers.iter().find(|driver| driver.id == cell.planned.driver)?;
        self.booted.iter().find(|booted| {
            booted.kernel == resolved.kernel_release.as_str()
                && booted.driver == resolved.driver_version.as_str()
                && booted.flavour == driver.flavour.as_str()
        })
    }

    /// Returns the number of cells that only compile, and whose kernel and driver another cell booted.
    pub fn booted_count(&self) -> usize {
        self.cells.iter().filter(|cell| self.booted(cell).is_some()).count()
    }
}
