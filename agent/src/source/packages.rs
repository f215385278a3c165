//! Package indexes: what an archive says of each package.

use std::sync::Arc;

use super::relation::{Clause, Provided};

/// One version of one package in one suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Name, for example `linux-headers-6.1.0-50-amd64`.
    pub name: String,
    /// Debian version.
    pub version: String,
    /// Debian architecture: `amd64`, `arm64` or `all`.
    pub arch: String,
    /// Source package, where its name differs, without its version.
    pub source: Option<String>,
    /// Codename of the suite, for example `bookworm-security`.
    pub suite: String,
    /// Component, for example `non-free`.
    pub component: String,
    /// Path below the archive's base URL.
    pub filename: String,
    /// Bytes of the .deb.
    pub size: u64,
    /// sha256 (hex) of the .deb: its name in the store.
    pub sha256: String,
    /// Pre-Depends, then Depends.
    pub depends: Vec<Clause>,
    /// What it provides beyond its own name.
    pub provides: Vec<Provided>,
    /// Base URL of the archive.
    pub base_url: Arc<str>,
}

impl Package {
    /// Where the .deb is fetched from.
    pub fn url(&self) -> String {
        format!("{}/{}", self.base_url.trim_end_matches('/'), self.filename)
    }
}
