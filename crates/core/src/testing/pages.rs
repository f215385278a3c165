//! Commands in the pages for readers, for tests that hold them to the programs' own parsers.

use std::fs;
use std::path::{Path, PathBuf};

/// Texts for readers at the top of the checkout; the others are below `docs`.
const AT_TOP: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];

/// Reads all pages, with their paths below `top`, the checkout.
///
/// # Panics
/// If one cannot be read.
pub fn read_pages(top: &Path) -> Vec<(PathBuf, String)> {
    let mut found: Vec<PathBuf> = AT_TOP.iter().map(|name| top.join(name)).collect();
    let mut dirs = vec![top.join("docs")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory of pages") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a page");
        (path.strip_prefix(top).expect("below the top").to_owned(), text)
    };
    found.into_iter().map(read).collect()
}

/// Returns the words of each command in the page's blocks of shell: those of language `sh`, and the lines of other
/// blocks that begin with a prompt. Pipes, lists and substitutions are commands of their own; quotation marks,
/// comments and redirections are left out.
pub fn commands(page: &str) -> Vec<Vec<String>> {
    let mut text = String::new();
    let mut language = None;
    let mut goes_on = false;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), language) {
            (Some(name), None) => (language, goes_on) = (Some(name), false),
            (Some(_), Some(_)) => {
                language = None;
                text.push('\n');
            }
            (None, Some("sh")) => push_line(&mut text, line),
            (None, Some(_)) => {
                let prompted = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
                if let Some(line) = prompted.or_else(|| goes_on.then_some(line)) {
                    goes_on = line.ends_with('\\');
                    push_line(&mut text, line);
                }
            }
            (None, None) => {}
        }
    }
    split(&text)
}

fn push_line(text: &mut String, line: &str) {
    match line.strip_suffix('\\') {
        Some(line) => {
            text.push_str(line);
            text.push(' ');
        }
        None => {
            text.push_str(line);
            text.push('\n');
        }
    }
}

/// Splits a text of shell at its operators, and its commands at blanks.
fn split(text: &str) -> Vec<Vec<String>> {
    let mut splitter = Splitter::default();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (splitter.quote, c) {
            (Some(quote), c) if c == quote => splitter.quote = None,
            (Some(_), c) => splitter.push(c),
            (None, '"' | '\'') => {
                splitter.quote = Some(c);
                splitter.word.get_or_insert_default();
            }
            (None, '#') if splitter.word.is_none() => {
                while chars.next_if(|c| *c != '\n').is_some() {}
            }
            (None, '>' | '<') => splitter.begin_redirection(),
            (None, '&') if splitter.is_redirected && splitter.word.is_none() => splitter.push(c),
            (None, '$') if chars.next_if_eq(&'(').is_some() => splitter.end_command(),
            (None, '|' | ';' | '&' | '\n' | '(' | ')' | '`') => splitter.end_command(),
            (None, c) if c.is_whitespace() => splitter.end_word(),
            (None, c) => splitter.push(c),
        }
    }
    splitter.end_command();
    splitter.commands
}

#[derive(Default)]
struct Splitter {
    commands: Vec<Vec<String>>,
    command: Vec<String>,
    word: Option<String>,
    quote: Option<char>,
    /// The next word is the file of a redirection.
    is_redirected: bool,
}

impl Splitter {
    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn begin_redirection(&mut self) {
        // `2>file`: the number is no word.
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        self.is_redirected = true;
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.is_redirected) {
            self.command.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_redirected = false;
        let command = std::mem::take(&mut self.command);
        if !command.is_empty() {
            self.commands.push(command);
        }
    }
}

#[test]
fn commands_of_a_page_are_those_of_its_blocks_of_shell() {
    let page = "a `b c`\n```sh\n# no `command`\na --b 'c d' \\\n  e | f >g 2>&1 && h    # i's\n\
                docker run $(j k) \"l\"\n```\n```console\n$ m \\\n  n\nno\n```\n```toml\no = 1\n```\n";
    let found: Vec<String> = commands(page).iter().map(|words| words.join("/")).collect();
    assert_eq!(found, ["a/--b/c d/e", "f", "h", "docker/run", "j/k", "l", "m/n"]);
}
