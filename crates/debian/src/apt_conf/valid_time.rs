//! Limits of the age of archives' metadata in apt's configuration, as apt-pkg/deb/debmetaindex.cc reads them
//! (debReleaseIndex::Load).

use std::collections::BTreeMap;
use std::path::Path;

use super::{Setting, Settings};
use crate::control;

const NAME: &str = "Acquire::Max-ValidTime";

/// Limits of apt's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AptMaxAges {
    /// False where apt compares no dates (`Acquire::Check-Valid-Until`).
    pub(crate) are_checked: bool,
    /// The limit of all archives.
    all: Option<AptMaxAge>,
    /// Label, in small letters, -> its limit.
    labels: BTreeMap<String, AptMaxAge>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AptMaxAge {
    /// 0 for none.
    seconds: i64,
    /// The setting, with its file.
    setting: String,
}

impl AptMaxAges {
    /// Reads apt's configuration below `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let values = Settings::read(root).values;
        let checks = values.get("acquire::check-valid-until").map(|set| set.value.as_str());
        let limit = |name: &str, setting: &Setting| {
            let seconds = integer(&setting.value)?;
            let setting = format!("{name} of {}", setting.file.display());
            Some(AptMaxAge { seconds, setting })
        };
        let key = NAME.to_ascii_lowercase();
        let below = format!("{key}::");
        let labels = values.iter().filter_map(|(name, setting)| {
            let label = name.strip_prefix(&below)?;
            Some((label.to_owned(), limit(&format!("{NAME}::{label}"), setting)?))
        });
        Self {
            are_checked: checks.is_none_or(|value| control::truth(value, true)),
            all: values.get(&key).and_then(|setting| limit(NAME, setting)),
            labels: labels.collect(),
        }
    }

    /// Returns the limit of archives with this Label in seconds, and the setting with its file; None where there is
    /// none.
    pub(crate) fn max_age(&self, label: Option<&str>) -> Option<(i64, String)> {
        let own = label.and_then(|label| self.labels.get(&label.to_ascii_lowercase()));
        let limit = own.or(self.all.as_ref()).filter(|limit| limit.seconds != 0)?;
        Some((limit.seconds, limit.setting.clone()))
    }
}

/// Parses a number as strtol(3) does with base 0, which ignores what follows; None where no digit begins it.
fn integer(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let hex = digits.strip_prefix("0x").or(digits.strip_prefix("0X"));
    let hex = hex.filter(|hex| hex.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (digits, radix) = match hex {
        Some(hex) => (hex, 16),
        None if digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let digits = digits.get(..end).filter(|digits| !digits.is_empty())?;
    Some(i64::from_str_radix(digits, radix).unwrap_or(i64::MAX).saturating_mul(sign))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("86400", Some(86_400))]
    #[case(" 86400s", Some(86_400))]
    #[case("0x10", Some(16))]
    #[case("0x", Some(0))]
    #[case("010", Some(8))]
    #[case("09", Some(0))]
    #[case("-5", Some(-5))]
    #[case("99999999999999999999", Some(i64::MAX))]
    #[case("", None)]
    #[case("never", None)]
    fn numbers_are_those_of_strtol(#[case] text: &str, #[case] number: Option<i64>) {
        assert_eq!(integer(text), number);
    }
}
