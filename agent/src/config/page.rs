//! Generates the tables of docs/reference/configuration.md from the tables of settings.

use std::fmt::{self, Write};

use super::settings::Setting;
use super::{Config, Fragment, load};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/configuration.md");

/// First and last line of the generated part.
const BEGIN: &str = "<!-- Generated from agent/src/config/table.rs and the sections beside it: `WRITE_DOCS=1 cargo test -p longshore --lib settings_page` writes it anew. -->\n";
const END: &str = "<!-- End of the generated part. -->\n";

fn flag(setting: &Setting) -> String {
    let (Some(flag), Some(whole)) = (setting.flag(), setting.flag_with_value()) else {
        return String::new();
    };
    let value = if whole.ends_with("[=BOOL]") { "[=BOOL]" } else { "" };
    let repeat = if setting.is_repeatable() { " (repeat)" } else { "" };
    format!("`--{flag}{value}`{repeat}")
}

fn variables(setting: &Setting) -> String {
    let between = if setting.has_variables_of_parts() { ", " } else { ", else " };
    let named: Vec<_> = setting.variables().iter().map(|name| format!("`{name}`")).collect();
    named.join(between)
}

/// Returns a table for each group, each below its heading.
fn tables() -> Result<String, fmt::Error> {
    let mut text = String::new();
    for (group, settings) in Setting::grouped() {
        let head =
            "| Key in the file | Flag | Environment | Default | Meaning |\n|---|---|---|---|---|";
        writeln!(text, "## {group}\n\n{head}")?;
        for setting in settings {
            let (key, default) = (setting.written_key(), setting.default());
            let (flag, variables) = (flag(&setting), variables(&setting));
            writeln!(text, "| {key} | {flag} | {variables} | {default} | {} |", setting.text())?;
        }
        text.push('\n');
    }
    Ok(text)
}

#[test]
fn settings_page_is_what_the_tables_say() {
    let committed =
        std::fs::read_to_string(PAGE).expect("docs/reference/configuration.md is there");
    let (head, rest) = committed.split_once(BEGIN).expect("a first line of the generated part");
    let (_, tail) = rest.split_once(END).expect("a last line of the generated part");
    let tables = tables().expect("writing to a string");
    let page = format!("{head}{BEGIN}\n{tables}{END}{tail}");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
        return;
    }
    assert!(
        committed == page,
        "docs/reference/configuration.md is not what the tables say: WRITE_DOCS=1 renews it"
    );
}

/// Loads a configuration with one variable beside those without which others are not looked at.
fn loaded(name: &str, value: &str) -> Config {
    let around = [("LONGSHORE_PUBLISH", "registry.example.com/a"), ("LONGSHORE_ROOT", "/captured")];
    let env = |asked: &str| match asked {
        asked if asked == name => Some(value.to_owned()),
        _ => around.iter().find(|(n, _)| *n == asked).map(|(_, v)| (*v).to_owned()),
    };
    load(Fragment::default(), &env, None).expect(name)
}

#[test]
fn defaults_of_the_page_are_those_of_the_program() {
    let without = loaded("", "");
    let mut compared = 0;
    for setting in Setting::all() {
        let (Some(default), [name, ..]) = (setting.settable_default(), setting.variables()) else {
            continue;
        };
        // The tests' own root is no default.
        if *name == "LONGSHORE_ROOT" {
            continue;
        }
        assert_eq!(loaded(name, &default), without, "{name}={default}");
        compared += 1;
    }
    assert!(compared > 25, "{compared} of the defaults are compared");
}
