//! Support table, and the reactions to what it says about a driver.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use derive_more::Display;
use serde::Deserialize;

use super::values::Reaction;
use super::{AbsolutePath, Fragment};
use longshore_core::failure::Failure;
use longshore_core::from_string;
use longshore_core::image_reference::Reference;
use longshore_support::SupportTable;

/// Scheme of an artifact in a registry.
const SCHEME: &str = "oci://";

/// Error of a place that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a support table: {0}")]
pub struct BadSupportTable(String);

/// Place of a support table that replaces or extends the built-in one.
#[derive(Debug, Clone, PartialEq, Eq, Display, Deserialize)]
#[serde(try_from = "String")]
pub enum SupportTableSource {
    /// Artifact in a registry, with the table and its signature as files.
    #[display("{SCHEME}{_0}")]
    Artifact(Reference),
    /// File, with its signature beside it.
    #[display("{}", _0.display())]
    File(PathBuf),
}

from_string!(SupportTableSource);

impl FromStr for SupportTableSource {
    type Err = BadSupportTable;

    fn from_str(text: &str) -> Result<Self, BadSupportTable> {
        let Some(reference) = text.strip_prefix(SCHEME) else {
            let path = AbsolutePath::strict(text);
            let path =
                path.map_err(|e| BadSupportTable(format!("{e}, nor begins with {SCHEME}")))?;
            return Ok(Self::File(path.as_path().to_path_buf()));
        };
        let reference: Reference =
            reference.parse().map_err(|e| BadSupportTable(format!("{e}")))?;
        if reference.tag.is_none() && reference.digest.is_none() {
            return Err(BadSupportTable(format!(
                "{SCHEME}{reference} names no tag (:TAG) and no digest (@sha256:...)"
            )));
        }
        Ok(Self::Artifact(reference))
    }
}

/// Support table, and the reactions to what it says about a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportConfig {
    /// The table.
    pub table: Arc<SupportTable>,
    /// Place of the one that replaces or extends the built-in table.
    pub source: Option<SupportTableSource>,
    /// Reaction to a driver with an open security bulletin.
    pub vulnerable: Reaction,
    /// Reaction to a driver whose branch has ended.
    pub ended: Reaction,
}

impl SupportConfig {
    /// Returns the settings with the built-in table.
    pub(super) fn with_defaults(all: &Fragment) -> Result<Self, Failure> {
        Ok(Self {
            table: Arc::new(SupportTable::built_in()?.clone()),
            source: all.support_table.clone(),
            vulnerable: all.vulnerable_driver.unwrap_or(Reaction::Warn),
            ended: all.ended_driver.unwrap_or(Reaction::Warn),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("/etc/longshore/support.toml")]
    #[case("oci://registry.example.com/nvidia/support-table:stable")]
    #[case("oci://http://127.0.0.1:5000/support-table:stable")]
    #[case(
        "oci://registry.example.com/t@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    )]
    fn places_are_read_and_shown_alike(#[case] text: &str) {
        assert_eq!(text.parse::<SupportTableSource>().expect("a place").to_string(), text);
    }

    #[rstest]
    #[case("support.toml", "nor begins with oci://")]
    #[case("https://example.com/support.toml", "nor begins with oci://")]
    #[case("oci://registry.example.com/t", "names no tag (:TAG) and no digest")]
    #[case("oci://t:stable", "HOST/REPOSITORY")]
    fn no_place(#[case] text: &str, #[case] why: &str) {
        let error = text.parse::<SupportTableSource>().expect_err(text).to_string();
        assert!(error.starts_with("not a support table: ") && error.contains(why), "{error}");
    }
}
