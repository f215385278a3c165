//! Set and tree that the store has already.

use super::Supplier;
use crate::artifact::ModuleSet;
use crate::artifact::{KernelId, SetQuery};
use crate::catalog::Catalog;
use crate::driver_version::DriverVersion;
use crate::failure::Failure;
use crate::host::HostFacts;
use crate::host::facts::Kernel;
use crate::source::archive::Archive;
use crate::source::http::Policy;
use crate::source::userspace;
use crate::source::userspace::AvailableUserspace;

impl Supplier<'_> {
    /// Returns set and tree of exactly the requested version, where the store has them: then
    /// nothing has to be fetched, and no network is needed. None where there are several
    /// candidates.
    pub(super) fn stored(
        &self,
        release: Option<&str>,
    ) -> Result<Option<(ModuleSet, AvailableUserspace)>, Failure> {
        let wish = &self.config.driver;
        // The choice of the set needs the whole catalog if signatures are required.
        let any = !self.config.signatures.required && self.config.module_signing.is_none();
        let Some(version) = wish.version.as_deref().filter(|_| any) else { return Ok(None) };
        let paths = &self.config.paths;
        let kernel = HostFacts::read(&paths.root, &paths.host_root)?.kernel;
        let release = release.unwrap_or(&kernel.release);
        let is_own = release == kernel.release;
        let store = self.store()?;
        let mut sets = store.sets()?;
        let query = SetQuery {
            kernel: KernelId {
                release,
                version: is_own.then_some(kernel.version.as_str()),
                arch: &kernel.arch,
            },
            driver_version: version,
            flavour: wish.flavour,
        };
        sets.retain(|set| {
            query.matches_with(set, &wish.extra_modules)
                && self.config.patches.allows(set.key.patches.keys())
                && store.holds(set)
        });
        let trees = userspace::at_hand(&store)?;
        let tree = trees.into_iter().find(|tree| tree.driver_version == version);
        Ok(match (sets.pop(), tree) {
            (Some(set), Some(tree)) if sets.is_empty() => Some((set, tree)),
            _ => None,
        })
    }

    /// Like `archive`, with short timeouts: for callers that have a fallback.
    pub(super) async fn archive_soon(&self) -> Result<&Archive, Failure> {
        let apt_root = self.apt_root();
        let open = async || {
            let store = self.store()?;
            let (config, progress) = (&self.config.archives, self.progress.as_ref());
            let policy = Policy::of(&self.config.downloads);
            Archive::open_soon(policy, config, apt_root, &store, progress).await
        };
        self.archive.get_or_try_init(open).await
    }

    /// True if set and tree of a suitable driver, of any matching version, are available.
    pub(super) fn has_some(&self, kernel: &Kernel, catalog: &Catalog) -> bool {
        let wish = self.config.driver.version.as_deref();
        catalog.userspace.iter().map(|tree| &tree.driver_version).any(|version| {
            wish.is_none_or(|wish| DriverVersion::new(version).is_within(wish))
                && self.has_set(version, kernel, catalog)
        })
    }
}
