//! Registry that compiled modules are pushed to, so that other hosts need not compile them.

use std::path::PathBuf;
use std::time::Duration;

use super::layer::settings;
use super::second_or_more::SecondOrMore;
use super::values::BoundedDuration;
use longshore_core::image_reference::Repository;
use longshore_core::value::AbsolutePath;

/// Registry that compiled modules are pushed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishConfig {
    /// Repository.
    pub reference: Repository,
    /// Secret key that signs pushed sets, in cosign's format.
    pub sign_key: Option<PathBuf>,
    /// True to attest pushed sets, too, with the same key.
    pub attest: bool,
    /// Lifetime of another host's claim that is not renewed.
    pub lease: Duration,
    /// Time limit for waiting on other hosts.
    pub wait: Duration,
    /// True to also push modules compiled with unsigned headers.
    pub unsigned_headers: bool,
}

settings! {
    /// Publishing settings of one configuration layer.
    PublishFragment;

    /// Repository to push compiled modules to
    ///
    /// It is also looked into for them; of all hosts that name it, one compiles for the others:
    /// [registry.md](../supply-chain/registry.md).
    reference: Option<Repository>;
        key "reference" flag "publish" "REFERENCE" env "LONGSHORE_PUBLISH"
        default "none"
    /// Key to sign pushed modules with: a cosign.key
    ///
    /// Its password in `COSIGN_PASSWORD`.
    sign_key: Option<AbsolutePath>;
        key "sign-key" flag "publish-key" "FILE" env "LONGSHORE_PUBLISH_KEY"
        default "none"
    /// Push attestations of the modules, too
    ///
    /// [Provenance and a bill of materials](../supply-chain/registry.md#attestations), signed with
    /// `sign-key`.
    attest: Option<bool>;
        key "attest" flag "publish-attest" "BOOL" alone "true" env "LONGSHORE_PUBLISH_ATTEST"
        default "`false`"
    /// Time after which another host takes over the compile
    ///
    /// Counted from the last renewal; `1s` to `1h`.
    lease: Option<SecondOrMore>;
        key "lease" flag "publish-lease" "SPAN" env "LONGSHORE_PUBLISH_LEASE"
        default "`1m`"
    /// Time limit for waiting on the host that compiles
    ///
    /// After it this host compiles; `0s` to `1h`.
    wait: Option<BoundedDuration>;
        key "wait" flag "publish-wait" "SPAN" env "LONGSHORE_PUBLISH_WAIT"
        default "`30m`"
    /// Push modules compiled with unsigned headers, too
    ///
    /// The host's own headers, or those of `headers`.
    unsigned_headers: Option<bool>;
        key "unsigned-headers" flag "publish-unsigned-headers" "BOOL" alone "true" env "LONGSHORE_PUBLISH_UNSIGNED_HEADERS"
        default "`false`"
}

/// Default of `lease`.
const LEASE: Duration = Duration::from_secs(60);

/// Default of `wait`.
const WAIT: Duration = Duration::from_secs(30 * 60);

impl PublishFragment {
    /// Returns None where no repository is set, whatever the other settings are.
    pub(super) fn with_defaults(self) -> Option<PublishConfig> {
        Some(PublishConfig {
            reference: self.reference?,
            sign_key: self.sign_key.map(|path| path.as_path().to_path_buf()),
            attest: self.attest.unwrap_or(false),
            lease: self.lease.map_or(LEASE, SecondOrMore::duration),
            wait: self.wait.map_or(WAIT, BoundedDuration::duration),
            unsigned_headers: self.unsigned_headers.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layer::Over;

    fn fragment(text: &str) -> PublishFragment {
        toml::from_str(text).expect("a fragment")
    }

    #[test]
    fn flags_go_over_what_is_below_and_the_rest_has_defaults() {
        let below = fragment("reference = 'registry.example.com/a'\nsign-key = '/k'\nwait = '10m'");
        let above = fragment("reference = 'registry.example.com/b'");
        let config = above.over(below).with_defaults().expect("published");
        assert_eq!(config.reference.to_string(), "registry.example.com/b");
        assert_eq!(config.sign_key, Some("/k".into()));
        assert_eq!(config.lease, Duration::from_secs(60));
        assert_eq!(config.wait, Duration::from_secs(600));
        assert!(!config.unsigned_headers);
        let all = fragment("reference = 'registry.example.com/a'\nunsigned-headers = true");
        assert!(all.with_defaults().expect("published").unsigned_headers);
        assert_eq!(fragment("wait = '10m'").with_defaults(), None);
    }
}
