//! `longshore completions` and `longshore man`, and the completions of `kubectl longshore`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Command, ValueEnum};
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, bold, roman};

use super::{help, print, put_out};
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::program_version::ProgramVersion;

/// Name of the program in a shell.
const PROGRAM: &str = "longshore";
/// Directive for kubectl behind the candidates (cobra's `ShellCompDirectiveNoFileComp`): offer no files.
const NO_FILES: &str = ":4";

/// Shells that have completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Directory to write a page for each command to; it is made where it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Prints the completions for a shell.
///
/// # Errors
/// Exit code 2 where standard output cannot be written.
pub(super) fn completions(asked: &Completions) -> Result<ExitCode, Failure> {
    put_out(&completions_of(asked.shell)?)?;
    Ok(ExitCode::Done)
}

fn completions_of(shell: Shell) -> Result<String, Failure> {
    let (mut line, mut script) = (help::shown(String::new()), Vec::new());
    match shell {
        Shell::Bash => {
            clap_complete::generate(clap_complete::Shell::Bash, &mut line, PROGRAM, &mut script);
        }
        Shell::Zsh => {
            clap_complete::generate(clap_complete::Shell::Zsh, &mut line, PROGRAM, &mut script);
        }
        Shell::Fish => {
            clap_complete::generate(clap_complete::Shell::Fish, &mut line, PROGRAM, &mut script);
        }
    }
    String::from_utf8(script).or_fail(FailureKind::Bug, || "writing completions")
}

/// Writes the manual pages.
///
/// # Errors
/// Exit code 2 where the directory or a page cannot be written.
pub(super) fn man(asked: &Man, version: ProgramVersion) -> Result<ExitCode, Failure> {
    let pages = pages(version).or_fail(FailureKind::Bug, || "making manual pages")?;
    write_pages(&asked.out, &pages)
        .or_fail(FailureKind::Usage, || format!("writing manual pages to {}", asked.out.display()))
        .map_err(|failure| failure.remedy("name a directory that can be written (--out)"))?;
    print(&format!("{} pages written to {}\n", pages.len(), asked.out.display()))?;
    Ok(ExitCode::Done)
}

fn write_pages(dir: &Path, pages: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    pages.iter().try_for_each(|(name, page)| std::fs::write(dir.join(name), page))
}

/// Returns the manual pages with their file names: `longshore.1`, `longshore-run.1`, ...
fn pages(version: ProgramVersion) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut line = help::shown(version.to_string()).disable_help_subcommand(true);
    line.build();
    let mut pages = Vec::new();
    add_pages(&line, &mut Vec::new(), version.number(), &mut pages)?;
    Ok(pages)
}

fn add_pages(
    command: &Command,
    path: &mut Vec<String>,
    number: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> std::io::Result<()> {
    let page = Page::new(command.clone()).source(format!("{PROGRAM} {number}")).manual(PROGRAM);
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    end_of_page(&path.join(" "), &mut text)?;
    pages.push((page.get_filename(), text));
    for inner in command.get_subcommands() {
        path.push(inner.get_name().to_owned());
        add_pages(inner, path, number, pages)?;
        path.pop();
    }
    Ok(())
}

/// Writes the sections behind those of clap.
fn end_of_page(path: &str, text: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    let examples = help::examples_of(path);
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for (purpose, line) in examples {
        roff.control("PP", []);
        roff.text([roman(*purpose)]);
        // Not filled: a command line stays one line.
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        roff.text([bold(*line)]);
        roff.control("fi", []);
        roff.control("RE", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    let others =
        if path.is_empty() { "longshore-run(1)" } else { "longshore(1), longshore-run(1)" };
    roff.text([roman(format!(
        "{others}. The settings of the agent stand in longshore-run(1); `longshore settings` lists them, and \
         `longshore explain` has the exit codes."
    ))]);
    roff.to_writer(text)
}

/// Prints the completions of a command line of `kubectl longshore`, as kubectl asks `kubectl_complete-longshore` for
/// them: the words after the plugin's name, of which the last is to be completed. Each candidate is a line, with its
/// description behind a tab, and the last line is a directive.
///
/// # Errors
/// Exit code 2 where standard output cannot be written.
pub fn complete_for_kubectl(words: Vec<OsString>) -> Result<ExitCode, Failure> {
    put_out(&candidates(words).or_fail(FailureKind::Bug, || "completing a command line")?)?;
    Ok(ExitCode::Done)
}

fn candidates(mut words: Vec<OsString>) -> std::io::Result<String> {
    if words.is_empty() {
        words.push(OsString::new());
    }
    let words: Vec<_> = [PROGRAM, "fleet"].map(OsString::from).into_iter().chain(words).collect();
    let (mut line, last) = (help::command_line(String::new()), words.len() - 1);
    let mut text = String::new();
    for candidate in clap_complete::engine::complete(&mut line, words, last, None)? {
        text.push_str(&candidate.get_value().to_string_lossy());
        if let Some(help) = candidate.get_help() {
            text.push_str(&format!("\t{}", help.to_string().replace('\n', " ")));
        }
        text.push('\n');
    }
    text.push_str(NO_FILES);
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests;
