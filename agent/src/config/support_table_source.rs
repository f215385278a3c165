//! Place of a support table that replaces or extends the built-in one.

use std::path::PathBuf;
use std::str::FromStr;

use derive_more::Display;
use serde::Deserialize;

use longshore_core::image_reference::Reference;
use longshore_core::value::AbsolutePath;

/// Scheme of an artifact in a registry.
pub const SCHEME: &str = "oci://";

/// Error of a place that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a support table: {0}")]
pub struct BadSupportTable(String);

/// Place of a support table that replaces or extends the built-in one.
///
/// In the environment and in a file a path must be absolute; a flag may be relative to the working directory.
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

impl SupportTableSource {
    /// Parses an absolute path or an artifact, and refuses a relative path.
    ///
    /// # Errors
    /// If `text` is neither.
    pub fn strict(text: &str) -> Result<Self, BadSupportTable> {
        artifact(text).unwrap_or_else(|| {
            let path = AbsolutePath::strict(text);
            let path =
                path.map_err(|e| BadSupportTable(format!("{e}, nor begins with {SCHEME}")))?;
            Ok(Self::File(path.as_path().to_path_buf()))
        })
    }
}

impl FromStr for SupportTableSource {
    type Err = BadSupportTable;

    fn from_str(text: &str) -> Result<Self, BadSupportTable> {
        artifact(text).unwrap_or_else(|| {
            let path: AbsolutePath = text.parse().map_err(|e| BadSupportTable(format!("{e}")))?;
            Ok(Self::File(path.as_path().to_path_buf()))
        })
    }
}

impl TryFrom<String> for SupportTableSource {
    type Error = BadSupportTable;

    fn try_from(text: String) -> Result<Self, BadSupportTable> {
        Self::strict(&text)
    }
}

/// Parses an artifact; None for a text without its scheme.
fn artifact(text: &str) -> Option<Result<SupportTableSource, BadSupportTable>> {
    let reference = text.strip_prefix(SCHEME)?;
    let reference: Reference = match reference.parse() {
        Ok(reference) => reference,
        Err(error) => return Some(Err(BadSupportTable(format!("{error}")))),
    };
    if reference.tag.is_none() && reference.digest.is_none() {
        return Some(Err(BadSupportTable(format!(
            "{SCHEME}{reference} names no tag (:TAG) and no digest (@sha256:...)"
        ))));
    }
    Some(Ok(SupportTableSource::Artifact(reference)))
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
        assert_eq!(SupportTableSource::strict(text).expect("a place").to_string(), text);
    }

    #[rstest]
    #[case("support.toml", "nor begins with oci://")]
    #[case("https://example.com/support.toml", "nor begins with oci://")]
    #[case("oci://registry.example.com/t", "names no tag (:TAG) and no digest")]
    #[case("oci://t:stable", "HOST/REPOSITORY")]
    fn no_place(#[case] text: &str, #[case] why: &str) {
        let error = SupportTableSource::strict(text).expect_err(text).to_string();
        assert!(error.starts_with("not a support table: ") && error.contains(why), "{error}");
    }

    #[test]
    fn a_flag_may_be_relative_to_the_working_directory() {
        let path = std::path::absolute("files/support.toml").expect("a path");
        let place = "files/support.toml".parse::<SupportTableSource>();
        assert_eq!(place, Ok(SupportTableSource::File(path)));
    }
}
