//! Search criteria for module sets.

use super::{ModuleKey, ModuleSet};
use longshore_core::flavour::Flavour;
use longshore_core::kernel_id::KernelId;

/// Criteria for a set of modules.
#[derive(Debug, Clone, Copy)]
pub struct SetQuery<'a> {
    /// Kernel that it is for.
    pub kernel: KernelId<'a>,
    /// Exact version of the driver.
    pub driver_version: &'a str,
    /// Flavour; None for either.
    pub flavour: Option<Flavour>,
}

impl SetQuery<'_> {
    /// True if a set with this key is wanted.
    pub fn matches(&self, key: &ModuleKey) -> bool {
        key.is_for(&self.kernel)
            && key.driver_version == self.driver_version
            && self.flavour.is_none_or(|flavour| key.flavour == flavour)
    }

    /// True if a set is wanted and has all of these modules (kernel names).
    pub fn matches_with<'n>(
        &self,
        set: &ModuleSet,
        modules: impl IntoIterator<Item = &'n (impl AsRef<str> + 'n)>,
    ) -> bool {
        self.matches(&set.key) && set.has_all(modules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set;
    use rstest::rstest;

    #[rstest]
    #[case::itself(|_: &mut ModuleKey| (), true)]
    #[case::other_headers(|key: &mut ModuleKey| key.headers.clear(), true)]
    #[case::another_release(|key: &mut ModuleKey| key.kernel_release.push('1'), false)]
    #[case::another_build(|key: &mut ModuleKey| key.kernel_version.push('1'), false)]
    #[case::an_unknown_build(|key: &mut ModuleKey| key.kernel_version.clear(), true)]
    #[case::another_machine(|key: &mut ModuleKey| key.arch = "aarch64".into(), false)]
    #[case::another_driver(|key: &mut ModuleKey| key.driver_version.push('1'), false)]
    #[case::the_other_flavour(|key: &mut ModuleKey| key.flavour = Flavour::Proprietary, false)]
    fn every_criterion_counts(#[case] change: fn(&mut ModuleKey), #[case] wanted: bool) {
        let requested = set().key;
        let query = SetQuery {
            kernel: KernelId {
                release: &requested.kernel_release,
                version: Some(&requested.kernel_version),
                arch: &requested.arch,
            },
            driver_version: &requested.driver_version,
            flavour: Some(requested.flavour),
        };
        let mut found = set();
        change(&mut found.key);
        assert_eq!(query.matches(&found.key), wanted);
        assert_eq!(query.matches_with(&found, &["nvidia"]), wanted);
        assert!(!query.matches_with(&found, &["nvidia", "nvidia_peermem"]));
    }

    #[test]
    fn either_flavour_and_any_build_fit_where_none_is_named() {
        let requested = set().key;
        let query = SetQuery {
            kernel: KernelId {
                release: &requested.kernel_release,
                version: None,
                arch: &requested.arch,
            },
            driver_version: &requested.driver_version,
            flavour: None,
        };
        let mut found = requested.clone();
        found.kernel_version.push('1');
        found.flavour = Flavour::Proprietary;
        assert!(query.matches(&found));
    }
}
