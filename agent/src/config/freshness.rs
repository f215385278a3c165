//! Settings against outdated drivers: signatures prove who made something, and not that it is current.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::DriverSelector;
use longshore_core::digest::is_sha256;
use longshore_core::from_string;
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

/// Seconds of a day; a year has 365 of them here.
const DAY: u64 = 86_400;

/// Span from an hour to ten years, such as `12h`, `7d`, `30d12h` or `1y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct LongSpan(Duration);

impl LongSpan {
    /// Returns the duration.
    pub fn duration(self) -> Duration {
        self.0
    }

    /// Parses a span of at most a year.
    ///
    /// # Errors
    /// If it is none, or longer.
    pub fn within_a_year(text: &str) -> Result<Self, BadValue> {
        let span: Self = text.parse()?;
        match span.0 <= Duration::from_secs(365 * DAY) {
            true => Ok(span),
            false => Err(BadValue::new(text, "a span of time from 1h to 1y, for example 7d")),
        }
    }
}

/// Returns the seconds of a span; None where it has parts of no fixed length (months), or is negative.
fn seconds_of(span: &jiff::Span) -> Option<u64> {
    if span.is_negative() || span.get_months() != 0 {
        return None;
    }
    let parts = [
        (i64::from(span.get_years()), 365 * DAY),
        (i64::from(span.get_weeks()), 7 * DAY),
        (i64::from(span.get_days()), DAY),
        (i64::from(span.get_hours()), 3600),
        (span.get_minutes(), 60),
        (span.get_seconds(), 1),
    ];
    parts.into_iter().try_fold(0_u64, |sum, (count, unit)| {
        sum.checked_add(u64::try_from(count).ok()?.checked_mul(unit)?)
    })
}

impl FromStr for LongSpan {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let wanted = "a span of time from 1h to 10y, for example 12h, 7d or 1y";
        let span: Option<jiff::Span> = text.parse().ok();
        let seconds = span.as_ref().and_then(seconds_of);
        let seconds = seconds.filter(|seconds| (3600..=3650 * DAY).contains(seconds));
        let seconds = seconds.ok_or_else(|| BadValue::new(text, wanted))?;
        Ok(Self(Duration::from_secs(seconds)))
    }
}

from_string!(DriverMinimum, SetDigest, LongSpan);

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
    #[case("1h", Some(3600))]
    #[case("7d", Some(604_800))]
    #[case("1w", Some(604_800))]
    #[case("1d12h", Some(129_600))]
    #[case("1y", Some(31_536_000))]
    #[case("10y", Some(315_360_000))]
    #[case("59m", None)]
    #[case("11y", None)]
    #[case("1mo", None)]
    #[case("-7d", None)]
    #[case("7", None)]
    #[case("", None)]
    fn long_spans(#[case] text: &str, #[case] seconds: Option<u64>) {
        assert_eq!(text.parse::<LongSpan>().ok().map(|span| span.duration().as_secs()), seconds);
        let within = seconds.filter(|seconds| *seconds <= 31_536_000);
        let parsed = LongSpan::within_a_year(text).ok();
        assert_eq!(parsed.map(|span| span.duration().as_secs()), within);
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
