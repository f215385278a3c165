//! Calendar days (UTC), without a time: when a driver branch ends, when a bulletin was published.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::value::BadValue;

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Day of the Gregorian calendar, `2026-11-28`; earlier ones are less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Day {
    year: u16,
    month: u8,
    day: u8,
}

impl Default for Day {
    /// Returns the first day that can be written, 1970-01-01.
    fn default() -> Self {
        Self { year: 1970, month: 1, day: 1 }
    }
}

impl Day {
    /// Returns the day of this machine's clock.
    pub fn today() -> Self {
        // A clock before 1970 is the first day: `longshore doctor` reports such a clock.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::of_unix(since.as_secs())
    }

    /// Returns the day as one number, 20261128, which is greater for a later day.
    pub fn number(self) -> u64 {
        u64::from(self.year) * 10_000 + u64::from(self.month) * 100 + u64::from(self.day)
    }

    /// Returns the day of a time, in seconds since 1970-01-01 00:00 UTC.
    pub fn of_unix(seconds: u64) -> Self {
        let (mut days, mut year) = (seconds / DAY, 1970_u16);
        while year < u16::MAX && days >= days_of_year(year) {
            days -= days_of_year(year);
            year += 1;
        }
        let mut month = 1;
        while month < 12 && days >= u64::from(days_of_month(year, month)) {
            days -= u64::from(days_of_month(year, month));
            month += 1;
        }
        let day = u8::try_from(days + 1).unwrap_or(u8::MAX).min(days_of_month(year, month));
        Self { year, month, day }
    }
}

fn is_leap(year: u16) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u16) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u16, month: u8) -> u8 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl FromStr for Day {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::new(text, "a day such as 2026-11-28");
        let parts: Vec<&str> = text.split('-').collect();
        let [year, month, day] = parts[..] else { return Err(bad()) };
        let digits = |text: &str, count| {
            text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(year, 4) || !digits(month, 2) || !digits(day, 2) {
            return Err(bad());
        }
        let year: u16 = year.parse().map_err(|_| bad())?;
        let month: u8 = month.parse().map_err(|_| bad())?;
        let day: u8 = day.parse().map_err(|_| bad())?;
        let is_day = (1..=12).contains(&month) && (1..=days_of_month(year, month)).contains(&day);
        if year >= 1970 && is_day { Ok(Self { year, month, day }) } else { Err(bad()) }
    }
}

crate::from_string!(Day);

impl From<Day> for String {
    fn from(day: Day) -> Self {
        day.to_string()
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, "1970-01-01")]
    #[case(86_399, "1970-01-01")]
    #[case(951_782_400, "2000-02-29")]
    #[case(1_767_225_599, "2025-12-31")]
    #[case(1_767_225_600, "2026-01-01")]
    #[case(1_795_824_000, "2026-11-28")]
    fn days_of_times(#[case] seconds: u64, #[case] day: &str) {
        assert_eq!(Day::of_unix(seconds).to_string(), day);
    }

    #[rstest]
    #[case("2026-02-28", true)]
    #[case("2028-02-29", true)]
    #[case("2026-02-29", false)]
    #[case("2026-13-01", false)]
    #[case("2026-00-01", false)]
    #[case("2026-01-00", false)]
    #[case("2026-1-1", false)]
    #[case("+026-01-01", false)]
    #[case("1969-12-31", false)]
    #[case("2026-01-01T00:00:00Z", false)]
    #[case("", false)]
    fn texts(#[case] text: &str, #[case] is_day: bool) {
        let parsed: Result<Day, BadValue> = text.parse();
        assert_eq!(parsed.map(|day| day.to_string()).ok().as_deref(), is_day.then_some(text));
    }

    #[test]
    fn days_are_in_order() {
        let day = |text: &str| -> Day { text.parse().unwrap() };
        assert!(day("2026-06-30") < day("2026-07-01"));
        assert!(day("2025-12-31") < day("2026-01-01"));
        assert_eq!(day("2026-01-09").number(), 20_260_109);
    }
}
