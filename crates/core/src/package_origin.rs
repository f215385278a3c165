//! Origin of a distribution's package, in no distribution's own words.

use serde::{Deserialize, Serialize};

/// Origin of a package. In records its fields have the names that Debian's archives gave them first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct PackageOrigin {
    /// Name of the source, for example the suite `bookworm-security`.
    #[serde(rename = "suite")]
    pub text: String,
    /// Percentage of hosts that the distribution's own installer already gives it to; None for all.
    #[serde(default, rename = "phased", skip_serializing_if = "Option::is_none")]
    pub percentage: Option<u8>,
    /// True for a source that was added on the host, beside the distribution's own.
    #[serde(default, rename = "host_flat", skip_serializing_if = "std::ops::Not::not")]
    pub is_added: bool,
}

impl PackageOrigin {
    /// Returns a source of the distribution that gives the package to all hosts.
    pub fn named(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_names_that_they_always_had() {
        let origin =
            PackageOrigin { text: "noble-updates".into(), percentage: Some(30), is_added: true };
        let json = serde_json::to_string(&origin).expect("JSON");
        assert_eq!(json, r#"{"suite":"noble-updates","phased":30,"host_flat":true}"#);
        let plain = serde_json::to_string(&PackageOrigin::named("bookworm")).expect("JSON");
        assert_eq!(plain, r#"{"suite":"bookworm"}"#);
        let read: PackageOrigin = serde_json::from_str(&plain).expect("reads");
        assert_eq!(read, PackageOrigin::named("bookworm"));
    }
}
