//! Help pages: the command line with groups of commands, examples, and a list of the agent's settings below
//! `longshore run --help`. The settings and the log's options are taken by every command, and shown by one.

mod examples;
#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use clap::{Command, CommandFactory};

use super::Cli;
use super::log_options::LogOptions;
use crate::config::settings::{Setting, plain};

/// Widest line of a help page, in columns; a narrower terminal wraps it.
const WIDTH: usize = 100;
/// Column in which the texts of a list of settings begin.
const TEXT_COLUMN: usize = 40;

/// Commands by what they are for.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Agent", &["run", "unload"]),
    ("Look", &["plan", "doctor", "status", "explain", "settings"]),
    ("Supply", &["fetch", "build", "builder", "build-root", "bundle", "import", "gc", "store"]),
    ("Registry", &["push", "list", "index", "sign", "verify", "attest"]),
    ("Signing", &["sign-modules"]),
    ("Containers and clusters", &["cdi", "runtime", "docker-args", "fleet", "evictor"]),
    ("Shell", &["completions", "man"]),
];

/// Commands on which no setting has an effect.
const WITHOUT_SETTINGS: [&str; 4] = ["explain", "settings", "completions", "man"];

/// End of the program's help pages.
const MORE: &str = "`longshore COMMAND --help` shows the options and examples of a command,\n\
                    `longshore settings` the agent's settings, which every command takes.";

/// Returns the command line that is parsed, with the texts of its help pages.
pub(super) fn command_line(version: String) -> Command {
    let line = Cli::command().version(version).max_term_width(WIDTH);
    let names: Vec<String> = line.get_subcommands().map(|of| of.get_name().to_owned()).collect();
    let (short, long) = (short_page(), long_page(&line));
    let line = line
        .override_usage("longshore [OPTIONS] <COMMAND>")
        .help_template("{about-with-newline}\n{usage-heading} {usage}{after-help}")
        .after_help(short)
        .after_long_help(long);
    names.into_iter().fold(line, |line, name| {
        line.mut_subcommand(&name, |command| with_end(command, &name, &name))
    })
}

/// Returns the commands and options that documents show: those of [`command_line`] without hidden ones, the log's
/// options with the program, and the settings with `run`.
pub(super) fn shown(version: String) -> Command {
    let whole = command_line(version).mut_args(|arg| {
        let is_setting = Setting::all().iter().any(|one| one.flag() == Some(arg.get_id().as_str()));
        arg.hide(is_setting).global(false)
    });
    let shown = without_hidden(&whole);
    let settings: Vec<_> = Setting::all().into_iter().filter(|one| !one.is_internal()).collect();
    let all = Cli::command();
    let settings = settings.into_iter().filter_map(|one| {
        let arg = all.get_arguments().find(|arg| Some(arg.get_id().as_str()) == one.flag())?;
        let arg = arg.clone().global(false).hide(false).help_heading(one.group());
        Some(arg.help(plain(&one.short())).long_help(plain(&one.text())))
    });
    shown.mut_subcommand("run", |run| run.args(settings))
}

fn without_hidden(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_owned());
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown = shown.subcommand_required(command.is_subcommand_required_set());
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()))
        .subcommands(commands.map(without_hidden))
}

/// Adds the end of a command's page, and of those of its subcommands; `path` is its name behind the program's.
fn with_end(command: Command, path: &str, first: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|of| of.get_name().to_owned()).collect();
    let command = names.iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |inner| with_end(inner, &path, first))
    });
    let end = end_of(path, first);
    match path {
        "run" => {
            let whole = format!("{end}\n\n{}", settings_list());
            let command = command.override_usage("longshore run [OPTIONS]");
            command.after_help(end).after_long_help(whole)
        }
        _ => command.after_help(end),
    }
}

/// Returns the examples of a command; `path` is its name behind the program's.
pub(super) fn examples_of(path: &str) -> &'static [(&'static str, &'static str)] {
    examples::examples_of(path)
}

/// Returns the examples of a command, and the place of what it takes beside its own options.
fn end_of(path: &str, first: &str) -> String {
    let mut text = heading("Examples:");
    for (purpose, line) in examples::examples_of(path) {
        let _ = write!(text, "\n  # {purpose}\n  {line}");
    }
    if !WITHOUT_SETTINGS.contains(&first) {
        text.push_str("\n\nThe agent's settings are taken, too: `longshore settings` lists them.");
    }
    text
}

fn heading(text: &str) -> String {
    let styles = clap::builder::Styles::styled();
    let style = styles.get_header();
    format!("{style}{text}{style:#}")
}

/// Returns a heading below other lines. clap's wrapping takes a text that follows a style for the rest of a line, so
/// the line feeds are part of the heading.
fn next_heading(text: &str) -> String {
    heading(&format!("\n\n{text}"))
}

/// Returns the program's page of one screen: names of the commands, and the log's options.
fn short_page() -> String {
    let mut text = heading("Commands:");
    for (group, names) in GROUPS {
        let _ = write!(text, "\n  {group:<12}{}", names.join(", "));
    }
    let _ = write!(text, "{}{}\n\n{MORE}", next_heading("Options:"), options());
    text
}

/// Returns the program's longer page: a line for each command.
fn long_page(line: &Command) -> String {
    let mut text = heading("Commands:");
    for (group, names) in GROUPS {
        let _ = write!(text, "{}", next_heading(&format!("{group}:")));
        for name in names {
            let about = line.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = write!(text, "\n  {name:<19}{about}");
        }
    }
    let _ = write!(text, "{}{}\n\n{MORE}", next_heading("Options:"), options());
    text
}

/// Returns a line for each option of the program itself.
fn options() -> String {
    let mut text = String::new();
    for arg in LogOptions::command().get_arguments() {
        let short = arg.get_short().map_or("    ".to_owned(), |short| format!("-{short}, "));
        let long = arg.get_long().unwrap_or_default();
        let value = match arg.get_action() {
            clap::ArgAction::Count => String::new(),
            _ => format!(" {}", arg.get_value_names().map_or("", |names| names[0].as_str())),
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "\n  {:<27}{help}", format!("{short}--{long}{value}"));
    }
    text.push_str("\n  -h, --help                 Print help; --help has a line for each command");
    text.push_str("\n  -V, --version              Print version, commit and date");
    text
}

/// Returns the settings in groups, a line for each.
pub(super) fn settings_list() -> String {
    let mut text = heading("Settings:");
    for (group, settings) in Setting::grouped() {
        let _ = write!(text, "{}", next_heading(&format!("{group}:")));
        for setting in settings.into_iter().filter(|one| !one.is_internal()) {
            let (label, short) = (setting.label(), plain(&setting.short()));
            let _ = write!(text, "\n  {label:<width$}{short}", width = TEXT_COLUMN - 2);
        }
    }
    text
}
