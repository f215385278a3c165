//! Which compatibility patches a compile may apply.

use std::path::PathBuf;

use serde::Deserialize;

use super::values::AbsolutePath;

/// Which compatibility patches a compile may apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchConfig {
    /// Whether any is applied.
    pub apply: bool,
    /// Names of patches that are not applied.
    pub off: Vec<String>,
    /// Folders with patches of the user's own.
    pub dirs: Vec<PathBuf>,
}

impl Default for PatchConfig {
    fn default() -> Self {
        PatchFragment::default().settle()
    }
}

/// The same as one place says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PatchFragment {
    /// Whether any is applied.
    #[arg(skip)]
    pub apply: Option<bool>,
    /// Do not apply this compatibility patch (repeatable)
    #[arg(long = "no-patch", global = true, value_name = "NAME")]
    pub off: Option<Vec<String>>,
    /// Folder with compatibility patches of your own (repeatable)
    #[arg(long = "patches", global = true, value_name = "DIR")]
    pub dirs: Option<Vec<AbsolutePath>>,
    /// Apply no compatibility patch
    #[serde(skip)]
    #[arg(long = "no-patches", global = true)]
    pub none: bool,
}

impl PatchFragment {
    /// This with what it leaves open taken from `below`. Lists replace each other.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            apply: self.none.then_some(false).or(self.apply).or(below.apply),
            off: self.off.or(below.off),
            dirs: self.dirs.or(below.dirs),
            none: false,
        }
    }

    pub(super) fn settle(self) -> PatchConfig {
        let dirs = self.dirs.unwrap_or_default();
        PatchConfig {
            apply: !self.none && self.apply.unwrap_or(true),
            off: self.off.unwrap_or_default(),
            dirs: dirs.iter().map(|dir| dir.as_path().to_path_buf()).collect(),
        }
    }
}
