//! The registry that what is compiled here is pushed to, so that other hosts need not compile it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::deadlines::{SECOND, from_a_second};
use super::values::{AbsolutePath, Span};
use crate::image_reference::Repository;

/// The registry that what is compiled here is pushed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishConfig {
    /// The repository.
    pub reference: Repository,
    /// Secret key that signs what is pushed, as cosign writes it.
    pub sign_key: Option<PathBuf>,
    /// How long another host's claim is believed that is not renewed.
    pub lease: Duration,
    /// How long other hosts are waited for.
    pub wait: Duration,
    /// Whether also what was compiled with headers that nobody signed is pushed.
    pub unsigned_headers: bool,
}

/// The same as one place says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PublishFragment {
    /// Push what is compiled to this repository, and let one host compile for all that do so
    #[arg(id = "publish", long, global = true, value_name = "REFERENCE")]
    pub reference: Option<Repository>,
    /// Sign what is pushed so with this key: a cosign.key, its password in COSIGN_PASSWORD
    #[arg(id = "publish-key", long, global = true, value_name = "FILE")]
    pub sign_key: Option<AbsolutePath>,
    /// How long a host that compiles for all may be silent until another takes over; from 1s
    #[arg(id = "publish-lease", long, global = true, value_name = "SPAN", value_parser = from_a_second)]
    pub lease: Option<Span>,
    /// How long to wait for a host that compiles for all before compiling all the same
    #[arg(id = "publish-wait", long, global = true, value_name = "SPAN")]
    pub wait: Option<Span>,
    /// Also push what was compiled with headers that nobody signed: the host's own, or of --headers
    #[arg(id = "publish-unsigned-headers", long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub unsigned_headers: Option<bool>,
}

impl PublishFragment {
    /// This with what it leaves open taken from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            reference: self.reference.or(below.reference),
            sign_key: self.sign_key.or(below.sign_key),
            lease: self.lease.or(below.lease),
            wait: self.wait.or(below.wait),
            unsigned_headers: self.unsigned_headers.or(below.unsigned_headers),
        }
    }

    /// None where nothing is published, whatever the rest says.
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
