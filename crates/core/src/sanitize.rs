//! Escapes control characters in foreign text: the name of a process, or the output of a daemon or
//! device, could contain terminal sequences or fake log lines.

use std::borrow::Cow;

/// Escapes control characters except newline and tab (`\u{1b}`).
pub fn printable(text: &str) -> Cow<'_, str> {
    written_out(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Escapes all control characters, for a part of a line.
pub fn in_line(text: &str) -> Cow<'_, str> {
    written_out(text, char::is_control)
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
