//! Generates the options and examples of docs/reference/commands.md from the command line.

use std::fmt::{self, Write};

use clap::{Arg, Command};

use super::{GROUPS, examples, shown};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/commands.md");

/// First and last line of the generated part.
const BEGIN: &str = "<!-- Generated from the command line: `WRITE_DOCS=1 cargo test -p longshore --lib commands_page` writes it anew. -->\n";
const END: &str = "<!-- End of the generated part. -->\n";

fn page() -> Result<String, fmt::Error> {
    let mut line = shown(String::new());
    line.build();
    let mut text = String::new();
    writeln!(text, "\n## Options of the log\n")?;
    options(&mut text, &line)?;
    for (group, names) in GROUPS {
        writeln!(text, "\n## {group}")?;
        for name in names {
            if let Some(command) = line.find_subcommand(name) {
                section(&mut text, command, name)?;
            }
        }
    }
    Ok(text)
}

/// Writes a command, and its subcommands behind it; `path` is its name behind the program's.
fn section(text: &mut String, command: &Command, path: &str) -> fmt::Result {
    writeln!(text, "\n### longshore {path}\n")?;
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(text, "{}.\n", about.trim_end_matches('.').replace('|', "\\|"))?;
    let usage = command.clone().render_usage().to_string();
    writeln!(text, "```text\n{}\n```\n\n```sh", usage.trim_start_matches("Usage: "))?;
    let examples =
        examples::examples_of(path).iter().map(|(purpose, line)| format!("# {purpose}\n{line}\n"));
    writeln!(text, "{}```", examples.collect::<Vec<_>>().join("\n"))?;
    if path == "run" {
        writeln!(text, "\nIts options are the [settings](configuration.md).")?;
    } else if command.get_arguments().any(|arg| arg.get_id() != "help") {
        text.push('\n');
        options(text, command)?;
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        section(text, inner, &format!("{path} {}", inner.get_name()))?;
    }
    Ok(())
}

fn options(text: &mut String, command: &Command) -> fmt::Result {
    writeln!(text, "| Option | Meaning |\n|---|---|")?;
    for arg in command.get_arguments() {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace('|', "\\|");
        let default = match arg.get_default_values() {
            [value] if arg.get_num_args().is_some_and(|range| range.takes_values()) => {
                // The machine's own architecture is the default of one.
                let value = value.to_string_lossy();
                let value = if value == std::env::consts::ARCH { "the machine's" } else { &value };
                format!(" (default: {value})")
            }
            _ => String::new(),
        };
        writeln!(text, "| `{}` | {help}{default} |", written(arg).replace('|', "\\|"))?;
    }
    Ok(())
}

/// Returns an option as a command line has it.
fn written(arg: &Arg) -> String {
    let values = arg.get_num_args().is_some_and(|range| range.takes_values());
    let value = arg.get_value_names().and_then(|names| names.first()).filter(|_| values);
    let value = value.map(|name| name.as_str().to_owned()).unwrap_or_default();
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long} {value}"),
        (_, Some(long)) => format!("--{long} {value}"),
        _ => value,
    }
    .trim_end()
    .to_owned()
}

#[test]
fn commands_page_is_what_the_command_line_says() {
    let committed = std::fs::read_to_string(PAGE).expect("docs/reference/commands.md is there");
    let (head, rest) = committed.split_once(BEGIN).expect("a first line of the generated part");
    let (_, tail) = rest.split_once(END).expect("a last line of the generated part");
    let generated = page().expect("writing to a string");
    let page = format!("{head}{BEGIN}{generated}\n{END}{tail}");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
        return;
    }
    assert!(
        committed == page,
        "docs/reference/commands.md is not what the command line says: WRITE_DOCS=1 renews it"
    );
}
