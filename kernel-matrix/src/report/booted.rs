//! Combinations that a cell of longshore's own tests booted, beside those that a run compiled.

use std::path::Path;

use serde::{Deserialize, Serialize};

use longshore_lab::host::error::{At, Error};

/// A kernel and a driver that a cell booted, with all checks of its scenario passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("cell {cell}, {date}, commit {commit}")]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Booted {
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
pub(crate) fn read(path: &Path) -> Result<Vec<Booted>, Error> {
    let text = std::fs::read_to_string(path).at("read", path)?;
    let parse = |(at, line): (usize, &str)| {
        let about = |e| Error::Unexpected(format!("{}, line {}: {e}", path.display(), at + 1));
        serde_json::from_str(line).map_err(about)
    };
    text.lines().enumerate().map(parse).collect()
}
