//! Selection of compatibility patches.

use std::path::PathBuf;

use serde::Deserialize;

use super::values::AbsolutePath;

/// Selection of the compatibility patches that a compile may apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchConfig {
    /// True if patches are applied.
    pub apply: bool,
    /// Names of patches that are not applied.
    pub off: Vec<String>,
    /// Directories with the user's own patches.
    pub dirs: Vec<PathBuf>,
}

impl PatchConfig {
    /// True if modules built with patches of these names may be used.
    pub fn allows<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> bool {
        names.into_iter().all(|name| self.apply && !self.off.contains(name))
    }
}

impl Default for PatchConfig {
    fn default() -> Self {
        PatchFragment::default().settle()
    }
}

/// Patch settings of one configuration layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PatchFragment {
    /// False to apply none.
    #[arg(skip)]
    pub apply: Option<bool>,
    /// Do not apply this compatibility patch (repeatable)
    #[arg(long = "no-patch", global = true, value_name = "NAME")]
    pub off: Option<Vec<String>>,
    /// Directory with compatibility patches of your own (repeatable)
    #[arg(long = "patches", global = true, value_name = "DIR")]
    pub dirs: Option<Vec<AbsolutePath>>,
    /// Apply no compatibility patches
    #[serde(skip)]
    #[arg(long = "no-patches", global = true)]
    pub none: bool,
}

impl PatchFragment {
    /// Returns this fragment, with unset settings taken from `below`. Lists replace each other.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn flags(text: &str) -> PatchFragment {
        toml::from_str(text).expect("a fragment")
    }

    #[test]
    fn flags_go_over_what_is_below_and_lists_replace_each_other() {
        let below = flags("off = ['a']\ndirs = ['/below']");
        let none = PatchFragment { none: true, ..PatchFragment::default() };
        let above = flags("apply = true\noff = ['b', 'c']").over(below.clone());
        let wanted = PatchConfig {
            apply: true,
            off: vec!["b".into(), "c".into()],
            dirs: vec!["/below".into()],
        };
        assert_eq!(above.settle(), wanted);
        assert!(!none.over(below).settle().apply);
        assert!(PatchConfig::default().apply);
    }

    #[rstest]
    #[case("", &["a"], true)]
    #[case("off = ['b']", &["a"], true)]
    #[case("off = ['b']", &["a", "b"], false)]
    #[case("apply = false", &["a"], false)]
    #[case("apply = false", &[], true)]
    fn sets_with_a_patch_that_is_off_are_not_used(
        #[case] text: &str,
        #[case] patches: &[&str],
        #[case] allowed: bool,
    ) {
        let patches: Vec<String> = patches.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(flags(text).settle().allows(&patches), allowed);
    }
}
