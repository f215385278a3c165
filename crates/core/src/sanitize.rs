//! Escapes control characters in foreign text: the name of a process, or the output of a daemon or
//! device, could contain terminal sequences or fake log lines, or reorder what a reader sees.

use std::borrow::Cow;

/// Escapes control characters except newline and tab (`\u{1b}`).
pub fn printable(text: &str) -> Cow<'_, str> {
    written_out(text, |c| is_odd(c) && !matches!(c, '\n' | '\t'))
}

/// Escapes all control characters, for a part of a line.
pub fn in_line(text: &str) -> Cow<'_, str> {
    written_out(text, is_odd)
}

/// True for control characters, separators of lines, and marks of a text's direction (Unicode Standard
/// Annex 9).
fn is_odd(c: char) -> bool {
    let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders || matches!(c, '\u{2028}' | '\u{2029}')
}

fn written_out(text: &str, odd: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&odd) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if odd(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("nvidia-smi", "nvidia-smi", "nvidia-smi")]
    #[case("grün \u{1f980}", "grün \u{1f980}", "grün \u{1f980}")]
    #[case("a\x1b[2Jb", "a\\u{1b}[2Jb", "a\\u{1b}[2Jb")]
    #[case("a\rb\x7f\u{9b}", "a\\rb\\u{7f}\\u{9b}", "a\\rb\\u{7f}\\u{9b}")]
    #[case("a\n\tb", "a\n\tb", "a\\n\\tb")]
    #[case("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}", "a\\u{202e}b\\u{2066}")]
    #[case("a\u{2028}b", "a\\u{2028}b", "a\\u{2028}b")]
    #[case("", "", "")]
    fn what_a_terminal_would_obey_is_written_out(
        #[case] text: &str,
        #[case] lines: &str,
        #[case] part: &str,
    ) {
        assert_eq!(printable(text), lines);
        assert_eq!(in_line(text), part);
    }
}
