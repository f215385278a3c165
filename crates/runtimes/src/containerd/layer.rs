//! One file of containerd's configuration.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::KEY;
use crate::spec_dirs;
use crate::verdict::{Refusal, text_of, toml_of};

/// Section of the CRI plugin in files of version 2.
pub(super) const OLD_SECTION: &str = "io.containerd.grpc.v1.cri";
/// The same in files of version 3.
pub(super) const NEW_SECTION: &str = "io.containerd.cri.v1.runtime";
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
        let values = toml_of("containerd", path, &text)?;
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

    /// Returns the version that its format counts as when it is the last file (2.0 to 2.2): one without a
    /// version is migrated from version 1 to 3.
    pub(super) fn effective_format(&self) -> Option<i64> {
        Some(self.format().filter(|format| *format > 1).unwrap_or(3))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        section(&self.values, name).is_some()
    }

    pub(super) fn flag_in(&self, name: &str) -> Option<bool> {
        section(&self.values, name)?.get(KEY)?.as_bool()
    }

    pub(super) fn spec_dirs(&self) -> Option<Vec<String>> {
        let sections = [NEW_SECTION, OLD_SECTION].into_iter();
        let dirs =
            |name| section(&self.values, name)?.get("cdi_spec_dirs").and_then(spec_dirs::of_toml);
        sections.filter_map(dirs).next()
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
