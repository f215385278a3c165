//! Verdicts about a runtime's configuration.

use std::path::{Path, PathBuf};

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
    /// It does not, and what changes that is no edit of longshore's.
    Manual {
        /// Reason for this verdict.
        reason: String,
        /// Remedy.
        remedy: String,
    },
    /// That depends on what could not be found out.
    Unknown {
        /// Reason for this verdict.
        reason: String,
        /// Remedy.
        remedy: String,
        /// The edit that makes it read specs in any case, where there is one.
        edit: Option<Edit>,
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

    /// Returns the edit that makes the runtime read specs.
    pub fn edit(&self) -> Option<&Edit> {
        match self {
            Self::Off { edit, .. } => Some(edit),
            Self::Unknown { edit, .. } => edit.as_ref(),
            _ => None,
        }
    }

    /// Returns the remedy, where it is no edit of longshore's.
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Manual { remedy, .. }
            | Self::Unknown { remedy, .. }
            | Self::Impossible { remedy, .. }
            | Self::Refused { remedy, .. } => Some(remedy),
            Self::On { .. } | Self::Off { .. } | Self::Unused { .. } => None,
        }
    }

    /// Returns the word for it in the output of `runtime check --json`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::On { .. } => "on",
            Self::Off { .. } | Self::Manual { .. } => "off",
            Self::Unused { .. } => "unused",
            Self::Impossible { .. } => "no_cdi",
            Self::Unknown { .. } => "unknown",
            Self::Refused { .. } => "refused",
        }
    }

    /// Returns the reason for the verdict.
    pub fn reason(&self) -> &str {
        match self {
            Self::On { reason }
            | Self::Off { reason, .. }
            | Self::Manual { reason, .. }
            | Self::Unknown { reason, .. }
            | Self::Unused { reason }
            | Self::Impossible { reason, .. }
            | Self::Refused { reason, .. } => reason,
        }
    }
}

/// Refuses a file that cannot be read.
pub(crate) fn unread(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::new(format!("reading {}: {error}", path.display()), "make it a readable file")
}

/// Parses a configuration in TOML, which `program` reads.
pub(crate) fn toml_of(program: &str, path: &Path, text: &str) -> Result<toml::Table, Refusal> {
    text.parse::<toml::Table>().map_err(|error| {
        let why = error.to_string().lines().collect::<Vec<_>>().join(" ");
        let reason = format!("{} is not TOML, so {program} refuses it: {why}", path.display());
        Refusal::new(reason, "correct the file")
    })
}

/// Decodes a configuration's text.
pub(crate) fn text_of(path: &Path, bytes: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(bytes).map_err(|error| {
        let reason = format!("{} is not UTF-8: {}", path.display(), error.utf8_error());
        Refusal::new(reason, "correct the file")
    })
}
