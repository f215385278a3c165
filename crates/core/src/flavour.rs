//! Flavours of NVIDIA's kernel modules.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Flavour of NVIDIA's kernel modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// NVIDIA's open GPU kernel modules (Turing and newer).
    Open,
    /// The proprietary kernel modules.
    Proprietary,
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Open => "open",
            Self::Proprietary => "proprietary",
        })
    }
}
