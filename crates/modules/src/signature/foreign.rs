//! Text from elsewhere, as it is quoted in messages.

use longshore_core::failure::Failure;

/// Maximum number of characters that are quoted.
const LONGEST: usize = 100;
/// Maximum number of characters of a failure that may quote them: it has a path and a digest, too.
const LONGEST_FAILURE: usize = 300;

/// Returns the first characters of a text from elsewhere.
pub(super) fn shortened(text: &str) -> String {
    cut(text, LONGEST)
}

/// Returns the first characters of a failure in one line.
pub(super) fn shortened_failure(failure: &Failure) -> String {
    cut(&failure.one_line(), LONGEST_FAILURE)
}

/// True if a text has no control characters but those that JSON permits between its values (RFC 8259, section 2):
/// written as a string of JSON, it then has at most twice its size.
pub(super) fn is_json_text(text: &str) -> bool {
    text.bytes().all(|byte| byte >= b' ' || b"\t\n\r".contains(&byte))
}

fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the place of a fault in JSON. The parser's own message would quote the text.
pub(super) fn place_of(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(shortened(&"\u{e4}".repeat(100)), "\u{e4}".repeat(100));
        assert_eq!(shortened(&"\u{e4}".repeat(101)), format!("{}...", "\u{e4}".repeat(100)));
    }
}
