//! Commands of longshore in the pages for readers are those of this program.

use std::path::Path;

use clap::{Command, CommandFactory, Parser};
use longshore_core::testing::pages::{commands, read_pages};

use super::Cli;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns longshore's command line, if the command has one: by its name or the plugin's, in a container, or as the
/// command of a container of its image.
fn own_line(words: &[String]) -> Option<Vec<String>> {
    let line = |rest: &[String]| [&["longshore".to_owned()], rest].concat();
    // `NAME=value` before a command.
    let is_variable = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
    };
    let skipped = words.iter().take_while(is_variable).count();
    let words = &words[skipped..];
    let names: Vec<&str> = words.iter().map(String::as_str).collect();
    let rest = match names[..] {
        ["longshore", ..] => &words[1..],
        ["kubectl", "longshore", ..] => {
            return Some([&["longshore".to_owned(), "fleet".to_owned()], &words[2..]].concat());
        }
        ["podman" | "docker", "run", ..] => {
            let is_image = |at: usize| {
                let name = names[at].rsplit('/').next().unwrap_or_default();
                let is_path = names[at].starts_with('/');
                let is_own = name == "longshore" || name.starts_with("longshore:");
                is_own && !is_path && names[at - 1] != "--name"
            };
            let at = (2..names.len()).find(|at| is_image(*at))?;
            &words[at + 1..]
        }
        _ => {
            let at = names
                .windows(2)
                .position(|pair| matches!(pair, ["longshore" | "--", "longshore"]))?;
            &words[at + 2..]
        }
    };
    // The image's own command, or the arguments of a function.
    (!rest.is_empty() && rest[0] != "$@").then(|| line(rest))
}

#[test]
fn every_command_in_a_page_is_one_of_this_program_s() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for (page, text) in read_pages(Path::new(TOP)) {
        for words in commands(&text) {
            let Some(line) = own_line(&words) else { continue };
            tried += 1;
            // A variable of a loop stands for a kernel or a version, and both may be a number.
            let line: Vec<&str> =
                line.iter().map(|word| if word.starts_with('$') { "550" } else { word }).collect();
            if let Err(error) = Cli::try_parse_from(&line) {
                wrong.push(format!("{}: {}: {error}", page.display(), line.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 120, "{tried}");
}

/// Text in backquotes that begins with the program's name: subcommands up to the first other word, and flags.
fn mentions(text: &str) -> Vec<&str> {
    let spans = text.split('`').skip(1).step_by(2);
    spans.filter(|span| span.starts_with("longshore ")).collect()
}

/// Names the first word of a mention that is neither a subcommand nor a flag of it.
fn unknown_word(program: &Command, mention: &str) -> Option<String> {
    let words = mention.split_whitespace().skip(1).map(|word| word.trim_matches(['[', ']', ',']));
    let mut command = program;
    let mut is_path = true;
    for word in words {
        if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
            let flag = flag.split(['=', '[']).next().unwrap_or_default();
            let mut arguments = command.get_arguments();
            if !arguments.any(|argument| {
                argument.get_long_and_visible_aliases().is_some_and(|names| names.contains(&flag))
            }) {
                return Some(word.to_owned());
            }
            is_path = false;
        } else if let Some(next) = command.find_subcommand(word).filter(|_| is_path) {
            command = next;
        } else if is_path
            && command.has_subcommands()
            && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
        {
            return Some(word.to_owned());
        } else {
            is_path = false;
        }
    }
    None
}

#[test]
fn every_command_that_a_page_mentions_has_the_flags_that_it_names() {
    let mut program = Cli::command();
    program.build();
    let (mut tried, mut wrong) = (0, Vec::new());
    for (page, text) in read_pages(Path::new(TOP)) {
        let prose: Vec<&str> = text.split("```").step_by(2).collect();
        for mention in prose.iter().flat_map(|part| mentions(part)) {
            tried += 1;
            if let Some(word) = unknown_word(&program, mention) {
                wrong.push(format!("{}: `{mention}` has no {word}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 150, "{tried}");
}
