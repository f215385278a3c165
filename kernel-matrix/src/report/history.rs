//! Earlier runs: one small file each in a directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::merge::Merged;
use super::status::Status;
use crate::results::read::bounded;
use crate::results::{Digest, Line};
use longshore_lab::host::disk::{self, json_files};
use longshore_lab::host::error::{At, Error};

/// Number of runs that are kept.
pub(crate) const RUNS: usize = 60;
const FORMAT: u32 = 1;
const FILE_BYTES: u64 = 8 << 20;

/// An earlier run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct PastRun {
    format: u32,
    /// Identifier of the run.
    pub id: Line,
    /// Time of its last verdict.
    pub ended: Timestamp,
    /// Its cells.
    pub cells: Vec<PastCell>,
}

/// A cell of an earlier run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct PastCell {
    /// Its name.
    pub name: Line,
    /// sha256 of its inputs.
    pub key: Option<Digest>,
    /// Its status.
    pub status: Status,
    /// Milliseconds that it took.
    pub took_ms: u64,
}

impl PastRun {
    /// Returns results as an earlier run.
    pub(crate) fn from_merged(merged: &Merged) -> Self {
        let cell = |cell: &super::merge::Cell| PastCell {
            name: cell.planned.name.clone(),
            key: cell.result.as_ref().and_then(|result| result.key.clone()),
            status: cell.status(),
            took_ms: cell.result.as_ref().map_or(0, |result| result.times.total_ms()),
        };
        Self {
            format: FORMAT,
            id: merged.id(),
            ended: merged.ended(),
            cells: merged.cells.iter().map(cell).collect(),
        }
    }

    /// Returns the number of cells of each status.
    pub(crate) fn counts(&self) -> BTreeMap<Status, usize> {
        let mut counts = BTreeMap::new();
        for cell in &self.cells {
            *counts.entry(cell.status).or_insert(0) += 1;
        }
        counts
    }

    /// Adds the run to the directory, and removes the oldest ones beyond [`RUNS`].
    ///
    /// # Errors
    /// The directory cannot be made, read or written to.
    pub(crate) fn record(&self, dir: &Path) -> Result<(), Error> {
        fs::create_dir_all(dir).at("make", dir)?;
        let time = self.ended.strftime("%Y%m%dT%H%M%SZ");
        let safe = |c: char| if c.is_ascii_alphanumeric() || "+-_".contains(c) { c } else { '_' };
        let id: String = self.id.as_str().chars().take(100).map(safe).collect();
        let path = dir.join(format!("{time}-{id}.json"));
        let text = serde_json::to_vec(self)
            .map_err(|e| Error::Unexpected(format!("a run as JSON: {e}")))?;
        disk::of_this_machine().write_atomically(&path, &text).at("write", &path)?;
        let files = json_files(dir)?;
        for old in files.iter().take(files.len().saturating_sub(RUNS)) {
            fs::remove_file(old).at("remove", old)?;
        }
        Ok(())
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let about = |why: String| Error::Unexpected(format!("history {}: {why}", path.display()));
        let bytes = bounded("history", path, FILE_BYTES)?;
        let run: Self = serde_json::from_slice(&bytes).map_err(|e| about(e.to_string()))?;
        if run.format != FORMAT {
            return Err(about(format!("format {}, {FORMAT} is expected", run.format)));
        }
        Ok(run)
    }
}

/// Reads the last [`RUNS`] runs of a directory, the oldest first.
///
/// # Errors
/// The directory or a file cannot be read, or is no history.
pub(crate) fn read(dir: &Path) -> Result<Vec<PastRun>, Error> {
    let files = json_files(dir)?;
    let mut runs = Vec::new();
    for path in files.iter().skip(files.len().saturating_sub(RUNS)) {
        runs.push(PastRun::read(path)?);
    }
    runs.sort_by_key(|run| run.ended);
    Ok(runs)
}
