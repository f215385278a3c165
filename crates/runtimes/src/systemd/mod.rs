//! Services of systemd, as far as the command line and the environment of a daemon follow from their files.
//!
//! Units are looked for as systemd does (systemd.unit(5)): a file of the first directory that has one, then
//! the drop-ins of all directories, sorted by name, of which a name of an earlier directory hides those of
//! later ones. Sizes and numbers are bounded, because other programs can write these files.

mod environment;
mod lines;
mod service;
mod words;

pub use service::{Service, Setting, exists};

/// Parses a file of variables, one to a line, as `EnvironmentFile=` reads it.
pub fn variables(text: &str) -> std::collections::BTreeMap<String, String> {
    environment::parse(text)
}
