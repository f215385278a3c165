//! Where the kernel headers were from that a set was compiled with, and whether somebody signed them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ModuleSet;

/// Where the kernel headers were from that a set was compiled with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadersFrom {
    /// Packages of an archive, which are signed.
    #[default]
    Archive,
    /// What lay on the host that compiled it: nobody signed it.
    Host,
    /// A place that its configuration named, without saying what should be there.
    Named,
    /// Not known: the modules were compiled elsewhere.
    Unknown,
}

impl HeadersFrom {
    /// Whether somebody signed them.
    pub fn are_signed(&self) -> bool {
        *self == Self::Archive
    }
}

impl fmt::Display for HeadersFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Archive => "an archive",
            Self::Host => "the host that compiled it",
            Self::Named => "a place that was named where it was compiled",
            Self::Unknown => "a place that is not known, for the modules were compiled elsewhere",
        })
    }
}

impl ModuleSet {
    /// Where the headers were from. A set that was made before sets said so has them in its key: an
    /// archive's are named as packages, others by where they lay.
    pub fn headers_origin(&self) -> HeadersFrom {
        let by_place = || self.key.headers.keys().any(|name| name.starts_with('/'));
        match self.headers_from {
            HeadersFrom::Archive if by_place() => HeadersFrom::Host,
            from => from,
        }
    }

    /// Whether somebody signed the headers it was compiled with.
    pub fn has_signed_headers(&self) -> bool {
        self.headers_origin().are_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::tests::set;

    #[test]
    fn where_headers_were_from_is_said_where_nobody_signed_them() {
        let mut set = set();
        let json = serde_json::to_string(&set).expect("serializes");
        assert!(!json.contains("headers_from") && set.has_signed_headers(), "{json}");
        for from in [HeadersFrom::Host, HeadersFrom::Named, HeadersFrom::Unknown] {
            set.headers_from = from;
            let json = serde_json::to_string(&set).expect("serializes");
            assert_eq!(serde_json::from_str::<ModuleSet>(&json).expect("reads"), set);
            assert!(!set.has_signed_headers(), "{json}");
        }
        // A set that says nothing of it has them in its key.
        set.headers_from = HeadersFrom::Archive;
        set.key.headers.insert("/usr/src/linux-headers-6.1".into(), "5".repeat(64));
        assert_eq!(set.headers_origin(), HeadersFrom::Host);
    }
}
