//! Command lines of daemons: the words that a running process or a unit has, and the flags among them.

use std::collections::BTreeMap;
use std::fmt;

use crate::systemd::{Service, Setting};

/// Source of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A running process.
    Process(u32),
    /// The unit's file, at its `ExecStart=`.
    Unit(Setting),
}

/// The command line with which a runtime's daemon runs, or would be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// Words; the first is the program.
    pub argv: Vec<String>,
    /// Variables that its unit sets.
    pub variables: BTreeMap<String, String>,
    /// Source of the words.
    pub source: Source,
    /// Unit that it belongs to.
    pub unit: String,
    /// Place of the unit's `ExecStart=`, where the unit has the same words: that is what is to be changed.
    pub at: Option<Setting>,
}

/// A flag, as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Name without its dashes.
    pub name: String,
    /// True if it has one dash.
    pub is_short: bool,
    /// Value; None where the flag stands alone.
    pub value: Option<String>,
}

impl From<Service> for Invocation {
    fn from(service: Service) -> Self {
        Self {
            argv: service.argv,
            variables: service.variables,
            source: Source::Unit(service.at.clone()),
            unit: service.unit,
            at: Some(service.at),
        }
    }
}

impl Invocation {
    /// Returns its flags in their order. A word without a dash after a flag is that flag's value: no daemon
    /// here has arguments of its own. Each word up to a subcommand counts.
    pub fn flags(&self) -> Vec<Flag> {
        let mut found: Vec<Flag> = Vec::new();
        for word in self.argv.iter().skip(1) {
            if word == "--" {
                break;
            }
            if let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) {
                let (name, value) = match name.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (name, None),
                };
                let is_short = !word.starts_with("--");
                found.push(Flag { name: name.to_owned(), is_short, value });
            } else if let Some(last) = found.last_mut().filter(|last| last.value.is_none()) {
                last.value = Some(word.clone());
            }
        }
        found
    }

    /// Returns the last value of a flag by one of its names.
    pub fn value(&self, names: &[&str]) -> Option<String> {
        self.values(names).pop()
    }

    /// Returns all values of a flag by one of its names. A name of one letter may have its value behind it.
    pub fn values(&self, names: &[&str]) -> Vec<String> {
        let is_named = |flag: &Flag| names.contains(&flag.name.as_str());
        self.flags().into_iter().filter(is_named).filter_map(|flag| flag.value).collect()
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.source, &self.at) {
            (Source::Process(pid), None) => write!(f, "process {pid} of {}", self.unit),
            (Source::Process(pid), Some(at)) => write!(f, "{at}, and process {pid}"),
            (Source::Unit(at), _) => write!(f, "{at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn parsed(line: &str) -> Invocation {
        Invocation {
            argv: line.split(' ').map(str::to_owned).collect(),
            variables: BTreeMap::new(),
            source: Source::Process(7),
            unit: "x.service".to_owned(),
            at: None,
        }
    }

    #[rstest]
    #[case("dockerd -H fd:// --config-file /a --debug", Some("/a"))]
    #[case("dockerd --config-file=/a --config-file /b", Some("/b"))]
    #[case("dockerd -config-file /a", Some("/a"))]
    #[case("dockerd --debug -- --config-file /a", None)]
    #[case("dockerd", None)]
    fn values(#[case] line: &str, #[case] wanted: Option<&str>) {
        assert_eq!(parsed(line).value(&["config-file"]).as_deref(), wanted);
    }
}
