//! Values of settings that more than one part parses: the error of a wrong one, and absolute paths.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

/// A setting's value could not be parsed; names the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not {wanted}")]
pub struct BadValue {
    given: String,
    wanted: &'static str,
}

impl BadValue {
    /// Returns the error of the value `given`, where a value as `wanted` describes it was expected.
    pub fn new(given: &str, wanted: &'static str) -> Self {
        Self { given: given.to_owned(), wanted }
    }
}

/// An absolute path.
///
/// In the environment and in a file it must be absolute; a flag may be relative to the working
/// directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AbsolutePath(PathBuf);

impl AbsolutePath {
    /// Parses an absolute path and refuses a relative one.
    ///
    /// # Errors
    /// If `text` is not absolute.
    pub fn strict(text: &str) -> Result<Self, BadValue> {
        if Path::new(text).is_absolute() && !text.contains('\0') {
            Ok(Self(Path::new(text).components().collect()))
        } else {
            Err(BadValue::new(text, "an absolute path"))
        }
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the paths of a setting's list; none where it is not set.
    pub fn list(given: Option<Vec<Self>>) -> Vec<PathBuf> {
        given.unwrap_or_default().into_iter().map(|path| path.0).collect()
    }
}

impl FromStr for AbsolutePath {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let absolute = std::path::absolute(text).map_err(|_| BadValue::new(text, "a path"))?;
        Ok(Self(absolute.components().collect()))
    }
}

impl TryFrom<String> for AbsolutePath {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        Self::strict(&text)
    }
}
