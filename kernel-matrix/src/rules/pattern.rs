//! Patterns over names and versions, in rules and filters.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// A name, a version, a beginning of a version, or a range of driver branches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// `6.12`: this text, or a version of it (`6.12.117`).
    Exact(String),
    /// `7.*`: any text that begins so.
    Begins(String),
    /// `..515`, `535..` or `450..535`: a first number from the first (inclusive) and below the second.
    Range {
        /// Lowest number.
        from: u32,
        /// Number above the highest.
        below: u32,
    },
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// It is empty, a range whose ends are no numbers, or one without numbers in it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some((from, below)) = text.split_once("..") {
            let end = |end: &str, open: u32| match end {
                "" => Ok(open),
                end => end.parse().map_err(|_| format!("`{text}` is not a range of branches")),
            };
            let (from, below) = (end(from, 0)?, end(below, u32::MAX)?);
            if from >= below || (from, below) == (0, u32::MAX) {
                return Err(format!("the range `{text}` has no ends, or nothing between them"));
            }
            return Ok(Self::Range { from, below });
        }
        match text.strip_suffix('*') {
            Some(begin) if !begin.contains('*') => Ok(Self::Begins(begin.to_owned())),
            None if !text.is_empty() && !text.contains('*') => Ok(Self::Exact(text.to_owned())),
            _ => Err(format!("`{text}` is no pattern: `*` stands at the end only")),
        }
    }

    /// True if `value` fits.
    pub(crate) fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value
                .strip_prefix(text.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
            Self::Begins(begin) => value.starts_with(begin.as_str()),
            Self::Range { from, below } => {
                let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<u32>().is_ok_and(|number| (*from..*below).contains(&number))
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => f.write_str(text),
            Self::Begins(text) => write!(f, "{text}*"),
            Self::Range { from: 0, below } => write!(f, "..{below}"),
            Self::Range { from, below: u32::MAX } => write!(f, "{from}.."),
            Self::Range { from, below } => write!(f, "{from}..{below}"),
        }
    }
}

/// Alternatives: one pattern or a list.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}", _0.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))]
pub(crate) struct Patterns(Vec<Pattern>);

impl Patterns {
    /// Parses a list separated by commas.
    ///
    /// # Errors
    /// One of them is no pattern.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        text.split(',').map(Pattern::parse).collect::<Result<_, _>>().map(Self)
    }

    /// True if one of them fits.
    pub(crate) fn matches(&self, value: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(value))
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a text or a list of texts")]
        enum OneOrMany {
            One(String),
            Many(Vec<String>),
        }
        let texts = match OneOrMany::deserialize(from)? {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        };
        if texts.is_empty() {
            return Err(serde::de::Error::custom("an empty list matches nothing"));
        }
        let patterns = texts.iter().map(|text| Pattern::parse(text)).collect::<Result<_, _>>();
        patterns.map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_components_beginnings_and_ranges() {
        for (pattern, value, expected) in [
            ("6.1", "6.1.0-56-amd64", true),
            ("6.1", "6.12.117+deb13-amd64", false),
            ("bookworm", "bookworm-security", false),
            ("bookworm*", "bookworm-security", true),
            ("7.*", "7.3.4+deb13-amd64", true),
            ("7.*", "71.2", false),
            ("..515", "470", true),
            ("..515", "515", false),
            ("535..", "535.261.03", true),
            ("450..535", "450", true),
            ("450..535", "535", false),
            ("450..", "generic", false),
            ("550", "550.163.01", true),
        ] {
            let parsed = Pattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(value), expected, "{pattern} {value}");
            assert_eq!(parsed.to_string(), pattern);
        }
    }

    #[test]
    fn texts_that_could_match_nothing_are_refused() {
        for text in ["", "..", "535..450", "a..b", "535..535", "a*b", "**"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
        assert!(Patterns::parse("6.12,,7.*").is_err());
        assert!(Patterns::parse("6.12,7.*").unwrap().matches("7.2.1"));
    }
}
