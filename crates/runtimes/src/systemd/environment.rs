//! Files of `EnvironmentFile=`.

use super::words::Variables;

/// Parses such a file (systemd.exec(5), src/basic/env-file.c): assignments with comments, quotes and
/// continued lines.
pub(crate) fn parse(text: &str) -> Variables {
    let mut found = Variables::new();
    let mut rest = text;
    while !rest.is_empty() {
        let line = rest.trim_start_matches(['\n', '\r', ' ', '\t']);
        if line.starts_with(['#', ';']) {
            rest = after_comment(line);
            continue;
        }
        let end = line.find(['=', '\n']).unwrap_or(line.len());
        if !line[end..].starts_with('=') {
            rest = &line[end..];
            rest = rest.strip_prefix('\n').unwrap_or(rest);
            continue;
        }
        let (value, left) = value(&line[end + 1..]);
        found.insert(line[..end].trim_end().to_owned(), value);
        rest = left;
    }
    found
}

/// Returns the text after a comment, which a backslash at its end continues.
fn after_comment(mut text: &str) -> &str {
    loop {
        let Some((line, rest)) = text.split_once('\n') else { return "" };
        if !line.trim_end_matches('\r').ends_with('\\') {
            return rest;
        }
        text = rest;
    }
}

/// Reads a value up to the end of its line; returns the text after it, too.
fn value(text: &str) -> (String, &str) {
    let (mut made, mut quote) = (String::new(), None);
    // Length without the unquoted blanks at its end, which do not count.
    let mut kept = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None, '\n') => {
                made.truncate(kept);
                return (made, &text[at + 1..]);
            }
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => made.push(c),
            (_, '\\') => match chars.next() {
                None | Some((_, '\n')) => {}
                Some((_, c)) => {
                    if quote.is_some() && !matches!(c, '"' | '\\' | '`' | '$') {
                        made.push('\\');
                    }
                    made.push(c);
                }
            },
            (None, c) if c.is_ascii_whitespace() => {
                if !made.is_empty() {
                    made.push(c);
                }
                continue;
            }
            (_, c) => made.push(c),
        }
        kept = made.len();
    }
    made.truncate(kept);
    (made, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("A=b\nB = c d \n", &[("A", "b"), ("B", "c d")])]
    #[case("# c \\\nA=1\n; d\nB=2", &[("B", "2")])]
    #[case("A=\"x y\" 'z  '\n", &[("A", "x y z  ")])]
    #[case("A=a\\\nb\nB=\"c\nd\"", &[("A", "ab"), ("B", "c\nd")])]
    #[case("nonsense\nA=", &[("A", "")])]
    #[case(r#"A="\$x \q""#, &[("A", "$x \\q")])]
    fn assignments(#[case] text: &str, #[case] wanted: &[(&str, &str)]) {
        let found = parse(text);
        let found: Vec<_> = found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(found, wanted);
    }
}
