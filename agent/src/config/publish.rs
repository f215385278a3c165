//! Registry that compiled modules are pushed to, so that other hosts need not compile them.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::deadlines::{SECOND, from_a_second};
use super::values::{AbsolutePath, Span};
use crate::image_reference::Repository;

/// Registry that compiled modules are pushed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishConfig {
    /// Repository.
    pub reference: Repository,
    /// Secret key that signs pushed sets, in cosign's format.
    pub sign_key: Option<PathBuf>,
    /// Lifetime of another host's claim that is not renewed.
    pub lease: Duration,
    /// Time limit for waiting on other hosts.
    pub wait: Duration,
    /// True to also push modules compiled with unsigned headers.
    pub unsigned_headers: bool,
}

/// Publishing settings of one configuration layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PublishFragment {
    /// Push compiled modules to this repository; of all hosts that name it, one compiles for the
    /// others
    #[arg(id = "publish", long, global = true, value_name = "REFERENCE")]
    pub reference: Option<Repository>,
    /// Sign pushed modules with this key: a cosign.key, its password in COSIGN_PASSWORD
    #[arg(id = "publish-key", long, global = true, value_name = "FILE")]
    pub sign_key: Option<AbsolutePath>,
    /// Time without a renewal after which another host takes over the compile (at least 1s)
    #[arg(id = "publish-lease", long, global = true, value_name = "SPAN", value_parser = from_a_second)]
    pub lease: Option<Span>,
    /// Time limit for waiting on the host that compiles, before compiling here
    #[arg(id = "publish-wait", long, global = true, value_name = "SPAN")]
    pub wait: Option<Span>,
    /// Also push modules compiled with unsigned headers: the host's own, or those of --headers
    #[arg(id = "publish-unsigned-headers", long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub unsigned_headers: Option<bool>,
}

impl PublishFragment {
    /// Returns this fragment, with unset settings taken from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            reference: self.reference.or(below.reference),
            sign_key: self.sign_key.or(below.sign_key),
            lease: self.lease.or(below.lease),
            wait: self.wait.or(below.wait),
            unsigned_headers: self.unsigned_headers.or(below.unsigned_headers),
        }
    }

    /// Returns None where no repository is set, whatever the other settings are.
    pub(super) fn settle(self) -> Option<PublishConfig> {
        let or = |span: Option<Span>, seconds| {
            span.map_or(Duration::from_secs(seconds), |span| span.duration())
        };
        Some(PublishConfig {
            reference: self.reference?,
            sign_key: self.sign_key.map(|path| path.as_path().to_path_buf()),
            lease: or(self.lease, 60).max(SECOND),
            wait: or(self.wait, 30 * 60),
            unsigned_headers: self.unsigned_headers.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(text: &str) -> PublishFragment {
        toml::from_str(text).expect("a fragment")
    }

    #[test]
    fn flags_go_over_what_is_below_and_the_rest_has_defaults() {
        let below = fragment("reference = 'registry.example.com/a'\nsign-key = '/k'\nwait = '10m'");
        let above = fragment("reference = 'registry.example.com/b'");
        let settled = above.over(below).settle().expect("published");
        assert_eq!(settled.reference.to_string(), "registry.example.com/b");
        assert_eq!(settled.sign_key, Some("/k".into()));
        assert_eq!(settled.lease, Duration::from_secs(60));
        assert_eq!(settled.wait, Duration::from_secs(600));
        assert!(!settled.unsigned_headers);
        let all = fragment("reference = 'registry.example.com/a'\nunsigned-headers = true");
        assert!(all.settle().expect("published").unsigned_headers);
        assert_eq!(fragment("wait = '10m'").settle(), None);
    }
}
