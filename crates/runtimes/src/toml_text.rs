//! Edits of TOML text that keep every byte but those of the edited value.
//!
//! The text is edited at the places that toml_edit's parser names, and not written anew from its
//! document: that would give other line ends.

use std::ops::Range;

use toml::{Table, Value};
use toml_edit::{Document, Item};

/// A flag in a table of two names: `[OUTER.INNER] KEY`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flag<'a> {
    pub(crate) outer: &'a str,
    pub(crate) inner: &'a str,
    pub(crate) key: &'a str,
}

/// Sets the flag to true.
///
/// # Errors
/// The reason why the text is not edited.
pub(crate) fn with_flag(text: &str, flag: Flag<'_>) -> Result<String, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let table = document.get(flag.outer).and_then(|outer| outer.get(flag.inner));
    let edited = match table {
        None => appended(text, flag),
        Some(table) => in_table(text, table, flag).ok_or_else(odd)?,
    };
    verified(text, edited, flag)
}

fn odd() -> String {
    "it is written in a form that is not edited here".to_owned()
}

fn in_table(text: &str, item: &Item, flag: Flag<'_>) -> Option<String> {
    if let Some(value) = item.get(flag.key) {
        return Some(spliced(text, value.span()?, "true"));
    }
    match item {
        Item::Table(table) if table.is_implicit() => Some(appended(text, flag)),
        Item::Table(table) => {
            let header = line_of(text, table.span()?.start);
            let indent = indent_of_first(text, table)
                .unwrap_or_else(|| format!("{}  ", indent_at(text, header.start)));
            Some(with_line(text, header.end, &format!("{indent}{} = true", flag.key)))
        }
        Item::Value(toml_edit::Value::InlineTable(table)) => {
            let start = table.span()?.start + 1;
            let comma = if table.is_empty() { " " } else { "," };
            Some(spliced(text, start..start, &format!(" {} = true{comma}", flag.key)))
        }
        _ => None,
    }
}

/// Returns the text with a table at its end.
fn appended(text: &str, flag: Flag<'_>) -> String {
    let newline = newline(text);
    let mut edited = text.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        edited.push_str(newline);
    }
    if !text.is_empty() {
        edited.push_str(newline);
    }
    let Flag { outer, inner, key } = flag;
    edited.push_str(&format!("[{outer}.\"{inner}\"]{newline}  {key} = true{newline}"));
    edited
}

/// Returns the text with a line at `at`, which is the begin of a line or the end of the text.
fn with_line(text: &str, at: usize, line: &str) -> String {
    let newline = newline(text);
    let ended = at == 0 || text[..at].ends_with('\n');
    let line = if ended { format!("{line}{newline}") } else { format!("{newline}{line}") };
    spliced(text, at..at, &line)
}

fn spliced(text: &str, range: Range<usize>, new: &str) -> String {
    format!("{}{new}{}", &text[..range.start], &text[range.end..])
}

fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// Returns the line around `at`, with its end.
fn line_of(text: &str, at: usize) -> Range<usize> {
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let end = text[at..].find('\n').map_or(text.len(), |end| at + end + 1);
    start..end
}

fn indent_at(text: &str, start: usize) -> &str {
    let rest = &text[start..];
    &rest[..rest.len() - rest.trim_start_matches([' ', '\t']).len()]
}

/// Returns the indentation of the table's first own key.
fn indent_of_first(text: &str, table: &toml_edit::Table) -> Option<String> {
    let own = table.iter().filter(|(_, item)| item.is_value());
    let spans = own.filter_map(|(name, _)| table.key(name)?.span());
    let first = spans.map(|span| span.start).min()?;
    Some(indent_at(text, line_of(text, first).start).to_owned())
}

/// Returns the edited text if its values are those of before, but for the flag.
fn verified(text: &str, edited: String, flag: Flag<'_>) -> Result<String, String> {
    let mut wanted: Table = text.parse().map_err(|error| format!("{error}"))?;
    let outer = wanted.entry(flag.outer).or_insert_with(|| Value::Table(Table::new()));
    let outer = outer.as_table_mut().ok_or_else(odd)?;
    let inner = outer.entry(flag.inner).or_insert_with(|| Value::Table(Table::new()));
    inner.as_table_mut().ok_or_else(odd)?.insert(flag.key.to_owned(), Value::Boolean(true));
    match edited.parse::<Table>() {
        Ok(found) if found == wanted => Ok(edited),
        _ => Err(odd()),
    }
}
