//! One file of containerd's configuration.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::KEY;
use crate::spec_dirs;
use crate::verdict::{Refusal, text_of};

/// Section of the CRI plugin in files of version 2.
pub(super) const OLD_SECTION: &str = "io.containerd.grpc.v1.cri";
/// The same in files of version 3.
const NEW_SECTION: &str = "io.containerd.cri.v1.runtime";
/// Names of the CRI plugin in `disabled_plugins`.
const NAMES: [&str; 3] = ["cri", OLD_SECTION, NEW_SECTION];

/// A file, with its values.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) path: PathBuf,
    pub(super) text: String,
    values: Table,
}

impl Layer {
    pub(super) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, Refusal> {
        let text = text_of(path, bytes)?;
        let values = text.parse::<Table>().map_err(|error| {
            let why = error.to_string().lines().collect::<Vec<_>>().join(" ");
            let reason = format!("{} is not TOML, so containerd refuses it: {why}", path.display());
            Refusal::new(reason, "correct the file")
        })?;
        Ok(Self { path: path.to_path_buf(), text, values })
    }

    /// Returns the version of its format.
    pub(super) fn format(&self) -> Option<i64> {
        self.values.get("version")?.as_integer()
    }

    pub(super) fn imports(&self) -> Vec<String> {
        self.values.get("imports").and_then(spec_dirs::of_toml).unwrap_or_default()
    }

    pub(super) fn disables_cri(&self) -> bool {
        let disabled = self.values.get("disabled_plugins").and_then(spec_dirs::of_toml);
        disabled.unwrap_or_default().iter().any(|name| NAMES.contains(&name.as_str()))
    }

    /// Returns the name of its section. A file without a version is one that a file of version 2 imports,
    /// or is converted by the names of version 2.
    pub(super) fn section_name(&self) -> &'static str {
        if self.format() == Some(3) { NEW_SECTION } else { OLD_SECTION }
    }

    fn section(&self) -> Option<&Table> {
        section(&self.values, self.section_name())
    }

    pub(super) fn has_section(&self) -> bool {
        self.section().is_some()
    }

    pub(super) fn flag(&self) -> Option<bool> {
        self.section()?.get(KEY)?.as_bool()
    }

    pub(super) fn spec_dirs(&self) -> Option<Vec<String>> {
        self.section()?.get("cdi_spec_dirs").and_then(spec_dirs::of_toml)
    }
}

fn section<'a>(values: &'a Table, name: &str) -> Option<&'a Table> {
    values.get("plugins")?.get(name).and_then(Value::as_table)
}

/// Returns the effective value in the output of `containerd config dump`; None where it has none.
pub(super) fn dumped(dump: &str) -> Option<bool> {
    let values: Table = dump.parse().ok()?;
    let sections = [NEW_SECTION, OLD_SECTION].into_iter();
    sections.filter_map(|name| section(&values, name)?.get(KEY)?.as_bool()).next()
}
