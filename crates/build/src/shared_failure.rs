//! Compile failures caused by the inputs rather than the host: every host with the same inputs
//! fails alike, so one shares its failure with the others.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use longshore_core::failure::{CompileClass, Failure, FailureKind};
use longshore_modules::artifact::ModuleKey;

/// Lifetime of a failure caused by the inputs.
pub(super) const LASTING: SignedDuration = SignedDuration::from_hours(24);
/// Maximum length of another host's text when shown.
const MOST_SHOWN: usize = 1000;
/// Clocks of hosts differ by up to this much; a record from later than that is not believed.
const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// A compile failure that every host with the same inputs would meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct KnownFailure {
    /// sha256 (hex) over everything that was compiled and that compiled it, longshore included: it
    /// applies to no host with other inputs.
    pub inputs: String,
    /// Time of the failure, by that host's clock.
    pub at: Timestamp,
    /// The failure in one line.
    pub cause: String,
    /// The remedy.
    pub remedy: Option<String>,
    /// Host and build that met it.
    #[serde(flatten)]
    pub about: About,
}

/// Host and build that met a failure: for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct About {
    /// The failure's class, for example `interface-changed`.
    pub class: String,
    /// The interface or header that it is about; left out where it is not known, as by older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The name of the host (`uname -n`).
    pub host: String,
    /// Version of the longshore there.
    pub agent: String,
    /// The key that the set would have had.
    pub key: ModuleKey,
}

impl About {
    /// Describes this host, which failed to build a set with `key`.
    pub(crate) fn here(class: CompileClass, key: ModuleKey) -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        Self {
            class: class.class,
            name: class.name,
            host: host.to_string_lossy().into_owned(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            key,
        }
    }
}

impl KnownFailure {
    /// True while the record is still believed.
    pub(crate) fn is_current(&self, now: Timestamp) -> bool {
        let age = now.duration_since(self.at);
        age > -SKEW && age < LASTING
    }

    /// Returns the failure for a person, with its texts sanitized and its time clamped, because another host wrote it.
    pub(super) fn failure(&self, now: Timestamp) -> Failure {
        let (at, host) = (time(self.at.min(now)), shown(&self.about.host));
        let failure = Failure::new(
            FailureKind::Compile,
            format!("failed at {at} on {host}: {}", shown(&self.cause)),
        );
        let class = CompileClass {
            class: shown(&self.about.class),
            name: self.about.name.as_deref().map(shown),
            of_inputs: true,
        };
        let failure = failure.with_compile_class(class);
        match &self.remedy {
            Some(remedy) => failure.remedy(shown(remedy)),
            None => failure,
        }
    }
}

/// Formats a time for a person.
pub(super) fn time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::known;
    use rstest::rstest;

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
        known.about.name = Some("strncpy\x1b[1m".into());
        let now = known.at - SignedDuration::from_secs(5);
        let failure = known.failure(now);
        let text = failure.to_string();
        assert!(text.starts_with(&format!("failed at {} on node-3: x[2Jx", time(now))), "{text}");
        assert!(text.len() < 1100 && !text.contains('\x1b'), "{text}");
        let class = failure.compile_class().expect("a class");
        assert_eq!(class.name.as_deref(), Some("strncpy[1m"));
    }

    #[test]
    fn it_reads_what_it_writes() {
        let json = serde_json::to_string(&known('a')).expect("serializes");
        let expected = r#""class":"interface-changed","name":"pci_resize_resource","host":"#;
        assert!(json.contains(expected), "{json}");
        assert_eq!(serde_json::from_str::<KnownFailure>(&json).expect("reads").inputs.len(), 64);
    }
}
