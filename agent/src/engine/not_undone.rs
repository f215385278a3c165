//! Reasons that steps were not undone.

use std::fmt;

use crate::steps::{NEEDS_REBOOT, Recorded};
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::VerbError;
use longshore_host::facts::in_use::InUse;

/// Something that could not be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The remainder, named as the step that made it.
    pub what: String,
    /// The cause.
    pub why: String,
    /// True if it hangs in the kernel, so that only a reboot removes it for certain.
    pub wedged: bool,
}

/// Reason that not everything was undone. The journal has the rest.
#[derive(Debug)]
pub enum NotUndone {
    /// The driver is in use; driver, mounts, nodes and journal are as they were.
    InUse(InUse),
    /// These were left behind.
    Left(Vec<Left>),
}

impl NotUndone {
    /// True if something hangs in the kernel.
    pub fn needs_reboot(&self) -> bool {
        matches!(self, NotUndone::Left(left) if left.iter().any(|left| left.wedged))
    }

    /// Returns the failure to end with: exit code 20 or 21.
    pub fn into_failure(self) -> Failure {
        let (kind, remedy) = match &self {
            NotUndone::InUse(_) => (
                FailureKind::InUse,
                "stop its users, then run `longshore unload`; the driver stays usable",
            ),
            NotUndone::Left(_) if self.needs_reboot() => (FailureKind::RolledBack, NEEDS_REBOOT),
            NotUndone::Left(_) => {
                (FailureKind::RolledBack, "remove the cause, then run `longshore unload`")
            }
        };
        Failure::new(kind, self.to_string()).remedy(remedy)
    }
}

impl fmt::Display for NotUndone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotUndone::InUse(in_use) => write!(f, "the driver is in use: {in_use}"),
            NotUndone::Left(left) => {
                let all: Vec<_> = left.iter().map(|l| format!("{}: {}", l.what, l.why)).collect();
                let reboot = if self.needs_reboot() { "the host needs a reboot: " } else { "" };
                write!(f, "{reboot}not undone: {}", all.join("; "))
            }
        }
    }
}

impl Left {
    pub(super) fn new(step: &Recorded, error: &VerbError) -> Self {
        let wedged = error.unanswered.is_some();
        Self { what: step.to_string(), why: error.to_string(), wedged }
    }
}

/// Failure of a query to the host before anything was undone.
pub(super) fn not_looked(error: &VerbError) -> NotUndone {
    let what = "everything (cannot tell whether the driver is in use)".to_owned();
    NotUndone::Left(vec![Left { what, why: error.to_string(), wedged: false }])
}
