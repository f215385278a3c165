//! Archives to read, as a configuration names them.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use crate::max_age::MaxAge;
use longshore_core::redact::redacted;
use longshore_core::value::AbsolutePath;

/// Debian-format archives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// Archives of the configuration.
    pub sources: Vec<ArchiveSource>,
    /// True if the host's own apt sources are read as well.
    pub use_host_apt: bool,
    /// Components to look for in the host's apt sources beyond those they name.
    pub host_components: Vec<String>,
    /// Suites to look for in the host's apt sources beyond those they name, for example
    /// `trixie-security`.
    pub host_suites: Vec<String>,
    /// Root below which apt's lists were mounted for this container; they come before the host's, and
    /// their keyrings and directories are the host's.
    pub container_lists: Option<PathBuf>,
    /// Accept metadata past its Valid-Until, older than its limit of age, or older than what was read before: the
    /// archive is a frozen mirror on purpose.
    pub frozen: bool,
    /// Limit of the age of metadata, for archives without one of their own.
    pub max_age: MaxAge,
}

/// One archive: base URL, suites, components, keyring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ArchiveSource {
    /// Base URL: http, https or file.
    #[serde(deserialize_with = "archive_url")]
    pub url: String,
    /// Suites, for example `bookworm`, `bookworm-updates`; `/` or `directory/` for a flat archive.
    pub suites: Vec<String>,
    /// Components, for example `main`, `non-free`; none for a flat archive.
    #[serde(default)]
    pub components: Vec<String>,
    /// OpenPGP keyring (binary or armored) whose keys may sign InRelease.
    #[serde(deserialize_with = "absolute_path")]
    pub keyring: PathBuf,
    /// Limit of the age of its metadata, counted from the Date; None for that of [`ArchiveConfig`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<MaxAge>,
}

fn archive_url<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let url = String::deserialize(from)?;
    let after = |scheme: &str| url.strip_prefix(scheme);
    let host = after("http://").or(after("https://"));
    if host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
        || url.starts_with("file:/")
    {
        Ok(url)
    } else {
        Err(serde::de::Error::custom(format!(
            "`{}` is not an http, https or file URL",
            redacted(&url)
        )))
    }
}

fn absolute_path<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    AbsolutePath::deserialize(from).map(|path| path.as_path().to_path_buf())
}
