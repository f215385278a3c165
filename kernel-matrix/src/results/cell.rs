//! A cell of the matrix and its result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::text::{Digest, Line};
use super::verdict::Verdict;

/// Largest number of lines of a log in results.
pub(crate) const EXCERPT_LINES: usize = 40;

/// Measurements: quantity, and value with its unit.
pub type Measured = BTreeMap<Line, Line>;

/// A cell that a run selected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlannedCell {
    /// Its name, unique in the matrix.
    pub name: Line,
    /// Set of cells: `product` or `tests`.
    pub set: Line,
    /// Rule that gave it, or the reason for which it is included.
    pub rule: Line,
    /// Scenario, for example `works`.
    pub scenario: Line,
    /// Identifier of the kernel.
    pub kernel: Line,
    /// Identifier of the driver.
    pub driver: Line,
    /// Simulated devices.
    pub gpus: Vec<Line>,
}

/// Result of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CellResult {
    /// Name of the planned cell.
    pub name: Line,
    /// sha256 of all inputs; null if they could not be resolved.
    pub key: Option<Digest>,
    /// The verdict.
    pub verdict: Verdict,
    /// Packages and versions that were used; null if it did not come to that.
    pub resolved: Option<ResolvedCell>,
    /// Phases of the guest.
    pub phases: Vec<Phase>,
    /// Measurements.
    pub measured: Measured,
    /// Times.
    pub times: Times,
    /// The log of the step that failed, or the last one.
    pub log: Option<LogExcerpt>,
    /// Run that the result was taken from; null if the cell ran in this one.
    pub reused_from: Option<Line>,
    /// True if it was taken from results that the user's key had not sealed.
    #[serde(default)]
    pub unproven: bool,
}

/// Packages and versions that a cell used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ResolvedCell {
    /// `uname -r`.
    pub kernel_release: Line,
    /// Version of the kernel's package.
    pub kernel_version: Line,
    /// Version of the headers' package.
    pub headers: Line,
    /// Compiler of the kernel, for example `gcc-14 14.2.0`.
    pub compiler: Line,
    /// Driver version.
    pub driver_version: Line,
    /// Package, version and suite of the packaging revision that was compiled.
    pub revision: Line,
    /// Newer revisions that did not compile.
    pub refused_revisions: Vec<RefusedRevision>,
    /// sha256 of the module set's key; null where nothing was compiled.
    #[serde(default)]
    pub set: Option<Digest>,
    /// Key of the cell that only compiles the same set, under which it is pushed; null where the cell is that one.
    #[serde(default)]
    pub compile_key: Option<Digest>,
    /// Patches of longshore that were applied.
    pub patches: Vec<Line>,
    /// Remarks, for example on a realtime kernel.
    pub notes: Vec<Line>,
}

/// A packaging revision that did not compile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RefusedRevision {
    /// Package, version and suite.
    pub revision: Line,
    /// Reason, with the first line that failed.
    pub line: Line,
}

/// A phase that the guest reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Phase {
    /// Its name.
    pub name: Line,
    /// Milliseconds since QEMU's start.
    pub after_ms: u64,
}

/// Milliseconds that the parts of a cell took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Times {
    /// Fetching and unpacking.
    pub prepare_ms: u64,
    /// Compiling.
    pub compile_ms: u64,
    /// The guest, from QEMU's start to its end.
    pub guest_ms: u64,
    /// The rest.
    pub other_ms: u64,
}

impl Times {
    /// Returns the milliseconds of the whole cell.
    pub fn total_ms(self) -> u64 {
        [self.prepare_ms, self.compile_ms, self.guest_ms, self.other_ms]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A log in the run's directory, and a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogExcerpt {
    /// Path of the log, relative to the results.
    pub file: Line,
    /// sha256 of the log.
    pub sha256: Digest,
    /// Size of the log.
    pub bytes: u64,
    /// Index in `excerpt` of the line that failed; null if no line is known.
    pub failing_line: Option<u32>,
    /// At most 40 lines around the failing one, or the last ones.
    pub excerpt: Vec<Line>,
}
