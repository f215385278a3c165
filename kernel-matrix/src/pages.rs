//! Commands of kernel-matrix in the pages for readers are those of this program.

use std::path::Path;

use clap::Parser;
use kernel_matrix::rules::Rules;
use longshore_core::testing::pages::{commands, read_pages};

use super::Line;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the program's arguments, if the command is one of it: by its name or path, or by cargo.
fn arguments(words: &[String]) -> Option<&[String]> {
    let program = words.first()?;
    if program == "kernel-matrix" || program.ends_with("/kernel-matrix") {
        return Some(&words[1..]);
    }
    let of_cargo = program == "cargo" && words.iter().any(|word| word == "run");
    let at = words.iter().position(|word| word == "--").filter(|_| of_cargo)?;
    words[..at].iter().any(|word| word == "kernel-matrix").then(|| &words[at + 1..])
}

#[test]
fn every_command_in_a_page_is_one_of_this_program_s() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for (page, text) in read_pages(Path::new(TOP)) {
        for words in commands(&text) {
            let Some(arguments) = arguments(&words) else { continue };
            tried += 1;
            let line = std::iter::once("kernel-matrix").chain(arguments.iter().map(String::as_str));
            if let Err(error) = Line::try_parse_from(line) {
                wrong.push(format!("{}: {}: {error}", page.display(), words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 15, "{tried}");
}

#[test]
fn the_rules_of_the_tutorial_are_rules() {
    let page = Path::new(TOP).join("docs/tutorials/nightly-matrix.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let (_, rest) = text.split_once("```toml\n").expect("rules");
    let (rules, _) = rest.split_once("```").expect("an end");
    let rules = Rules::parse(rules).unwrap_or_else(|why| panic!("{why}"));
    // Four of Debian's kernels, one of Ubuntu's and two of a build root, with two drivers.
    assert_eq!(rules.cells.len(), 14);
}
