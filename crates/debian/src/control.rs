//! Paragraphs of `Field: value` lines (deb822(5)): Release files and apt's .sources files.

/// A paragraph's fields, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Paragraph {
    /// Its first line, from 1.
    pub(super) line: usize,
    fields: Vec<Field>,
}

#[derive(Debug, Clone)]
struct Field {
    name: String,
    /// Continuation lines follow after a newline each, without their leading blank.
    value: String,
}

impl Paragraph {
    /// The value of a field, the last where it is repeated; names are compared without case.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter().rev();
        let field = fields.find(|field| field.name.eq_ignore_ascii_case(name))?;
        Some(field.value.trim())
    }

    /// Returns the words of a field; none where it is absent.
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        self.get(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// Returns a boolean field, as apt reads it; None where it is absent.
    pub(super) fn truth(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| truth(value, true))
    }
}

/// Parses a boolean as apt does; `default` for other words (apt-pkg/contrib/strutl.cc, StringToBool).
pub(super) fn truth(value: &str, default: bool) -> bool {
    let is = |words: [&str; 6]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    match default {
        true => !is(["no", "false", "without", "off", "disable", "0"]),
        false => is(["yes", "true", "with", "on", "enable", "1"]),
    }
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadLine {
    /// Line number, from 1.
    pub(super) line: usize,
    /// Description of the fault.
    pub(super) what: String,
}

/// Parses the paragraphs of a text; a field that is repeated in one is a bad line. Lines that begin with `#` are
/// comments.
pub(super) fn paragraphs(text: &str) -> Result<Vec<Paragraph>, BadLine> {
    parse(text, Repeated::IsBad)
}

/// Like [`paragraphs`], with the last value of a repeated field, as apt reads its own files.
pub(super) fn stanzas(text: &str) -> Result<Vec<Paragraph>, BadLine> {
    parse(text, Repeated::LastCounts)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    IsBad,
    LastCounts,
}

fn parse(text: &str, repeated: Repeated) -> Result<Vec<Paragraph>, BadLine> {
    let mut paragraphs = Vec::new();
    let mut current = Paragraph::default();
    for (line, content) in (1..).zip(text.lines()) {
        let bad = |what: &str| BadLine { line, what: what.to_owned() };
        if content.starts_with('#') {
            continue;
        }
        // A line of blanks continues a field: apt ends a paragraph at an empty line alone (tagfile.cc).
        if content.is_empty() || (content.trim().is_empty() && current.fields.is_empty()) {
            if !current.fields.is_empty() {
                paragraphs.push(std::mem::take(&mut current));
            }
            continue;
        }
        if let Some(rest) = content.strip_prefix([' ', '\t']) {
            let field = current.fields.last_mut();
            let field = field.ok_or_else(|| bad("a continuation of nothing"))?;
            field.value.push('\n');
            field.value.push_str(rest);
            continue;
        }
        let (name, value) = content.split_once(':').ok_or_else(|| bad("no field name"))?;
        let name = name.trim_end();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(bad("no field name"));
        }
        if repeated == Repeated::IsBad && current.get(name).is_some() {
            return Err(bad(&format!("{name} occurs twice")));
        }
        if current.fields.is_empty() {
            current.line = line;
        }
        current.fields.push(Field { name: name.to_owned(), value: value.to_owned() });
    }
    if !current.fields.is_empty() {
        paragraphs.push(current);
    }
    Ok(paragraphs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn fields_continue_and_comments_do_not_count() {
        let text = "# c\n\nA: 1\n#c\nB:\n x\n .\n\ty\n\n\na: 2\n";
        let found = paragraphs(text).expect("reads");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].line, 3);
        assert_eq!(found[0].get("b"), Some("x\n.\ny"));
        assert_eq!(found[1].get("A"), Some("2"));
        assert_eq!(found[1].get("B"), None);
    }

    #[test]
    fn a_line_of_blanks_continues_and_the_last_of_a_repeated_field_counts() {
        let found = stanzas(" \nA: 1\n \t\nA: 2\nB : 3\n\nA: 4\n").expect("reads");
        let values: Vec<_> =
            found.iter().map(|stanza| (stanza.get("A"), stanza.get("B"))).collect();
        assert_eq!(values, [(Some("2"), Some("3")), (Some("4"), None)]);
    }

    #[rstest]
    #[case(" x\n", 1)]
    #[case("A: 1\nnonsense\n", 2)]
    #[case("A: 1\n\n: 2\n", 3)]
    #[case("A: 1\na: 2\n", 2)]
    #[case("A B: 1\n", 1)]
    fn bad_lines_are_numbered(#[case] text: &str, #[case] line: usize) {
        assert_eq!(paragraphs(text).expect_err("refused").line, line);
    }

    #[rstest]
    #[case("no", false)]
    #[case("No", false)]
    #[case("false", false)]
    #[case("0", false)]
    #[case("yes", true)]
    fn truth_is_as_apt_reads_it(#[case] value: &str, #[case] expected: bool) {
        let found = paragraphs(&format!("Enabled: {value}\n")).expect("reads");
        assert_eq!(found[0].truth("enabled"), Some(expected));
    }
}
