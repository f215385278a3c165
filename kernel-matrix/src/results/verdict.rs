//! Verdict on a cell, with its explanation.

use serde::{Deserialize, Serialize};

use super::text::Line;

/// Verdict on a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(
    tag = "kind",
    deny_unknown_fields,
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Verdict {
    /// The scenario passed.
    Works {},
    /// The scenario passed, with patches of longshore.
    WorksPatched {
        /// Names of the patches.
        patches: Vec<Line>,
    },
    /// The modules compiled; nothing was booted.
    Compiled {
        /// Names of longshore's patches, if any was applied.
        patches: Vec<Line>,
    },
    /// Preflight refused the combination.
    Refused {
        /// Code of the finding.
        code: Line,
        /// The finding.
        reason: Line,
        /// Advice for the operator; empty where there is none.
        remedy: Line,
    },
    /// The driver does not compile for this kernel.
    DoesNotCompile {
        /// Class of the failure, for example `interface-gone`.
        class: Line,
        /// Function, header or compiler that it is about; empty if unknown.
        name: Line,
        /// First line of the compiler's output that failed.
        line: Line,
        /// Advice for the operator; empty where there is none.
        remedy: Line,
    },
    /// Something that the cell needs cannot be had from the archive.
    Unavailable {
        /// Missing part.
        part: Part,
        /// URL, package or suite, and the archive's answer.
        why: Line,
    },
    /// The scenario ran and failed.
    Faulty {
        /// The faults.
        why: Vec<Line>,
    },
    /// The guest ended, or was ended, without a verdict of its own.
    GuestEnded {
        /// Kind of its end.
        class: GuestEnd,
        /// The reason first, then faults that the kernel reported.
        why: Vec<Line>,
    },
    /// The cell could not be run, or its run ended before it.
    NotRun {
        /// The reason.
        why: Line,
    },
}

/// Kind of a guest's end without a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum GuestEnd {
    /// It was still running at its deadline.
    Hung,
    /// Its kernel panicked.
    Panicked,
    /// A signal ended QEMU.
    Killed,
    /// It had no space left on a disk.
    #[display("disk full")]
    DiskFull,
    /// Its script failed, or it ended without a reason that it gave.
    #[display("ended early")]
    Silent,
}

/// Part of a cell that an archive delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum Part {
    /// Package of the kernel's image or modules.
    Kernel,
    /// Package of the kernel's headers.
    Headers,
    /// Package of the compiler.
    Compiler,
    /// Package of the driver.
    Driver,
    /// The suite itself.
    Suite,
}

impl Verdict {
    /// True for a verdict that the machine or the network may be the reason of, or that is none.
    pub fn may_be_of_machine(&self) -> bool {
        matches!(self, Self::Faulty { .. } | Self::GuestEnded { .. } | Self::NotRun { .. })
    }
}
