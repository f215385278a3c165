//! Configured .run files: read once, fetched when needed.

use std::path::Path;

use tokio::sync::OnceCell;

use super::open_archives::OpenArchives;
use crate::config::Config;
use crate::open_registry::open_registry;
use longshore_build::extract::Workshop;
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::image_reference::Repository;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_fetch::http::{Fetcher, Policy, UnreachableHosts};
use longshore_host::facts::Probe;
use longshore_sources::driver::{self, AvailableDriver};
use longshore_sources::pinned::PinnedFetcher;
use longshore_sources::runfile::{self, AvailableRunFile, Looked, Pin, StoredRunFile};
use longshore_support::SupportTable;

/// Reader of the configured .run files, each looked at once.
pub(super) struct RunFiles<'a> {
    config: &'a Config,
    /// Unreachable servers.
    away: UnreachableHosts,
    looked: OnceCell<Vec<AvailableRunFile>>,
}

impl<'a> RunFiles<'a> {
    pub(super) fn new(config: &'a Config, away: UnreachableHosts) -> Self {
        Self { config, away, looked: OnceCell::new() }
    }

    pub(super) fn are_named(&self) -> bool {
        !self.config.run_files.is_empty()
    }

    /// Returns the files for the catalog; without queries over the network where these are
    /// `needless`.
    ///
    /// # Errors
    /// As [`runfile::look`].
    pub(super) async fn look(
        &self,
        store: &Store,
        needless: bool,
        archives: &impl OpenArchives,
    ) -> Result<Probe<Vec<AvailableRunFile>>, Failure> {
        if !self.are_named() {
            return Ok(Probe::Read(Vec::new()));
        }
        let is_stored =
            |pin: &Pin| matches!(pin, Pin::Sha256(s) if runfile::find(store, s).is_some());
        if needless && !self.config.run_files.iter().all(|file| is_stored(&file.pin)) {
            return Ok(Probe::Unreadable("not queried: everything needed is available".into()));
        }
        self.known(store, archives).await.map(Probe::Read)
    }

    /// Finds the kernel sources of this version, or branch, and flavour; the newest without one.
    ///
    /// # Errors
    /// Exit code 12 where no file has it.
    pub(super) async fn find(
        &self,
        version: Option<&str>,
        flavour: Option<Flavour>,
        store: &Store,
        archives: &impl OpenArchives,
    ) -> Result<AvailableDriver, Failure> {
        let files = self.known(store, archives).await?;
        driver::find(&drivers(&files, &self.config.support.table), version, flavour).map_err(
            |nearest| {
                let wanted = version.map(|v| format!(" {v}")).unwrap_or_default();
                let flavour = flavour.map(|f| format!(" {f}")).unwrap_or_default();
                let cause = format!("no configured .run file has the driver{wanted}{flavour}");
                let remedy = nearest.remedy_text().unwrap_or_default().to_owned();
                Failure::new(FailureKind::Download, cause).remedy(remedy)
            },
        )
    }

    /// Returns the file with a version.
    ///
    /// # Errors
    /// Exit code 12 where no file has it.
    pub(super) async fn of_version(
        &self,
        version: &str,
        store: &Store,
        archives: &impl OpenArchives,
    ) -> Result<AvailableRunFile, Failure> {
        let files = self.known(store, archives).await?;
        files.into_iter().find(|file| file.version == version).ok_or_else(|| {
            let cause = format!("no configured .run file has version {version}");
            Failure::new(FailureKind::Download, cause)
                .remedy("configure the .run file of that version")
        })
    }

    /// Fetches a file into the store.
    ///
    /// # Errors
    /// As [`runfile::fetch`].
    pub(super) async fn fetch(
        &self,
        file: &AvailableRunFile,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<StoredRunFile, Failure> {
        let fetcher = self.fetcher()?;
        let open = |repository: &Repository| open_registry(self.config, &self.away, repository);
        runfile::fetch(file, PinnedFetcher::new(&fetcher, &open), store, progress).await
    }

    /// Returns what is known of every file by now.
    pub(super) async fn known(
        &self,
        store: &Store,
        archives: &impl OpenArchives,
    ) -> Result<Vec<AvailableRunFile>, Failure> {
        let looked = self.looked.get_or_try_init(|| self.look_at_all(store, archives)).await?;
        Ok(looked.iter().map(|file| runfile::as_stored(file, store)).collect())
    }

    async fn look_at_all(
        &self,
        store: &Store,
        archives: &impl OpenArchives,
    ) -> Result<Vec<AvailableRunFile>, Failure> {
        let fetcher = self.fetcher()?;
        let open = |repository: &Repository| open_registry(self.config, &self.away, repository);
        let fetcher = PinnedFetcher::new(&fetcher, &open);
        let mut files = Vec::new();
        for source in &self.config.run_files {
            files.push(match runfile::look(source, fetcher, store).await? {
                Looked::Known(file) => file,
                Looked::Foreign(file) => {
                    let archive = archives.archive(store).await?;
                    let progress = archives.progress();
                    let (limit, user) = (self.config.deadlines.build, self.config.build_user);
                    let root = Workshop::root(archive, limit, store, progress).await?;
                    let helper = Path::new("/proc/self/exe");
                    let workshop = Workshop { root, helper, fetcher, limit, user };
                    let stored = workshop.extract(&file, store, progress).await?;
                    runfile::available(&stored, file.source.urls)
                }
            });
        }
        Ok(files)
    }

    fn fetcher(&self) -> Result<Fetcher, Failure> {
        let policy =
            Policy { away: self.away.clone(), ..Policy::from_config(&self.config.downloads) };
        Fetcher::new(policy, &self.config.paths.host_root)
    }
}

/// Sorts by version, newest first, then by NVIDIA's recommended flavour first.
fn drivers(files: &[AvailableRunFile], table: &SupportTable) -> Vec<AvailableDriver> {
    let mut drivers: Vec<_> = files.iter().flat_map(AvailableRunFile::drivers).collect();
    let is_recommended = |driver: &AvailableDriver| {
        let branch = DriverVersion::new(&driver.version).branch();
        let since = table.open_recommended_branch();
        let open = branch.zip(since).is_none_or(|(branch, since)| branch >= since);
        (driver.flavour == Flavour::Open) == open
    };
    drivers.sort_by(|a, b| {
        longshore_debian::version::compare(&b.version, &a.version)
            .then_with(|| is_recommended(b).cmp(&is_recommended(a)))
    });
    drivers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Fragment};
    use longshore_core::disk::Disk;
    use longshore_core::progress::Silent;
    use longshore_debian::archive::Archive;

    struct Nobody;

    impl OpenArchives for Nobody {
        async fn archive(&self, _: &Store) -> Result<&Archive, Failure> {
            Err(Failure::new(FailureKind::Bug, "the archives were queried"))
        }

        fn progress(&self) -> &dyn Progress {
            &Silent
        }
    }

    #[tokio::test]
    async fn without_run_files_nothing_is_set_up() {
        let config = config::load(Fragment::default(), &|_| None, None).expect("configuration");
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let files = RunFiles::new(&config, UnreachableHosts::default());
        for needless in [false, true] {
            let Ok(Probe::Read(found)) = files.look(&store, needless, &Nobody).await else {
                panic!("known")
            };
            assert!(found.is_empty());
        }
        assert!(files.looked.get().is_none(), "no client was made");
    }
}
