//! Tests of the help pages.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{Command, CommandFactory};

use super::*;
use crate::commands::parse;
use longshore_core::program_version::ProgramVersion;

/// Most lines of a command's page; the agent's own has a line for each setting.
const MOST_LINES: usize = 60;
/// Bound of the median.
const MEDIAN: usize = 25;

/// Returns each command's name, behind the program's, with its page in columns of 100.
fn pages() -> Vec<(String, String)> {
    let mut line = command_line("1".to_owned()).term_width(WIDTH);
    line.build();
    let mut pages = Vec::new();
    add_pages(&line, "", &mut pages);
    pages
}

fn add_pages(command: &Command, path: &str, pages: &mut Vec<(String, String)>) {
    pages.push((path.to_owned(), command.clone().render_long_help().to_string()));
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let path = format!("{path} {}", inner.get_name());
        add_pages(inner, path.trim(), pages);
    }
}

#[test]
fn pages_are_short_and_narrow() {
    let pages = pages();
    let mut lines: Vec<(usize, &str)> =
        pages.iter().map(|(path, page)| (page.lines().count(), path.as_str())).collect();
    lines.sort_unstable();
    for (path, page) in &pages {
        for line in page.lines() {
            assert!(line.chars().count() <= WIDTH, "{path}: {line}");
        }
    }
    // The program's own: its groups are apart.
    assert!(pages[0].1.contains("\n\nSigning:\n"), "{}", pages[0].1);
    let median = lines[lines.len() / 2].0;
    assert!(median <= MEDIAN, "{lines:?}");
    let long: Vec<_> =
        lines.iter().filter(|(count, path)| *count > MOST_LINES && *path != "run").collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn the_short_page_of_the_program_fits_one_screen() {
    let page = command_line("1".to_owned()).term_width(80).render_help().to_string();
    assert!(page.lines().count() <= 24 && page.lines().all(|line| line.len() <= 80), "{page}");
}

#[test]
fn every_command_has_examples_that_parse() {
    for (path, page) in pages().iter().skip(1) {
        let examples = examples::examples_of(path);
        assert!(!examples.is_empty() && examples.len() <= 3, "{path}");
        for (purpose, line) in examples {
            assert!(!purpose.ends_with('.') && page.contains(purpose), "{path}: {purpose}");
            // A wrapped line could not be copied.
            assert!(line.len() + 2 <= WIDTH, "{line}");
            // The shell takes a redirection.
            let words = line.split(" > ").next().unwrap_or_default();
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            assert_eq!(
                words.first().map(OsString::as_os_str),
                Some("longshore".as_ref()),
                "{line}"
            );
            if let Err(error) = parse(words, ProgramVersion::default()) {
                panic!("{line}: {error}");
            }
            let own = format!("longshore {}", path.split(' ').next().unwrap_or_default());
            assert!(line.starts_with(&own), "{path}: {line}");
        }
    }
}

#[test]
fn every_command_is_in_a_group() {
    let line = Cli::command();
    let known: BTreeSet<&str> = line.get_subcommands().map(Command::get_name).collect();
    let mut grouped: Vec<&str> =
        GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    grouped.sort_unstable();
    assert_eq!(grouped, known.into_iter().collect::<Vec<_>>());
}

#[test]
fn settings_are_shown_by_run_alone_and_taken_by_all() {
    let with: Vec<String> = pages()
        .into_iter()
        .filter(|(_, page)| page.contains("--build-deadline"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(with, ["run"]);
    for line in ["longshore plan --driver 550", "longshore fleet plan --flavour=open"] {
        let words = line.split(' ').map(OsString::from).collect();
        parse(words, ProgramVersion::default()).expect(line);
    }
    let run = &pages().into_iter().find(|(path, _)| path == "run").expect("there").1;
    for setting in Setting::all() {
        assert_eq!(run.contains(&setting.label()), !setting.is_internal(), "{}", setting.label());
    }
}

#[test]
fn what_documents_show_has_no_hidden_option() {
    let mut line = shown("1".to_owned());
    line.build();
    let of = |name: &str| line.find_subcommand(name).expect("there");
    let flags = |command: &Command| -> Vec<String> {
        command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
    };
    assert_eq!(flags(of("fetch")), ["kernel", "help"]);
    assert!(flags(of("run")).contains(&"driver".to_owned()));
    assert!(!flags(of("run")).contains(&"called-as-nvidia-driver".to_owned()));
    assert!(flags(&line).starts_with(&["verbose".to_owned()]), "{:?}", flags(&line));
}
