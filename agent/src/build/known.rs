//! Failures that lie in what is compiled and not in who compiles it: every host that builds the same
//! meets them, so that one can tell the others.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::remembered::LASTING;
use crate::artifact::ModuleKey;

/// What somebody else wrote is shown no longer than this.
const MOST_SHOWN: usize = 1000;
/// Clocks of hosts differ; what is from later than this is from a clock that nobody believes.
const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// A compile that failed, and fails so wherever the same is compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct KnownFailure {
    /// sha256 (hex) over everything that was compiled and what compiled it, longshore included: of
    /// who has another nothing is known.
    pub inputs: String,
    /// When, by that host's clock.
    pub at: Timestamp,
    /// The failure in one line.
    pub cause: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Where it was found out, and of what.
    #[serde(flatten)]
    pub about: About,
}

/// Where a failure was found out, and of what: for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct About {
    /// What kind, for example `interface-changed`.
    pub class: String,
    /// The name of the host (`uname -n`).
    pub host: String,
    /// Version of the longshore there.
    pub agent: String,
    /// The key that the set would have had.
    pub key: ModuleKey,
}

impl About {
    /// This host, which could not build a set with `key`.
    pub(super) fn here(class: &str, key: ModuleKey) -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        Self {
            class: class.to_owned(),
            host: host.to_string_lossy().into_owned(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            key,
        }
    }
}

impl KnownFailure {
    /// Whether it is still believed.
    pub fn is_current(&self, now: Timestamp) -> bool {
        let age = now.duration_since(self.at);
        age > -SKEW && age < LASTING
    }

    /// The same as it may be shown and kept here, whoever wrote it.
    pub(super) fn presentable(&self, now: Timestamp) -> Self {
        let about = About { host: shown(&self.about.host), ..self.about.clone() };
        Self {
            inputs: self.inputs.clone(),
            at: self.at.min(now),
            cause: shown(&self.cause),
            remedy: self.remedy.as_deref().map(shown),
            about,
        }
    }
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_SHOWN).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rstest::rstest;

    /// A failure of a build that is told apart by one letter.
    pub(crate) fn known(inputs: char) -> KnownFailure {
        KnownFailure {
            inputs: inputs.to_string().repeat(64),
            at: Timestamp::now(),
            cause: "the kernel has another pci_resize_resource".into(),
            remedy: Some("choose a newer driver".into()),
            about: About::here("interface-changed", crate::artifact::tests::set().key),
        }
    }

    #[rstest]
    #[case::just_now(0, true)]
    #[case::a_clock_that_is_ahead(-3599, true)]
    #[case::a_clock_that_nobody_believes(-3600, false)]
    #[case::a_day(24 * 3600 - 1, true)]
    #[case::over(24 * 3600, false)]
    fn a_failure_that_is_told_ages(#[case] age: i64, #[case] believed: bool) {
        let now = Timestamp::from_second(1_700_000_000).expect("a time");
        let known = KnownFailure { at: now - SignedDuration::from_secs(age), ..known('a') };
        assert_eq!(known.is_current(now), believed);
    }

    #[test]
    fn what_others_wrote_is_bounded_and_writes_nothing_on_a_terminal() {
        let mut known = known('a');
        known.cause = "x\x1b[2J".repeat(1000);
        known.about.host = "node-\n3".into();
        let now = known.at - SignedDuration::from_secs(5);
        let shown = known.presentable(now);
        assert_eq!((shown.cause.len(), shown.at), (1000, now));
        assert!(!shown.cause.contains('\x1b'), "{shown:?}");
        assert_eq!(shown.about.host, "node-3");
    }

    #[test]
    fn it_reads_what_it_writes() {
        let json = serde_json::to_string(&known('a')).expect("serializes");
        assert!(json.contains(r#""class":"interface-changed","host":"#), "{json}");
        assert_eq!(serde_json::from_str::<KnownFailure>(&json).expect("reads").inputs.len(), 64);
    }
}
