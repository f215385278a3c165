//! Verdicts about a runtime's configuration.

use std::path::PathBuf;

use crate::runtime::Runtime;
use crate::version::Version;

/// Verdict about one runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// The runtime.
    pub runtime: Runtime,
    /// Its version, where it is known.
    pub version: Option<Version>,
    /// State of CDI in it.
    pub state: State,
    /// Further findings, which do not change the state.
    pub notes: Vec<String>,
}

/// State of CDI in a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It reads specs.
    On {
        /// Reason for this verdict.
        reason: String,
    },
    /// It does not, and an edit changes that.
    Off {
        /// Reason for this verdict.
        reason: String,
        /// The edit.
        edit: Edit,
    },
    /// No part of it would read specs, by a decision of this host's administrator.
    Unused {
        /// Reason for this verdict.
        reason: String,
    },
    /// Its version has no CDI.
    Impossible {
        /// Reason for this verdict.
        reason: String,
        /// Remedy.
        remedy: String,
    },
    /// The configuration cannot be read, or not be edited without risk.
    Refused {
        /// Reason for this verdict.
        reason: String,
        /// Remedy.
        remedy: String,
    },
}

/// Edit of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// Path of the file on the host.
    pub path: PathBuf,
    /// Its text; None where there is no such file.
    pub before: Option<String>,
    /// Its new text.
    pub after: String,
}

/// Configuration that is not edited: the reason, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) remedy: String,
}

impl Refusal {
    pub(crate) fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

impl From<Refusal> for State {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { reason: refusal.reason, remedy: refusal.remedy }
    }
}

impl State {
    pub(crate) fn on(reason: impl Into<String>) -> Self {
        Self::On { reason: reason.into() }
    }

    /// True if nothing has to be done.
    pub fn is_well(&self) -> bool {
        matches!(self, Self::On { .. } | Self::Unused { .. })
    }

    /// Returns the reason for the verdict.
    pub fn reason(&self) -> &str {
        match self {
            Self::On { reason }
            | Self::Off { reason, .. }
            | Self::Unused { reason }
            | Self::Impossible { reason, .. }
            | Self::Refused { reason, .. } => reason,
        }
    }
}

/// Decodes a configuration's text.
pub(crate) fn text_of(path: &std::path::Path, bytes: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(bytes).map_err(|error| {
        let reason = format!("{} is not UTF-8: {}", path.display(), error.utf8_error());
        Refusal::new(reason, "correct the file")
    })
}
