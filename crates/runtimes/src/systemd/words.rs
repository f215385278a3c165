//! Words of command lines and of environments: quotes, escapes, specifiers, variables.

use std::collections::BTreeMap;

/// Size limit of a command line after its variables were put in.
const MOST: usize = 1 << 17;

/// Variables by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Splits a value into words (systemd's extract-word.c with EXTRACT_UNQUOTE and EXTRACT_CUNESCAPE): blanks
/// separate, quotes of both kinds keep them, and escapes are those of C. None for a quote that is not
/// closed or an escape that is none: systemd leaves such a line out.
pub(super) fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, c) if c.is_ascii_whitespace() => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if c == open => quote = None,
            (_, '\\') => unescape(&mut chars, word.get_or_insert_default())?,
            (_, c) => push(word.get_or_insert_default(), c),
        }
    }
    if quote.is_some() {
        return None;
    }
    words.extend(word);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Some(words.into_iter().map(text).collect())
}

fn push(word: &mut Vec<u8>, c: char) {
    word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn unescape(chars: &mut std::str::Chars<'_>, word: &mut Vec<u8>) -> Option<()> {
    let c = chars.next()?;
    match c {
        'a' => word.push(7),
        'b' => word.push(8),
        'f' => word.push(12),
        'n' => word.push(b'\n'),
        'r' => word.push(b'\r'),
        't' => word.push(b'\t'),
        'v' => word.push(11),
        's' => word.push(b' '),
        '\\' | '"' | '\'' => push(word, c),
        // A separator of commands by itself, which stays marked as an escaped one.
        ';' => word.extend_from_slice(b"\\;"),
        'x' => word.push(u8::try_from(number(chars, 2, 16)?).ok()?),
        'u' => push(word, char::from_u32(number(chars, 4, 16)?)?),
        'U' => push(word, char::from_u32(number(chars, 8, 16)?)?),
        '0'..='3' => {
            let rest = number(chars, 2, 8)?;
            word.push(u8::try_from(c.to_digit(8)? * 64 + rest).ok()?);
        }
        _ => return None,
    }
    Some(())
}

fn number(chars: &mut std::str::Chars<'_>, digits: usize, base: u32) -> Option<u32> {
    (0..digits).try_fold(0, |sum: u32, _| Some(sum * base + chars.next()?.to_digit(base)?))
}

/// Resolves the specifiers of a unit that are the same on every host; others stay as they are written.
pub(super) fn specified(text: &str, unit: &str) -> String {
    let name = unit.rsplit_once('.').map_or(unit, |(name, _)| name);
    let (prefix, instance) = name.split_once('@').unwrap_or((name, ""));
    let mut made = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            made.push(c);
            continue;
        }
        match chars.next() {
            Some('%') => made.push('%'),
            Some('n') => made.push_str(unit),
            Some('N') => made.push_str(name),
            Some('p') => made.push_str(prefix),
            Some('i' | 'I') => made.push_str(instance),
            Some('t') => made.push_str("/run"),
            Some('S') => made.push_str("/var/lib"),
            Some('C') => made.push_str("/var/cache"),
            Some('L') => made.push_str("/var/log"),
            Some('E') => made.push_str("/etc"),
            Some('h') => made.push_str("/root"),
            Some('u' | 'g') => made.push_str("root"),
            Some('U' | 'G') => made.push('0'),
            Some(other) => made.extend(['%', other]),
            None => made.push('%'),
        }
    }
    made
}

/// Puts variables into the words after the first (systemd.service(5)): a word `$NAME` becomes as many words
/// as the value has, `${NAME}` is replaced within a word, and `$$` is a dollar sign. None above the size
/// limit.
pub(super) fn expanded(words: Vec<String>, variables: &Variables) -> Option<Vec<String>> {
    let (mut made, mut size) = (Vec::new(), 0);
    for (index, word) in words.into_iter().enumerate() {
        let new = match word.strip_prefix('$').filter(|name| is_name(name)) {
            _ if index == 0 => vec![word],
            Some(name) => {
                let value = variables.get(name).map(String::as_str).unwrap_or_default();
                split(value)
                    .unwrap_or_else(|| value.split_ascii_whitespace().map(str::to_owned).collect())
            }
            None => vec![replaced(&word, variables)],
        };
        size += new.iter().map(|word| word.len() + 1).sum::<usize>();
        if size > MOST {
            return None;
        }
        made.extend(new);
    }
    Some(made)
}

fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| is_part(c) && !c.is_ascii_digit()) && name.chars().all(is_part)
}

fn replaced(word: &str, variables: &Variables) -> String {
    let (mut made, mut rest) = (String::new(), word);
    while let Some(at) = rest.find('$') {
        made.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let braced = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        match braced.filter(|(name, _)| is_name(name)) {
            _ if rest.starts_with('$') => {
                made.push('$');
                rest = &rest[1..];
            }
            Some((name, after)) => {
                made.push_str(variables.get(name).map(String::as_str).unwrap_or_default());
                rest = after;
            }
            None => made.push('$'),
        }
        if made.len() > MOST {
            break;
        }
    }
    made + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a  b\tc", Some(vec!["a", "b", "c"]))]
    #[case(r#""a b" 'c "d"' e"f g"h"#, Some(vec!["a b", "c \"d\"", "ef gh"]))]
    #[case(r"a\x20b\tc \\ \101 \u00e9", Some(vec!["a b\tc", "\\", "A", "é"]))]
    #[case(r#""" ''"#, Some(vec!["", ""]))]
    #[case(r"a \; b", Some(vec!["a", "\\;", "b"]))]
    #[case("\"a", None)]
    #[case(r"a\q", None)]
    #[case("a\\", None)]
    fn words(#[case] text: &str, #[case] wanted: Option<Vec<&str>>) {
        let wanted = wanted.map(|words| words.into_iter().map(str::to_owned).collect());
        assert_eq!(split(text), wanted);
    }

    #[rstest]
    #[case("$OPTS", &["-a", "b c"])]
    #[case("$NONE", &[])]
    #[case("x${OPTS}y", &["x-a 'b c'y"])]
    #[case("${NONE}", &[""])]
    #[case("$OPTS/x", &["$OPTS/x"])]
    #[case("$$OPTS", &["$OPTS"])]
    #[case("${OPTS", &["${OPTS"])]
    fn variables(#[case] word: &str, #[case] wanted: &[&str]) {
        let variables = [("OPTS".to_owned(), "-a 'b c'".to_owned())].into();
        let made = expanded(vec!["/bin/x".to_owned(), word.to_owned()], &variables);
        assert_eq!(made.expect("small")[1..], *wanted);
    }

    #[test]
    fn an_expansion_is_bounded() {
        let variables = [("A".to_owned(), "x".repeat(1 << 16))].into();
        assert_eq!(expanded(vec!["${A}".to_owned(); 9], &variables), None);
        assert_eq!(expanded(vec!["x".to_owned(), "${A}".repeat(99)], &variables), None);
    }

    #[test]
    fn specifiers_of_every_host_are_resolved() {
        let made = specified("%n %N %p %i %t 100%% %H %", "a@b.service");
        assert_eq!(made, "a@b.service a@b a b /run 100% %H %");
    }
}
