//! Edits of JSON text that keep every byte but those of the edited value: the text is edited at the places
//! that the parser names, and not written anew.

use jsonc_parser::ParseOptions;
use jsonc_parser::ast::{Object, ObjectProp, Value as Node};
use jsonc_parser::common::{Range, Ranged};
use serde_json::Value;

/// Byte order mark.
const MARK: char = '\u{feff}';

/// Text of a file that has nothing but the flag.
fn fresh(outer: &str, inner: &str) -> String {
    format!("{{\n  \"{outer}\": {{\n    \"{inner}\": true\n  }}\n}}\n")
}

/// Reads a file of JSON as docker does: a byte order mark is skipped, and an empty file is an empty
/// object.
///
/// # Errors
/// The reason, with line and column.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    let body = text.strip_prefix(MARK).unwrap_or(text);
    if body.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_json::from_str(body).map_err(|error| {
        let lenient = jsonc_parser::parse_to_ast(body, &Default::default(), &lenient());
        let why = if lenient.is_ok() { " (comments and trailing commas are no JSON)" } else { "" };
        format!("{error}{why}")
    })
}

fn lenient() -> ParseOptions {
    ParseOptions { allow_comments: true, allow_trailing_commas: true, ..strict() }
}

fn strict() -> ParseOptions {
    ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// Sets `outer.inner` to true.
///
/// # Errors
/// The reason why the text is not edited.
pub(crate) fn with_flag(text: &str, outer: &str, inner: &str) -> Result<String, String> {
    let body = text.strip_prefix(MARK).unwrap_or(text);
    if body.trim().is_empty() {
        // A blank of another kind than JSON's is one to docker while it is alone in the file.
        let is_blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
        let kept = if body.chars().all(is_blank) { text } else { &text[..text.len() - body.len()] };
        return Ok(format!("{kept}{}", fresh(outer, inner)));
    }
    let parsed = jsonc_parser::parse_to_ast(body, &Default::default(), &strict());
    let root = parsed.map_err(|error| error.to_string())?.value;
    let Some(Node::Object(object)) = &root else { return Err("it is no object".to_owned()) };
    let edited = set(body, object, outer, inner)?;
    let mark = &text[..text.len() - body.len()];
    verified(text, format!("{mark}{edited}"), outer, inner)
}

fn set(body: &str, object: &Object<'_>, outer: &str, inner: &str) -> Result<String, String> {
    let Some(property) = only(object, outer)? else {
        return Ok(with_last(body, object, outer, Some(inner)));
    };
    let Node::Object(flags) = &property.value else {
        // null is as good as absent; other types were refused before.
        return Ok(spliced(body, property.value.range(), &format!("{{\"{inner}\": true}}")));
    };
    Ok(match only(flags, inner)? {
        Some(flag) => spliced(body, flag.value.range(), "true"),
        None => with_last(body, flags, inner, None),
    })
}

/// Returns the property of this name. Refuses a name that occurs twice: readers differ in the one that
/// they take.
fn only<'a, 'b>(object: &'a Object<'b>, key: &str) -> Result<Option<&'a ObjectProp<'b>>, String> {
    let mut named = object.properties.iter().filter(|property| property.name.as_str() == key);
    match (named.next(), named.next()) {
        (_, Some(_)) => Err(format!("the key \"{key}\" occurs more than once")),
        (found, None) => Ok(found),
    }
}

/// Returns the text with one more property in an object: `key`, which is true, or an object in which
/// `below` is. It has a line of its own where the last one has.
fn with_last(body: &str, object: &Object<'_>, key: &str, below: Option<&str>) -> String {
    let newline = if body.contains("\r\n") { "\r\n" } else { "\n" };
    let Some(last) = object.properties.last() else {
        let text = match below {
            Some(_) => {
                format!("{{{newline}  {}{newline}}}", entry(key, below, Some((newline, "  "))))
            }
            None => format!("{{{}}}", entry(key, below, None)),
        };
        return spliced(body, object.range, &text);
    };
    let start = body[..last.range.start].rfind('\n').map_or(0, |end| end + 1);
    let indent = &body[start..last.range.start];
    let own_line = start > object.range.start && indent.trim().is_empty();
    let text = match own_line {
        true => format!(",{newline}{indent}{}", entry(key, below, Some((newline, indent)))),
        false => format!(", {}", entry(key, below, None)),
    };
    spliced(body, Range::new(last.range.end, last.range.end), &text)
}

/// Formats a property, in several lines where these are the line end and the indentation.
fn entry(key: &str, below: Option<&str>, lines: Option<(&str, &str)>) -> String {
    match (below, lines) {
        (None, _) => format!("\"{key}\": true"),
        (Some(below), None) => format!("\"{key}\": {{\"{below}\": true}}"),
        (Some(below), Some((newline, indent))) => {
            let deeper = format!("{newline}{indent}{indent}\"{below}\": true{newline}{indent}");
            format!("\"{key}\": {{{deeper}}}")
        }
    }
}

fn spliced(text: &str, range: Range, new: &str) -> String {
    format!("{}{new}{}", &text[..range.start], &text[range.end..])
}

/// Returns the edited text if its values are those of before, but for the flag.
fn verified(text: &str, edited: String, outer: &str, inner: &str) -> Result<String, String> {
    let mut wanted = parse(text)?;
    if wanted[outer].is_null() {
        wanted[outer] = Value::Object(serde_json::Map::new());
    }
    wanted[outer][inner] = Value::Bool(true);
    if parse(&edited)? == wanted {
        return Ok(edited);
    }
    Err("it is written in a form that is not edited here".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::empty("", "")]
    #[case::line("\n", "\n")]
    #[case::mark("\u{feff}", "\u{feff}")]
    #[case::mark_and_line("\u{feff}\r\n", "\u{feff}\r\n")]
    #[case::form_feed("\u{c}", "")]
    #[case::mark_and_form_feed("\u{feff}\n\u{c}", "\u{feff}")]
    #[case::no_break_space("\u{a0}", "")]
    fn an_edited_blank_file_is_json(#[case] text: &str, #[case] kept: &str) {
        let edited = with_flag(text, "features", "cdi").expect("edits");
        assert_eq!(edited.strip_prefix(kept), Some(&*fresh("features", "cdi")));
        let read = parse(&edited).expect("JSON");
        assert_eq!(read["features"]["cdi"], true);
    }
}
