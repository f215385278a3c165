//! Path of the termination message.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use longshore_core::from_string;
use longshore_core::value::{AbsolutePath, BadValue};

/// File that Kubernetes makes, and shows as the reason why a container ended (the pod's
/// `terminationMessagePath`).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// File that `run` writes the reason of its failure to: a path, or `off`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TerminationMessage(Option<PathBuf>);

impl TerminationMessage {
    /// Returns the file for a setting; without one, Kubernetes' own file where it exists.
    pub fn path_of(given: Option<&Self>) -> Option<PathBuf> {
        match given {
            Some(Self(path)) => path.clone(),
            None => Some(PathBuf::from(TERMINATION_LOG)).filter(|path| Path::exists(path)),
        }
    }
}

impl FromStr for TerminationMessage {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if text == "off" {
            return Ok(Self(None));
        }
        let path = AbsolutePath::strict(text)
            .map_err(|_| BadValue::new(text, "an absolute path, or off"))?;
        Ok(Self(Some(path.as_path().to_path_buf())))
    }
}

from_string!(TerminationMessage);

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("off", Some(None))]
    #[case("/dev/why", Some(Some("/dev/why")))]
    #[case("why", None)]
    fn termination_messages(#[case] text: &str, #[case] wanted: Option<Option<&str>>) {
        let parsed = text.parse::<TerminationMessage>().ok();
        let path = parsed.map(|given| TerminationMessage::path_of(Some(&given)));
        assert_eq!(path, wanted.map(|path| path.map(PathBuf::from)));
    }
}
