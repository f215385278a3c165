//! Errors of a configuration file, with line and key.

use std::path::Path;

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::redact::redacted_text;

use crate::nearest::meant;

/// Error in a TOML text, with its position.
pub(super) struct Malformed {
    line: Option<usize>,
    key: Option<String>,
    message: String,
}

impl Malformed {
    pub(super) fn new(text: &str, error: &toml::de::Error) -> Self {
        let before = error.span().and_then(|span| text.get(..span.start));
        let key = error.span().and_then(|span| key_at(text, span.start));
        Self {
            line: before.map(|b| b.matches('\n').count() + 1),
            message: redacted_text(&clearer(error.message(), key.as_deref())).into_owned(),
            key,
        }
    }

    pub(super) fn into_failure(self, path: &Path) -> Failure {
        let line = self.line.map_or_else(String::new, |line| format!(", line {line}"));
        let key = self.key.map_or_else(String::new, |key| format!(", key {key}"));
        let (path, message) = (path.display(), self.message);
        let cause = format!("configuration file {path}{line}{key}: {message}");
        Failure::new(FailureKind::Usage, cause)
            .remedy("correct the file; `longshore run --help` lists every setting")
    }
}

/// Returns serde's message with the correction of frequent mistakes: a misspelt key, a number or `true` for a text, a
/// table for a list of tables.
fn clearer(message: &str, key: Option<&str>) -> String {
    if let Some((name, known)) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'))
    {
        let meant = meant(name, known.split('`').skip(1).step_by(2));
        let meant = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
        return format!("unknown field `{name}`{meant}");
    }
    let correction = match (message.strip_prefix("invalid type: "), key) {
        (Some(given), _) if given.ends_with("expected a string") => {
            given.split('`').nth(1).map(|value| format!("write \"{value}\""))
        }
        (Some("map, expected a sequence"), Some(key)) => Some(format!("write [[{key}]]")),
        _ => None,
    };
    correction.map_or_else(|| message.to_owned(), |way| format!("{message}; {way}"))
}

/// Returns the key whose value holds the byte at `offset`, or its table: the nearest `key =`,
/// `[table]` or `[[table]]` at or above its line.
fn key_at(text: &str, offset: usize) -> Option<String> {
    let end = text.get(offset..)?.find('\n').map_or(text.len(), |n| offset + n);
    text.get(..end)?.lines().rev().find_map(key_of)
}

/// Returns the key or the table that a line begins.
fn key_of(line: &str) -> Option<String> {
    let line = line.trim();
    let key = match line.strip_prefix('[') {
        Some(table) => table.trim_start_matches('[').split(']').next()?,
        None => line.split_once('=')?.0,
    };
    is_key(key.trim()).then(|| key.trim().to_owned())
}

fn is_key(text: &str) -> bool {
    let quoted = |quote: char| text.len() > 1 && text.starts_with(quote) && text.ends_with(quote);
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    quoted('"') || quoted('\'') || (!text.is_empty() && text.chars().all(bare))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a = 1\nb = 2\n", 6, Some("b"))]
    #[case("a = 1\n[[t]]\n", 6, Some("t"))]
    #[case("a = 1\n[t.u]\nb = 2\n", 8, Some("t.u"))]
    #[case("\"a b\" = 1\n", 8, Some("\"a b\""))]
    #[case("a = [\n  \"b=c\",\n]\n", 8, Some("a"))]
    #[case("a = [\n  # b = c\n  1,\n]\n", 18, Some("a"))]
    #[case("= = =\n", 0, None)]
    #[case("\u{e9}", 1, None)]
    #[case("", 0, None)]
    fn the_key_of_a_place(#[case] text: &str, #[case] offset: usize, #[case] wanted: Option<&str>) {
        assert_eq!(key_at(text, offset).as_deref(), wanted);
    }
}
