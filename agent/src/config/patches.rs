//! Selection of compatibility patches.

use super::layer::settings;
use longshore_build::patches::PatchConfig;
use longshore_core::value::AbsolutePath;

settings! {
    /// Patch settings of one configuration layer.
    PatchFragment after decided;

    /// Apply compatibility patches
    apply: Option<bool>;
        attributes #[arg(skip)]
        key "apply" env "LONGSHORE_PATCHES_APPLY"
        default "`true`"
    /// Name of a compatibility patch that is not applied
    ///
    /// See [patches.md](../supply-chain/patches.md).
    off: Option<Vec<String>>;
        key "off" flag "no-patch" "NAME" env "LONGSHORE_PATCHES_OFF"
        default "none"
    /// Directory with compatibility patches of your own
    ///
    /// They must be [root's alone](../supply-chain/security.md#files-of-root-alone).
    dirs: Option<Vec<AbsolutePath>>;
        key "dirs" flag "patches" "DIR" env "LONGSHORE_PATCHES"
        default "none"
    /// Apply no compatibility patches; the same as `apply = false`
    none: bool;
        attributes #[serde(skip)]
        flag "no-patches"
        default "`false`"
}

/// Makes `--no-patches` an `apply = false`.
fn decided(mut above: PatchFragment, below: PatchFragment) -> (PatchFragment, PatchFragment) {
    if above.none {
        above.apply = Some(false);
    }
    (PatchFragment { none: false, ..above }, below)
}

impl PatchFragment {
    pub(super) fn with_defaults(self) -> PatchConfig {
        let default = PatchConfig::default();
        PatchConfig {
            apply: !self.none && self.apply.unwrap_or(default.apply),
            off: self.off.unwrap_or(default.off),
            dirs: self.dirs.map_or(default.dirs, |dirs| AbsolutePath::list(Some(dirs))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layer::Over;
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
        assert_eq!(above.with_defaults(), wanted);
        assert!(!none.over(below).with_defaults().apply);
        assert!(PatchConfig::default().apply);
    }

    #[rstest]
    #[case("", &["a"], true)]
    #[case("off = ['b']", &["a"], true)]
    #[case("off = ['b']", &["a", "b"], false)]
    #[case("apply = false", &["a"], false)]
    #[case("apply = false", &[], true)]
    #[case("apply = false", &["packaging-patches"], true)]
    #[case("apply = false", &["a", "packaging-patches"], false)]
    fn sets_with_a_patch_that_is_off_are_not_used(
        #[case] text: &str,
        #[case] patches: &[&str],
        #[case] allowed: bool,
    ) {
        let patches: Vec<String> = patches.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(flags(text).with_defaults().allows(&patches), allowed);
    }
}
