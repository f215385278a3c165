//! Values of settings that more than one part parses: the error of a wrong one, absolute paths, and
//! URIs.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use derive_more::Display;
use serde::{Deserialize, Serialize};

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

/// Lets serde read types from a string (`try_from = "String"`) as `FromStr` parses it.
#[macro_export]
macro_rules! from_string {
    ($($kind:ty),+ $(,)?) => {$(
        impl TryFrom<String> for $kind {
            type Error = <$kind as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
    )+};
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

/// An absolute URI that names something: a type, a builder. It is compared, and nothing is fetched
/// from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Display, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Uri(String);

crate::from_string!(Uri);

impl Uri {
    /// Maximum length.
    const LONGEST: usize = 512;

    /// Returns it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Uri {
    type Err = BadValue;

    /// Parses `scheme:rest` of the characters that RFC 3986 permits.
    fn from_str(text: &str) -> Result<Self, BadValue> {
        let is_permitted =
            |c: char| c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=%".contains(c);
        let is_scheme = |scheme: &str| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        };
        let named = text
            .split_once(':')
            .is_some_and(|(scheme, rest)| is_scheme(scheme) && !rest.is_empty());
        if named && text.len() <= Self::LONGEST && text.chars().all(is_permitted) {
            return Ok(Self(text.to_owned()));
        }
        Err(BadValue::new(text, "an absolute URI, such as https://example.com/type/v1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::https("https://in-toto.io/attestation/test-result/v0.1", true)]
    #[case::urn("urn:example:a", true)]
    #[case::relative("/provenance", false)]
    #[case::no_scheme("provenance", false)]
    #[case::nothing_named("https:", false)]
    #[case::scheme_of_digits("1:2", false)]
    #[case::blank("https://example.com/a b", false)]
    #[case::control("https://example.com/\n", false)]
    #[case::not_ascii("https://example.com/\u{e4}", false)]
    #[case::empty("", false)]
    fn uris(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(text.parse::<Uri>().is_ok(), valid);
    }

    #[test]
    fn a_uri_has_a_length_that_can_be_shown() {
        assert!(format!("https://{}", "a".repeat(504)).parse::<Uri>().is_ok());
        assert!(format!("https://{}", "a".repeat(505)).parse::<Uri>().is_err());
    }
}
