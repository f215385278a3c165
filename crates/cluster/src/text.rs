//! Text from elsewhere, made safe for a log line or a value.

/// Escapes control characters, and cuts the text after `most` characters.
pub(crate) fn in_line(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(most) {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if text.chars().nth(most).is_some() {
        shown.push_str("...");
    }
    shown
}

/// True for a name of an object: a DNS subdomain (RFC 1123), so that it is one part of a path.
pub fn is_name(name: &str) -> bool {
    let fits = |part: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = part.as_bytes();
        let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner)
    };
    name.len() <= 253 && name.split('.').all(fits)
}

/// Length of the longest version of an object (an API server's is a number of 20 digits at most), and of a UID (36)
/// beside it in a lease's mark.
const LONGEST_VERSION: usize = 64;

/// True for a version of an object: of bounded length, and of an API server's characters.
pub(crate) fn is_version(text: &str) -> bool {
    (1..=LONGEST_VERSION).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// Length of the longest value of a label.
const LONGEST_LABEL: usize = 63;

/// Returns the value of a label: other characters than letters, digits, `-`, `_` and `.` are replaced by
/// `_`, and it begins and ends with a letter or digit. None where nothing is left.
pub(crate) fn label_value(text: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: char| !c.is_ascii_alphanumeric();
    let replaced: String = text.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    let begun = replaced.trim_start_matches(ends);
    let value = begun.get(..LONGEST_LABEL).unwrap_or(begun).trim_end_matches(ends);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_s_value_is_made_valid_or_left_out() {
        let long = "a".repeat(62) + "-b";
        for (text, value) in [
            ("535.261.03", Some("535.261.03")),
            ("in-use", Some("in-use")),
            ("a b/c\u{1b}", Some("a_b_c")),
            ("-._a_.-", Some("a")),
            (&long, Some(&long[..62])),
            ("\u{e9}", None),
            ("", None),
        ] {
            assert_eq!(label_value(text).as_deref(), value, "{text}");
        }
    }

    #[test]
    fn a_line_is_escaped_and_cut() {
        assert_eq!(in_line("no\n\x1b[2J", 99), "no\\n\\u{1b}[2J");
        assert_eq!(in_line("abcd", 4), "abcd");
        assert_eq!(in_line("abcde", 4), "abcd...");
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        for name in ["node-1", "ip-10-0-0-1.ec2.internal", "1"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in ["", "a/b", "..", "a?b", "a b", "A", "-a", "a-", "a..b", "a%2fb", "ä", &long] {
            assert!(!is_name(name), "{name}");
        }
    }
}
