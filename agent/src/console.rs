//! Text of commands for people: lines of bounded width, and coloured words on a terminal.

use std::io::{IsTerminal, Stdout};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use longshore_core::environment::Env;
use longshore_core::finding::{Severity, Verdict};
use longshore_core::sanitize::printable;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Columns of a line that no terminal shows, and the fewest.
const COLUMNS: usize = 80;
/// The most columns: longer lines of prose are hard to read.
const MOST_COLUMNS: usize = 120;

/// Form of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    columns: usize,
    colours: bool,
}

impl Form {
    /// Form of a file or pipe.
    pub const PLAIN: Self = Self { columns: COLUMNS, colours: false };

    /// Form without line breaks, for tests of the words.
    #[cfg(test)]
    pub(crate) const UNBROKEN: Self = Self { columns: usize::MAX, colours: false };

    /// Form of standard output: the terminal's columns are those of COLUMNS, else its own. anstream decides about
    /// colours by NO_COLOR, CLICOLOR and TERM.
    pub fn for_stdout(stdout: &Stdout, env: Env<'_>) -> Self {
        let is_terminal = stdout.is_terminal();
        let named = || env("COLUMNS").and_then(|columns| columns.trim().parse().ok());
        let own = || Some(rustix::termios::tcgetwinsize(stdout).ok()?.ws_col.into());
        let columns = if is_terminal { named().or_else(own) } else { None };
        let columns = columns.unwrap_or(COLUMNS).clamp(COLUMNS, MOST_COLUMNS);
        let colours = is_terminal && AutoStream::choice(stdout) != ColorChoice::Never;
        Self { columns, colours }
    }
}

/// Style of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As the rest.
    Plain,
    /// Passed: green.
    Passed,
    /// A note: cyan.
    Note,
    /// A warning: yellow.
    Warned,
    /// Undecided: magenta.
    Undecided,
    /// Refused: red.
    Refused,
}

impl From<Verdict> for Tone {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Passed => Self::Passed,
            Verdict::Warned => Self::Warned,
            Verdict::Undecided => Self::Undecided,
            Verdict::Refused => Self::Refused,
        }
    }
}

impl From<Severity> for Tone {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Note => Self::Note,
            Severity::Warning => Self::Warned,
            Severity::Refusal => Self::Refused,
        }
    }
}

impl Tone {
    fn style(self) -> Style {
        let colour = match self {
            Self::Plain => return Style::new(),
            Self::Passed => AnsiColor::Green,
            Self::Note => AnsiColor::Cyan,
            Self::Warned => AnsiColor::Yellow,
            Self::Undecided => AnsiColor::Magenta,
            Self::Refused => AnsiColor::Red,
        };
        colour.on_default().bold()
    }
}

/// Text in the making. Control characters of the words are escaped.
#[derive(Debug)]
pub struct Text {
    form: Form,
    text: String,
}

impl Text {
    /// Begins a text.
    pub fn new(form: Form) -> Self {
        Self { form, text: String::new() }
    }

    /// Adds a line that is never broken: a heading or a command.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(&printable(line));
        self.text.push('\n');
    }

    /// Adds words behind a head, in lines that break at spaces alone; those after the first begin at column `hang`.
    pub fn item(&mut self, head: &str, tone: Tone, hang: usize, words: &str) {
        let (whole, indent) = (format!("{head}{words}"), " ".repeat(hang));
        let options = Options::new(self.form.columns)
            .subsequent_indent(&indent)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation)
            .wrap_algorithm(WrapAlgorithm::FirstFit)
            .break_words(false);
        let wrapped = textwrap::fill(&printable(&whole), options);
        let word = head.trim();
        match wrapped.split_once(word) {
            Some((before, after)) if self.form.colours && tone != Tone::Plain => {
                let style = tone.style();
                self.text.push_str(&format!("{before}{style}{word}{style:#}{after}"));
            }
            _ => self.text.push_str(&wrapped),
        }
        self.text.push('\n');
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(form: Form, head: &str, words: &str) -> String {
        let mut text = Text::new(form);
        text.item(head, Tone::Refused, 4, words);
        text.finish()
    }

    #[test]
    fn lines_break_at_spaces_alone_and_go_on_under_their_column() {
        let path = format!("/run/{}", "nvidia-driver/".repeat(8));
        let words = format!("a word or two before the path {path} and well-known words after it");
        let text = item(Form::PLAIN, "  refusal ", &words);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  refusal a word or two before the path");
        assert_eq!(lines[1], format!("    {path}"));
        assert_eq!(lines[2], "    and well-known words after it");
    }

    #[test]
    fn the_head_is_coloured_and_foreign_colours_are_escaped() {
        let form = Form { colours: true, ..Form::PLAIN };
        assert_eq!(
            item(form, "  refusal ", "evil \u{1b}[2J"),
            "  \u{1b}[1m\u{1b}[31mrefusal\u{1b}[0m evil \\u{1b}[2J\n"
        );
        assert!(!item(Form::PLAIN, "  refusal ", "evil").contains('\u{1b}'));
    }

    #[test]
    fn a_file_has_eighty_columns_whatever_the_environment_says() {
        let pipe = Form::for_stdout(&std::io::stdout(), &|_| Some("200".to_owned()));
        assert!(pipe.columns == COLUMNS || std::io::stdout().is_terminal());
    }
}
