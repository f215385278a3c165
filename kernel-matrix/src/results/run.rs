//! The run of some results, and the axes of its matrix.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::text::{Digest, Line};

/// A run of the matrix, or of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Run {
    /// Identifier of the run, and name of its directory.
    pub id: Line,
    /// Random number of the run, which is in no other results.
    pub nonce: Line,
    /// Time of the beginning.
    #[cfg_attr(test, schemars(with = "String"))]
    pub began: Timestamp,
    /// Time of the end, or of the last verdict.
    #[cfg_attr(test, schemars(with = "String"))]
    pub ended: Timestamp,
    /// The run ended by itself: no cell of the shard was left out.
    pub complete: bool,
    /// Cells whose set a registry has were left out: there may be no other.
    #[serde(default)]
    pub changed_only: bool,
    /// Machine that it ran on.
    pub machine: Machine,
    /// The tested agent.
    pub agent: AgentUsed,
    /// sha256 of the lock file with the resolved packages; null without one.
    pub lock: Option<Digest>,
    /// Shard of the matrix; null for a run of all of it.
    pub shard: Option<Shard>,
}

/// Machine that a matrix ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machine {
    /// Number of processors.
    pub cores: u32,
    /// QEMU's version; empty where nothing booted.
    pub qemu: Line,
    /// Protocol of the simulated GPU.
    pub backend: Line,
}

/// Agent that the cells ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AgentUsed {
    /// Version of longshore.
    pub version: Line,
    /// sha256 of the program that compiled; null where that is not known.
    #[serde(default)]
    pub program: Option<Digest>,
    /// Commit of the checkout that ran the matrix, with `+changes` where files of it were changed; null where that is
    /// not known.
    #[serde(default)]
    pub commit: Option<Line>,
    /// sha256 of its image; null where only modules were compiled.
    pub image: Option<Digest>,
}

impl AgentUsed {
    /// True if both are the same program and image, at whichever commit: many commits leave the program as it is.
    pub fn is_same(&self, other: &Self) -> bool {
        let of = |agent: &Self| (agent.version.clone(), agent.program.clone(), agent.image.clone());
        of(self) == of(other)
    }

    /// Checks that program and commit are named. Results without them cannot be made again, so that they are not
    /// published.
    ///
    /// # Errors
    /// The one that is not known.
    pub fn check_origin(&self) -> Result<(), String> {
        let missing = match (&self.program, &self.commit) {
            (Some(_), Some(_)) => return Ok(()),
            (None, _) => "program (sha256)",
            (_, None) => "commit",
        };
        Err(format!(
            "its run does not name the {missing} that made it: run it again in a git checkout"
        ))
    }
}

/// One of several parts of a matrix, from 1.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[display("{index}/{count}")]
pub struct Shard {
    /// Number of this shard, from 1 to `count`.
    pub index: u32,
    /// Number of shards.
    pub count: u32,
}

/// A kernel of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KernelAxis {
    /// Identifier in this matrix, for example `bookworm-security-6.12-rt`.
    pub id: Line,
    /// Suite, for example `trixie-backports`.
    pub suite: Line,
    /// Kernel line, for example `6.12`; null for the suite's own.
    pub line: Option<Line>,
    /// Flavour: `generic`, `cloud` or `rt`.
    pub flavour: Line,
    /// `uname -r`; empty if it could not be resolved.
    pub release: Line,
    /// Package version; empty if it could not be resolved.
    pub version: Line,
    /// Availability in the archive.
    pub state: KernelState,
}

/// Availability of a kernel in its archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum KernelState {
    /// All its packages are there.
    Available,
    /// Its headers are listed and cannot be fetched, or are not listed.
    HeadersMissing,
    /// Its image, modules or suite cannot be had.
    Gone,
}

/// A driver of the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DriverAxis {
    /// Identifier in this matrix, for example `550-open`.
    pub id: Line,
    /// Branch, for example `550`.
    pub branch: Line,
    /// Flavour: `open` or `proprietary`.
    pub flavour: Line,
    /// Packaging revisions in the archive, newest first.
    pub revisions: Vec<Revision>,
}

impl DriverAxis {
    /// True if it is compiled from NVIDIA's published sources, and not from a package.
    pub(crate) fn is_source_tree(&self) -> bool {
        self.revisions.first().is_some_and(|revision| revision.suite.is_empty())
    }

    /// Returns its flavour, and the sources where they are no package: `open, from NVIDIA's sources`.
    pub(crate) fn origin(&self) -> String {
        let of_tree = if self.is_source_tree() { ", from NVIDIA's sources" } else { "" };
        format!("{}{of_tree}", self.flavour)
    }
}

/// A packaging revision of a driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Revision {
    /// Package of the source.
    pub package: Line,
    /// Its version.
    pub version: Line,
    /// Suite that has it; empty for a source tree.
    pub suite: Line,
    /// sha256 of the package; null if it was not fetched.
    pub sha256: Option<Digest>,
}

/// Combinations that the matrix leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Exclusion {
    /// Condition: axis and value.
    #[serde(rename = "match")]
    pub condition: BTreeMap<Line, Line>,
    /// The reason.
    pub reason: Line,
    /// Number of cells that it leaves out.
    pub count: u32,
}

impl Exclusion {
    /// Returns the condition in one line: `driver 470, flavour rt`.
    pub(crate) fn what(&self) -> String {
        let parts = self.condition.iter().map(|(axis, value)| format!("{axis} {value}"));
        parts.collect::<Vec<_>>().join(", ")
    }
}
