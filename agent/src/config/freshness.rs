//! Settings against outdated drivers: signatures prove who made something, and not that it is current.

use std::str::FromStr;

use serde::Deserialize;

use super::DriverSelector;
use longshore_core::digest::is_sha256;
use longshore_core::value::BadValue;

/// Oldest driver that is installed: a branch (`535`) or a version (`535.261.03`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct DriverMinimum(String);

impl DriverMinimum {
    /// Returns the version or branch.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DriverMinimum {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let wanted = "a driver version such as 535.261.03, or a branch such as 535";
        let selected: Option<DriverSelector> = text.parse().ok();
        let version = selected.as_ref().and_then(DriverSelector::version).map(str::to_owned);
        version.map(Self).ok_or_else(|| BadValue::new(text, wanted))
    }
}

impl TryFrom<String> for DriverMinimum {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
}

/// Digest of a set's manifest: `sha256:` and 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SetDigest(String);

impl SetDigest {
    /// Returns it as text, in small letters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SetDigest {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let digest = text.to_ascii_lowercase();
        match digest.strip_prefix("sha256:").is_some_and(is_sha256) {
            true => Ok(Self(digest)),
            false => {
                Err(BadValue::new(text, "the digest of a manifest: sha256: and 64 hex digits"))
            }
        }
    }
}

impl TryFrom<String> for SetDigest {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("535", true)]
    #[case("535.261.03", true)]
    #[case("newest", false)]
    #[case("auto", false)]
    #[case("", false)]
    #[case("535.x", false)]
    fn minima(#[case] text: &str, #[case] valid: bool) {
        let parsed = text.parse::<DriverMinimum>();
        assert_eq!(parsed.is_ok(), valid);
        assert!(parsed.map_or(true, |minimum| minimum.as_str() == text));
    }

    #[rstest]
    #[case(&format!("sha256:{}", "a".repeat(64)), true)]
    #[case(&format!("sha256:{}", "A".repeat(64)), true)]
    #[case(&"a".repeat(64), false)]
    #[case("sha256:1", false)]
    #[case(&format!("sha512:{}", "a".repeat(64)), false)]
    fn digests(#[case] text: &str, #[case] valid: bool) {
        let parsed = text.parse::<SetDigest>();
        assert_eq!(parsed.is_ok(), valid);
        assert!(parsed.map_or(true, |digest| digest.as_str() == text.to_ascii_lowercase()));
    }
}
