//! Spans of time that are at least a second.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::values::BoundedDuration;
use longshore_core::value::BadValue;

/// A duration of at least a second, for the download and lease settings. Below that no server could
/// answer in time, and a builder would renew its claim more than four times a second.
///
/// A shorter one is refused in a flag or a variable, and raised to a second in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecondOrMore(BoundedDuration);

impl SecondOrMore {
    const LEAST: Duration = Duration::from_secs(1);

    /// Returns the duration.
    pub fn duration(self) -> Duration {
        self.0.duration().max(Self::LEAST)
    }
}

impl FromStr for SecondOrMore {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let given: BoundedDuration = text.parse()?;
        if given.duration() < Self::LEAST {
            return Err(BadValue::new(text, "a span of time from 1s to 1h"));
        }
        Ok(Self(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_from_a_second_on_is_no_shorter() {
        assert!("1s".parse::<SecondOrMore>().is_ok());
        for short in ["0s", "900ms"] {
            let refused = short.parse::<SecondOrMore>().expect_err("too short").to_string();
            assert!(refused.contains("from 1s"), "{refused}");
        }
    }
}
