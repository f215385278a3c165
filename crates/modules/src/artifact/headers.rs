//! Origin of the kernel headers that a set was compiled with, and whether they were signed.

use serde::{Deserialize, Serialize};

use super::ModuleSet;

/// Origin of the kernel headers that a set was compiled with.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, derive_more::Display,
)]
#[serde(rename_all = "kebab-case")]
pub enum HeadersFrom {
    /// Packages of an archive, which are signed.
    #[default]
    #[display("an archive")]
    Archive,
    /// Headers installed on the host that compiled it, which are not signed.
    #[display("the host that compiled it")]
    Host,
    /// A location from its configuration, without an expected digest.
    #[display("a configured place of the host that compiled it")]
    Named,
    /// Unknown: the modules were compiled elsewhere.
    #[display("an unknown place, for the modules were compiled elsewhere")]
    Unknown,
    /// Unknown: the modules are a package's, which is named in place of the headers.
    #[display("an unknown place, for the modules are those of a package")]
    Package,
}

impl HeadersFrom {
    /// True if they were signed.
    pub fn are_signed(&self) -> bool {
        *self == Self::Archive
    }
}

impl ModuleSet {
    /// The origin of the headers. A set older than this field has it in its key: headers of an
    /// archive are named as packages, others by their path.
    pub fn headers_origin(&self) -> HeadersFrom {
        let by_place = || self.key.headers.keys().any(|name| name.starts_with('/'));
        match self.headers_from {
            HeadersFrom::Archive if by_place() => HeadersFrom::Host,
            from => from,
        }
    }

    /// True if the headers it was compiled with were signed.
    pub fn has_signed_headers(&self) -> bool {
        self.headers_origin().are_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set;

    #[test]
    fn where_headers_were_from_is_said_where_nobody_signed_them() {
        let mut set = set();
        let json = serde_json::to_string(&set).expect("serializes");
        assert!(!json.contains("headers_from") && set.has_signed_headers(), "{json}");
        for from in
            [HeadersFrom::Host, HeadersFrom::Named, HeadersFrom::Unknown, HeadersFrom::Package]
        {
            set.headers_from = from;
            let json = serde_json::to_string(&set).expect("serializes");
            assert_eq!(serde_json::from_str::<ModuleSet>(&json).expect("reads"), set);
            assert!(!set.has_signed_headers(), "{json}");
        }
        // A set without the field has the origin in its key.
        set.headers_from = HeadersFrom::Archive;
        set.key.headers.insert("/usr/src/linux-headers-6.1".into(), "5".repeat(64));
        assert_eq!(set.headers_origin(), HeadersFrom::Host);
    }
}
