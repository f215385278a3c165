//! Results of a run, format 2: `results.json`, written by the verbs that run cells and read by `report`.
//!
//! results.schema.json beside Cargo.toml describes the file. Texts of other programs are bounded and
//! without control characters ([`text`]); unknown fields, other formats and contradictions are refused
//! ([`read`], [`check`]). A [`seal`] tells results of this user's runs from those that something else
//! wrote.

pub(crate) mod cell;
pub(crate) mod check;
pub(crate) mod read;
pub(crate) mod run;
pub mod seal;
pub(crate) mod text;
pub(crate) mod verdict;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use cell::{
    CellResult, LogExcerpt, Measured, Phase, PlannedCell, RefusedRevision, ResolvedCell, Times,
};
pub use run::{
    AgentUsed, DriverAxis, Exclusion, KernelAxis, KernelState, Machine, Revision, Run, Shard,
};
pub use seal::{Authenticity, Key, Seal};
pub use text::{Digest, Line};
pub use verdict::{GuestEnd, Part, Verdict};

/// Version of this format.
pub const FORMAT: u32 = 2;

/// Results of one run: of the whole matrix, or of one shard of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Results {
    /// Version of this format: 2.
    pub format: u32,
    /// The run.
    pub run: Run,
    /// Kernels of the matrix, in the order of its columns.
    pub kernels: Vec<KernelAxis>,
    /// Drivers of the matrix, in the order of its rows.
    pub drivers: Vec<DriverAxis>,
    /// Combinations that the matrix leaves out.
    pub excluded: Vec<Exclusion>,
    /// All cells that the run selected, of all shards.
    pub planned: Vec<PlannedCell>,
    /// Results of the cells of this shard. A planned cell without a result is missing.
    pub cells: Vec<CellResult>,
    /// HMAC of all fields above, by the key of the user who ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<Seal>,
}

impl Results {
    /// Returns results of a run that has no cell yet.
    pub fn new(run: Run) -> Self {
        Self {
            format: FORMAT,
            run,
            kernels: Vec::new(),
            drivers: Vec::new(),
            excluded: Vec::new(),
            planned: Vec::new(),
            cells: Vec::new(),
            seal: None,
        }
    }
}
