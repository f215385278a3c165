//! Generates the table of docs/reference/configuration.md from the tables of settings.

use std::fmt::{self, Write};

use super::{Config, Fragment, load};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/configuration.md");

/// First and last line of the generated part.
const BEGIN: &str = "<!-- Generated from agent/src/config/table.rs and the sections beside it: `WRITE_DOCS=1 cargo test -p longshore --lib settings_page` writes it anew. -->\n";
const END: &str = "<!-- End of the generated part. -->\n";

/// A row of a table of settings; a part that it lacks is empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Name and rows of a section, in place of a setting.
    pub(super) section: &'static [(&'static str, &'static [Row])],
    pub(super) key: &'static [&'static str],
    /// Text of the key in the page.
    pub(super) written: &'static [&'static str],
    pub(super) flag: &'static [&'static str],
    /// Value of the flag where none follows.
    pub(super) alone: &'static [&'static str],
    /// Type of the field.
    pub(super) kind: &'static str,
    pub(super) variables: &'static [&'static str],
    pub(super) default: &'static str,
    pub(super) means: &'static str,
}

impl Row {
    fn key(&self, section: Option<&str>) -> String {
        let table = section.map(|name| format!("`[{name}]` ")).unwrap_or_default();
        match (self.written, self.key) {
            ([written], _) => (*written).to_owned(),
            (_, [key]) => format!("{table}`{key}`"),
            _ => String::new(),
        }
    }

    fn flag(&self) -> String {
        let [flag] = self.flag else { return String::new() };
        let value = if self.alone.is_empty() { "" } else { "[=BOOL]" };
        let repeat = if self.kind.contains("Vec<") { " (repeat)" } else { "" };
        format!("`--{flag}{value}`{repeat}")
    }

    fn variables(&self) -> String {
        // Each module, and each value, has one of its own; of the others one counts.
        let each = self.kind.contains("BTreeMap") || self.kind == "FabricSettings";
        let between = if each { ", " } else { ", else " };
        let named: Vec<_> = self.variables.iter().map(|name| format!("`{name}`")).collect();
        named.join(between)
    }

    /// Returns the default as a variable has it, where the page has one that can be set.
    fn settable_default(&self) -> Option<String> {
        let words: Option<Vec<&str>> = self
            .default
            .split(", ")
            .map(|word| word.strip_prefix('`')?.strip_suffix('`').filter(|w| !w.contains('`')))
            .collect();
        words.map(|words| words.join(","))
    }
}

/// Returns all settings, each with its section.
fn all() -> Vec<(Option<&'static str>, &'static Row)> {
    let rows_of = |row: &'static Row| match row.section {
        [(name, rows)] => rows.iter().map(|row| (Some(*name), row)).collect(),
        _ => vec![(None, row)],
    };
    Fragment::ROWS.iter().flat_map(rows_of).collect()
}

fn table() -> Result<String, fmt::Error> {
    let mut table =
        "| Key in the file | Flag | Environment | Default | Meaning |\n|---|---|---|---|---|\n"
            .to_owned();
    for (section, row) in all() {
        let (key, flag, variables) = (row.key(section), row.flag(), row.variables());
        writeln!(table, "| {key} | {flag} | {variables} | {} | {} |", row.default, row.means)?;
    }
    Ok(table)
}

#[test]
fn settings_page_is_what_the_tables_say() {
    let committed =
        std::fs::read_to_string(PAGE).expect("docs/reference/configuration.md is there");
    let (head, rest) = committed.split_once(BEGIN).expect("a first line of the generated part");
    let (_, tail) = rest.split_once(END).expect("a last line of the generated part");
    let table = table().expect("writing to a string");
    let page = format!("{head}{BEGIN}\n{table}\n{END}{tail}");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
        return;
    }
    assert!(
        committed == page,
        "docs/reference/configuration.md is not what the tables say: WRITE_DOCS=1 renews it"
    );
}

#[test]
fn every_setting_has_a_text_and_a_name_of_its_own() {
    let mut names: Vec<String> = Vec::new();
    for (section, row) in all() {
        assert!(!row.default.is_empty() && !row.means.is_empty(), "{row:?}");
        assert!(!row.means.ends_with('.') && !row.means.contains('|'), "{row:?}");
        let key = row.key.iter().map(|key| format!("{section:?} {key}"));
        let flag = row.flag.iter().map(|flag| format!("--{flag}"));
        let variables = row.variables.iter().map(|name| (*name).to_owned());
        names.extend(key.chain(flag).chain(variables));
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "a name is there twice");
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
    for (_, row) in all() {
        let (Some(default), [name, ..]) = (row.settable_default(), row.variables) else { continue };
        // The tests' own root is no default.
        if *name == "LONGSHORE_ROOT" {
            continue;
        }
        assert_eq!(loaded(name, &default), without, "{name}={default}");
        compared += 1;
    }
    assert!(compared > 25, "{compared} of the defaults are compared");
}
