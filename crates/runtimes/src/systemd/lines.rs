//! Lines of a unit file: sections, continuations, comments.

/// One assignment, with the line that it begins on, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) section: String,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) line: usize,
}

/// Parses a unit file as systemd does (src/shared/conf-parser.c, config_parse): a backslash at a line's end
/// continues it, and a comment between continued lines is left out. Lines that are no assignment are left
/// out, too, because systemd warns of them and goes on.
pub(super) fn parse(text: &str) -> Vec<Assignment> {
    let mut found = Vec::new();
    let mut section = String::new();
    for (line, text) in joined(text) {
        let text = text.trim();
        if let Some(name) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, value)) = text.split_once('=') {
            found.push(Assignment {
                section: section.clone(),
                key: key.trim_end().to_owned(),
                value: value.trim().to_owned(),
                line,
            });
        }
    }
    found
}

/// Returns the lines with their continuations, each with the number of its first line.
fn joined(text: &str) -> Vec<(usize, String)> {
    let (mut done, mut open) = (Vec::new(), None::<(usize, String)>);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        let goes_on = backslashes % 2 == 1;
        let part = if goes_on { &line[..line.len() - 1] } else { line };
        let (number, mut whole) = open.take().unwrap_or((index + 1, String::new()));
        whole.push_str(part);
        match goes_on {
            true => {
                whole.push(' ');
                open = Some((number, whole));
            }
            false => done.push((number, whole)),
        }
    }
    done.extend(open);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("[Service]\nExecStart=/bin/a b\n", &[("ExecStart", "/bin/a b", 2)])]
    #[case::continued("[Service]\nExecStart=/bin/a \\\n  b \\\n  c\nType=notify\n",
        &[("ExecStart", "/bin/a    b    c", 2), ("Type", "notify", 5)])]
    #[case::comment_within("[Service]\nExecStart=a \\\n# of the site \\\n; too\n  b\n", &[("ExecStart", "a    b", 2)])]
    #[case::even_backslashes("[Service]\nX=a\\\\\nY=b\n", &[("X", "a\\\\", 2), ("Y", "b", 3)])]
    #[case::cut_off("[Service]\nX=a \\", &[("X", "a", 2)])]
    #[case::crlf("[Service]\r\nX=a\r\n", &[("X", "a", 2)])]
    #[case::blanks("  [Service]  \n  X = a  \n", &[("X", "a", 2)])]
    #[case::no_assignment("[Service]\nnonsense\n=x\n", &[("", "x", 3)])]
    fn assignments(#[case] text: &str, #[case] wanted: &[(&str, &str, usize)]) {
        let found = parse(text);
        let found: Vec<_> =
            found.iter().map(|one| (one.key.as_str(), one.value.as_str(), one.line)).collect();
        assert_eq!(found, wanted);
    }
}
