//! Remote sources, each read once: the archives and the .run files; and the list of unreachable
//! servers, which the registries share.

use std::path::Path;

use tokio::sync::OnceCell;

use super::open_archives::OpenArchives;
use super::run_files::RunFiles;
use crate::catalog::Offers;
use crate::config::Config;
use crate::open_registry::open_registry;
use crate::prebuilt::Prebuilt;
use crate::telemetry::{Counted, Telemetry};
use crate::terminal;
use longshore_build::build_root::{self, BuildRoot, Identified};
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::Failure;
use longshore_core::flavour::Flavour;
use longshore_core::image_reference::Repository;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_fetch::http::{Fetcher, Policy, UnreachableHosts};
use longshore_host::facts::Probe;
use longshore_sources::driver::{self, AvailableDriver, DriverOrigin};
use longshore_sources::pinned::PinnedFetcher;
use longshore_sources::source_tree::{self, SourceTree};

/// The configured sources.
pub(super) struct Sources<'a> {
    config: &'a Config,
    progress: Box<dyn Progress>,
    /// Unreachable servers, shared by all sources so that none queries them again.
    away: UnreachableHosts,
    pub(super) archive: OnceCell<Archive>,
    /// The configured build root, read once.
    build_root: OnceCell<Identified>,
    no_archive: OnceCell<Archive>,
    pub(super) run_files: RunFiles<'a>,
    /// Answers of the registries.
    pub(super) registries: OnceCell<Offers>,
}

impl<'a> Sources<'a> {
    /// Returns the sources of `config`; transfers are shown on the terminal or in the log.
    pub(super) fn new(config: &'a Config) -> Self {
        let away = UnreachableHosts::default();
        let run_files = RunFiles::new(config, away.clone());
        let (build_root, no_archive) = (OnceCell::new(), OnceCell::new());
        let (progress, archive) = (terminal::progress(), OnceCell::new());
        let registries = OnceCell::new();
        Self { config, progress, away, archive, build_root, no_archive, run_files, registries }
    }

    /// Returns the list of unreachable servers.
    pub(super) fn away(&self) -> &UnreachableHosts {
        &self.away
    }

    /// Counts transfers in `telemetry`, too.
    pub(super) fn counting(self, telemetry: &Telemetry) -> Self {
        let progress = Box::new(Counted::new(self.progress, telemetry.clone()));
        Self { progress, ..self }
    }

    /// Like [`OpenArchives::archive`], with short timeouts: for callers that have a fallback.
    pub(super) async fn archive_soon(&self, store: &Store) -> Result<&Archive, Failure> {
        let open = || {
            let (config, apt_root) = (&self.config.archives, self.apt_root());
            let policy = Policy::from_config(&self.config.downloads);
            Archive::open_soon(policy, config, apt_root, store, self.progress())
        };
        self.archive.get_or_try_init(open).await
    }

    /// Returns the kernel sources of all drivers: the trees, and those of the .run files where configured, else of the
    /// archives. Unreadable .run files are warned of where a tree has the configured driver.
    ///
    /// # Errors
    /// Exit code 12 for an unreachable source; as [`runfile::look`].
    pub(super) async fn drivers(&self, store: &Store) -> Result<Offers, Failure> {
        let source_trees = self.config.source_trees.clone();
        if self.run_files.are_named() {
            let requested = &self.config.driver;
            let of_tree = || self.of_tree(requested.version.as_deref(), requested.flavour);
            let run_files = match self.run_files.known(store, self).await {
                Ok(files) => Probe::Read(files),
                Err(failure) if of_tree().is_some() => {
                    tracing::warn!("continuing with the source trees: {}", failure.one_line());
                    Probe::Unreadable(failure.one_line())
                }
                Err(failure) => return Err(failure),
            };
            return Ok(Offers { source_trees, run_files: Some(run_files), ..Offers::default() });
        }
        let drivers = Probe::Read(driver::drivers(self.archive_to_build(store).await?));
        Ok(Offers { source_trees, drivers: Some(drivers), ..Offers::default() })
    }

    /// Finds the kernel sources of this version, or branch, and flavour; the newest without one.
    ///
    /// # Errors
    /// Exit code 12 where no source has it, naming the nearest.
    pub(super) async fn find_driver(
        &self,
        version: Option<&str>,
        flavour: Option<Flavour>,
        store: &Store,
    ) -> Result<AvailableDriver, Failure> {
        let of_tree = self.of_tree(version, flavour);
        let is_whole = |driver: &AvailableDriver| version == Some(driver.version.as_str());
        if let Some(driver) = of_tree.as_ref().filter(|driver| is_whole(driver)) {
            return Ok(driver.clone());
        }
        match (of_tree, self.find_other(version, flavour, store).await) {
            (None, other) => other,
            (Some(driver), Err(failure)) => {
                tracing::warn!("continuing with the source trees: {}", failure.one_line());
                Ok(driver)
            }
            (Some(driver), Ok(other)) => {
                let is_newer =
                    DriverVersion::new(&other.version) > DriverVersion::new(&driver.version);
                Ok(if is_newer { other } else { driver })
            }
        }
    }

    /// Finds the kernel sources in the trees.
    fn of_tree(&self, version: Option<&str>, flavour: Option<Flavour>) -> Option<AvailableDriver> {
        let mut trees: Vec<_> = self.config.source_trees.iter().map(SourceTree::driver).collect();
        driver::sort(&mut trees);
        driver::find(&trees, version, flavour).ok()
    }

    /// Finds kernel sources in .run files or archives.
    async fn find_other(
        &self,
        version: Option<&str>,
        flavour: Option<Flavour>,
        store: &Store,
    ) -> Result<AvailableDriver, Failure> {
        if self.run_files.are_named() {
            return self.run_files.find(version, flavour, store, self).await;
        }
        let archive = self.archive(store).await?;
        let found = driver::find(&driver::drivers(archive), version, flavour);
        found.map_err(|failure| archive.with_unread(failure))
    }

    /// As [`Sources::find_driver`]; a .run file or a tree is in the store afterwards.
    ///
    /// # Errors
    /// As [`Sources::find_driver`] and [`runfile::fetch`].
    pub(super) async fn driver_in_store(
        &self,
        version: Option<&str>,
        flavour: Option<Flavour>,
        store: &Store,
    ) -> Result<AvailableDriver, Failure> {
        let found = self.find_driver(version, flavour, store).await?;
        match self.fetch_file_of(&found, store).await? {
            // Its flavours are known by now, and no longer only expected.
            true => self.find_driver(version, flavour, store).await,
            false => Ok(found),
        }
    }

    /// Brings the .run file or the tree of a driver into the store, if it is of one; returns true where the store did not
    /// have the .run file, whose flavours are known only now.
    ///
    /// # Errors
    /// As [`runfile::fetch`](longshore_sources::runfile::fetch) and [`source_tree::fetch`].
    pub(super) async fn fetch_file_of(
        &self,
        driver: &AvailableDriver,
        store: &Store,
    ) -> Result<bool, Failure> {
        if let DriverOrigin::SourceTree { urls } = &driver.origin {
            let AvailableDriver { version, sha256, .. } = driver.clone();
            let tree = SourceTree { version, sha256, urls: urls.clone() };
            self.fetch_tree(&tree, store).await?;
            return Ok(false);
        }
        if !self.run_files.are_named() {
            return Ok(false);
        }
        let file = self.run_files.of_version(&driver.version, store, self).await?;
        self.run_files.fetch(&file, store, self.progress()).await?;
        Ok(!file.stored)
    }

    /// Brings a tree into the store.
    ///
    /// # Errors
    /// As [`source_tree::fetch`].
    pub(super) async fn fetch_tree(&self, tree: &SourceTree, store: &Store) -> Result<(), Failure> {
        let policy =
            Policy { away: self.away.clone(), ..Policy::from_config(&self.config.downloads) };
        let fetcher = Fetcher::new(policy, &self.config.paths.host_root)?;
        let open = |repository: &Repository| open_registry(self.config, &self.away, repository);
        let fetcher = PinnedFetcher::new(&fetcher, &open);
        source_tree::fetch(tree, fetcher, store, self.progress()).await
    }

    /// Returns the prebuilt sets' sources.
    ///
    /// # Errors
    /// Exit code 2 for an unreadable public key.
    pub(super) fn prebuilt(&self) -> Result<Prebuilt<'a>, Failure> {
        Ok(Prebuilt::new(self.config)?.sharing(&self.away))
    }

    /// Returns the configured build root by its digest; None where none is configured.
    ///
    /// # Errors
    /// As [`build_root::identify`].
    pub(super) async fn build_root(&self) -> Result<Option<&Identified>, Failure> {
        let Some(source) = &self.config.build_root else { return Ok(None) };
        self.build_root.get_or_try_init(|| build_root::identify(source)).await.map(Some)
    }

    /// Returns the configured build root, unpacked into the store; None where none is configured.
    ///
    /// # Errors
    /// As [`Identified::acquire`].
    pub(super) async fn unpacked_root(&self, store: &Store) -> Result<Option<BuildRoot>, Failure> {
        let Some(identified) = self.build_root().await? else { return Ok(None) };
        let open = |repository: &Repository| open_registry(self.config, &self.away, repository);
        let limit = self.config.deadlines.build;
        identified.acquire(&open, limit, store, self.progress()).await.map(Some)
    }

    /// Returns the archives for a compile: an empty one, where nothing is taken from them.
    ///
    /// # Errors
    /// As [`OpenArchives::archive`].
    pub(super) async fn archive_to_build(&self, store: &Store) -> Result<&Archive, Failure> {
        if !self.config.compiles_without_archive() {
            return self.archive(store).await;
        }
        let none = async || {
            Archive::without_sources(Policy::from_config(&self.config.downloads), self.apt_root())
        };
        self.no_archive.get_or_try_init(none).await
    }

    fn apt_root(&self) -> &Path {
        self.config.paths.apt_root().unwrap_or(Path::new("/"))
    }
}

impl OpenArchives for Sources<'_> {
    async fn archive(&self, store: &Store) -> Result<&Archive, Failure> {
        let open = || {
            let (config, apt_root) = (&self.config.archives, self.apt_root());
            let policy =
                Policy { away: self.away.clone(), ..Policy::from_config(&self.config.downloads) };
            Archive::open_with(policy, config, apt_root, store, self.progress())
        };
        self.archive.get_or_try_init(open).await
    }

    fn progress(&self) -> &dyn Progress {
        self.progress.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{self, Fragment};

    #[test]
    fn apt_sources_are_the_hosts_and_of_a_captured_tree_where_it_has_some() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = config::load(Fragment::default(), &|_| None, None).expect("a default");
        config.paths.host_root = dir.path().into();
        let of_host = Sources::new(&config);
        assert_eq!(of_host.apt_root(), dir.path());
        config.paths.root = dir.path().into();
        assert_eq!(Sources::new(&config).apt_root(), Path::new("/"));
        fs::create_dir_all(dir.path().join("etc/apt/sources.list.d")).expect("directories");
        assert_eq!(Sources::new(&config).apt_root(), dir.path());
    }
}
