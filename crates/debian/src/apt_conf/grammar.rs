//! Grammar of apt.conf: `Tag "value";`, `Tag { ... };`, comments, `#clear` and `#include`.

/// A statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    /// A value.
    Set {
        /// Name of all scopes, joined by `::`.
        name: String,
        /// Value.
        value: String,
    },
    /// `#clear NAME`: removes it, with all below.
    Clear(String),
    /// `#include FILE`, or a directory with a slash at its end.
    Include(String),
}

/// Directives, which are no comments.
const DIRECTIVES: [&str; 3] = ["clear", "include", "x-apt-configure-index"];
/// Depth of scopes and number of statements above which a file is not read further.
const DEEPEST: usize = 100;

/// Parses a file as apt does (ReadConfigFile). Also returns the reason where apt would refuse it; the
/// statements before that count, as in apt.
pub(super) fn parse(text: &str) -> (Vec<Statement>, Option<String>) {
    let mut made = Vec::new();
    let mut scopes: Vec<String> = Vec::new();
    let (mut buffer, mut in_comment) = (String::new(), false);
    for (index, line) in text.lines().enumerate() {
        let fragment = uncommented(line.replace('\t', "        ").trim(), &mut in_comment);
        let (mut start, mut in_quote) = (0, false);
        for (at, c) in fragment.char_indices() {
            if c == '"' {
                in_quote = !in_quote;
            }
            if in_quote || !matches!(c, '{' | ';' | '}') {
                continue;
            }
            append(&mut buffer, &fragment[start..at]);
            start = at + 1;
            if let Err(why) = close(&mut buffer, c, &mut scopes, &mut made) {
                return (made, Some(format!("line {}: {why}", index + 1)));
            }
        }
        append(&mut buffer, &fragment[start..]);
    }
    let problem = (!buffer.is_empty()).then(|| "it ends within a statement".to_owned());
    (made, problem)
}

fn append(buffer: &mut String, part: &str) {
    let part = part.trim();
    if !buffer.is_empty() && !part.is_empty() {
        buffer.push(' ');
    }
    buffer.push_str(part);
}

/// Takes the comments off a line.
fn uncommented(line: &str, in_comment: &mut bool) -> String {
    let mut rest = line;
    if *in_comment {
        let Some((_, after)) = rest.split_once("*/") else { return String::new() };
        *in_comment = false;
        rest = after;
    }
    let quoted = |at: usize, text: &str| !text[..at].matches('"').count().is_multiple_of(2);
    if let Some((at, _)) = rest.match_indices("//").find(|(at, _)| !quoted(*at, rest)) {
        rest = &rest[..at];
    }
    let is_comment = |at: usize, text: &str| {
        !quoted(at, text) && !DIRECTIVES.iter().any(|name| text[at + 1..].starts_with(name))
    };
    if let Some((at, _)) = rest.match_indices('#').find(|(at, _)| is_comment(*at, rest)) {
        rest = &rest[..at];
    }
    let mut made = String::new();
    while let Some((at, _)) = rest.match_indices("/*").find(|(at, _)| !quoted(*at, rest)) {
        made.push_str(&rest[..at]);
        match rest[at + 2..].split_once("*/") {
            Some((_, after)) => rest = after,
            None => {
                *in_comment = true;
                return made;
            }
        }
    }
    made + rest
}

/// Ends a statement at `end`: a semicolon, or a brace.
fn close(
    buffer: &mut String,
    end: char,
    scopes: &mut Vec<String>,
    made: &mut Vec<Statement>,
) -> Result<(), &'static str> {
    let text = std::mem::take(buffer);
    if text.is_empty() {
        match end {
            '{' => return Err("a block begins without a name"),
            '}' => drop(scopes.pop()),
            _ => {}
        }
        return Ok(());
    }
    let (mut tag, rest) = word(&text).ok_or("the name is malformed")?;
    let mut value = match rest.is_empty() {
        true => None,
        false => {
            let (value, more) = word(rest).ok_or("the value is malformed")?;
            if !more.is_empty() {
                return Err("something follows the value");
            }
            Some(value)
        }
    };
    if value.is_none() && end != '{' {
        value = Some(std::mem::take(&mut tag));
    }
    if let Some(directive) = tag.strip_prefix('#') {
        if !scopes.is_empty() {
            return Err("a directive stands in a block");
        }
        let value = value.unwrap_or_default();
        match directive {
            "clear" => made.push(Statement::Clear(value)),
            "include" => made.push(Statement::Include(value)),
            "x-apt-configure-index" => {}
            _ => return Err("the directive is not known"),
        }
        return Ok(());
    }
    let parent = scopes.last().map(String::as_str).unwrap_or_default();
    let name = match (parent, tag.as_str()) {
        ("", tag) => tag.to_owned(),
        (parent, tag) => format!("{parent}::{tag}"),
    };
    if end == '{' {
        if scopes.len() >= DEEPEST {
            return Err("its blocks are too deep");
        }
        scopes.push(name.clone());
    }
    if let Some(value) = value {
        made.push(Statement::Set { name, value });
    }
    if end == '}' {
        scopes.pop();
    }
    Ok(())
}

/// Returns the first word, without its quotation marks and with `%XX` resolved, and the text after it
/// (strutl.cc, ParseQuoteWord).
fn word(text: &str) -> Option<(String, &str)> {
    let (mut in_quote, mut brackets, mut end) = (false, 0_usize, text.len());
    for (at, c) in text.char_indices() {
        match c {
            '"' => in_quote = !in_quote,
            '[' if !in_quote => brackets += 1,
            ']' if !in_quote => brackets = brackets.saturating_sub(1),
            c if c.is_ascii_whitespace() && !in_quote && brackets == 0 => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    if in_quote || brackets > 0 {
        return None;
    }
    let word = text[..end].replace('"', "");
    Some((word, text[end..].trim_start()))
}
