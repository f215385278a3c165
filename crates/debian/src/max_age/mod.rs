//! Limits of the age of an archive's signed metadata, counted from its Date.
//!
//! Releases of stable suites have no Valid-Until: a host that has not read a newer one accepts each that was ever
//! signed. So a limit can be set: `max-age` of an `[[archive]]`, or `archive-max-age` for all others. Those of the
//! host's apt count for its own sources, too (sources.list(5), apt.conf(5); apt-pkg/deb/debmetaindex.cc,
//! debReleaseIndex::Load): `Valid-Until-Max` of the source, else `Acquire::Max-ValidTime::LABEL`, else
//! `Acquire::Max-ValidTime`, where `Check-Valid-Until` is not off.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Serialize, Serializer};

use super::apt_conf::AptMaxAges;
use super::apt_sources::{AptSource, ValidUntil};
use super::release::{Release, Rules, date_text};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::redact::redacted;
use longshore_core::value::BadValue;

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;
/// Shortest and longest limit: mirrors are updated every few hours, and ten years are more than a release has.
const BOUNDS: (u64, u64) = (HOUR, 3650 * DAY);
const WANTED: &str = "a span of time from 1h to 3650d, for example 14d or 36h, or none";

/// Limit of the age of an archive's metadata: a span from `1h` to `3650d`, or `none`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct MaxAge(Option<Duration>);

impl MaxAge {
    /// Returns the limit; None for no limit.
    pub fn duration(self) -> Option<Duration> {
        self.0
    }
}

impl FromStr for MaxAge {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if text == "none" {
            return Ok(Self(None));
        }
        // Months and years have no fixed length, and are refused.
        let span = text.parse::<Span>().ok();
        let span = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
        let seconds = span.and_then(|span| u64::try_from(span.as_secs()).ok());
        let seconds = seconds.filter(|seconds| (BOUNDS.0..=BOUNDS.1).contains(seconds));
        let seconds = seconds.ok_or_else(|| BadValue::new(text, WANTED))?;
        Ok(Self(Some(Duration::from_secs(seconds))))
    }
}

longshore_core::from_string!(MaxAge);

impl fmt::Display for MaxAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => f.write_str(&span_text(limit.as_secs())),
            None => f.write_str("none"),
        }
    }
}

impl Serialize for MaxAge {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Writes a span of seconds: `14d`, `1d12h`, `0s`.
fn span_text(seconds: u64) -> String {
    let parts = [(DAY, u64::MAX, "d"), (HOUR, 24, "h"), (60, 60, "m"), (1, 60, "s")];
    let parts = parts.map(|(unit, most, name)| (seconds / unit % most, name));
    let text: String = parts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, name)| format!("{number}{name}"))
        .collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Limits of one archive.
#[derive(Debug, Clone, Default)]
pub(super) struct AgeLimits {
    own: MaxAge,
    stated: Stated,
    apt: Arc<AptMaxAges>,
    /// Statement of the host's source.
    source: ValidUntil,
}

/// Place of longshore's own limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stated {
    /// `max-age` of an `[[archive]]`.
    InEntry,
    /// `archive-max-age`, for an `[[archive]]` without its own.
    ForEntry,
    /// `archive-max-age`, for a source of the host's apt.
    #[default]
    ForHost,
}

/// A limit, and the name of its setting.
struct AgeLimit {
    seconds: i64,
    setting: String,
    remedy: String,
    /// True where metadata without a Date is refused: apt accepts it.
    needs_date: bool,
}

impl AgeLimits {
    /// Returns the limits of an `[[archive]]`: its own, else the `default`.
    pub(super) fn of_entry(own: Option<MaxAge>, default: MaxAge) -> Self {
        let stated = if own.is_some() { Stated::InEntry } else { Stated::ForEntry };
        Self { own: own.unwrap_or(default), stated, ..Self::default() }
    }

    /// Returns the limits of a source of the host's apt.
    pub(super) fn of_host(default: MaxAge, apt: &Arc<AptMaxAges>, source: &AptSource) -> Self {
        let apt = Arc::clone(apt);
        Self { own: default, stated: Stated::ForHost, apt, source: source.valid_until.clone() }
    }

    /// Adds the limits of another entry for the same suite: of two `[[archive]]` the shorter counts, an `[[archive]]`
    /// decides for a source of the host, and options of a source count for all its entries, as in apt.
    pub(super) fn merge(&mut self, other: &Self) {
        match (self.stated == Stated::ForHost, other.stated == Stated::ForHost) {
            (true, true) => self.source.merge(&other.source),
            (false, false) if other.is_shorter_than(self) => *self = other.clone(),
            _ => {}
        }
    }

    fn is_shorter_than(&self, other: &Self) -> bool {
        self.own.0.is_some_and(|own| other.own.0.is_none_or(|other| own < other))
    }

    /// Checks the age of the verified Release of the suite at `url`, unless the archive is frozen.
    ///
    /// # Errors
    /// Exit code 13 where it is older than a limit, or has no Date while longshore's own settings limit its age.
    pub(super) fn check(&self, url: &str, release: &Release, rules: Rules) -> Result<(), Failure> {
        if rules.frozen {
            return Ok(());
        }
        let limits = [self.own_limit(), self.limit_of_apt(release.label.as_deref())];
        limits.iter().flatten().try_for_each(|limit| limit.check(url, release.date, rules.now))
    }

    fn own_limit(&self) -> Option<AgeLimit> {
        const CHECK: &str = "check the clock and the mirror";
        const NEVER: &str =
            "a suite whose Date never changes, as a release's own, needs max-age = \"none\"";
        let (setting, remedy) = match self.stated {
            Stated::InEntry => ("max-age", format!("raise max-age of this [[archive]]; {NEVER}")),
            Stated::ForEntry => (
                "archive-max-age",
                format!("raise archive-max-age, or give this [[archive]] its own max-age; {NEVER}"),
            ),
            Stated::ForHost => (
                "archive-max-age",
                format!("raise archive-max-age; {NEVER} in an [[archive]] of its own"),
            ),
        };
        let frozen = "for a mirror that is frozen on purpose give --archive-frozen";
        Some(AgeLimit {
            seconds: self.own.0?.as_secs().try_into().unwrap_or(i64::MAX),
            setting: setting.to_owned(),
            remedy: format!("{CHECK}, or {remedy}; {frozen}"),
            needs_date: true,
        })
    }

    fn limit_of_apt(&self, label: Option<&str>) -> Option<AgeLimit> {
        if !self.source.check.unwrap_or(self.apt.are_checked) {
            return None;
        }
        let (seconds, setting) = match self.source.max {
            0 => self.apt.max_age(label)?,
            max => (max, format!("Valid-Until-Max of {}", self.source.file.display())),
        };
        let remedy = format!(
            "check the clock and the mirror, or raise {setting}: apt refuses it, too; for a mirror that is frozen on \
             purpose give --archive-frozen"
        );
        Some(AgeLimit { seconds, setting, remedy, needs_date: false })
    }
}

impl AgeLimit {
    fn check(&self, url: &str, date: Option<i64>, now: u64) -> Result<(), Failure> {
        let (url, setting) = (redacted(url), &self.setting);
        let limit = span_text(self.seconds.try_into().unwrap_or(0));
        let cause = match date {
            None if !self.needs_date => return Ok(()),
            None => format!("{url} has no Date, and {setting} is {limit}"),
            Some(date) => {
                let age = i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(date);
                if age <= self.seconds {
                    return Ok(());
                }
                let (age, date) = (span_text(age.try_into().unwrap_or(0)), date_text(date));
                format!("{url} is of {date}, {age} old, and {setting} is {limit}")
            }
        };
        Err(Failure::new(FailureKind::Verification, cause).remedy(self.remedy.clone()))
    }
}

#[cfg(test)]
mod tests;
