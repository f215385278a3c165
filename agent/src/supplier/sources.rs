//! Remote sources, each read once: the archives and the .run files; and the list of unreachable
//! servers, which the registries share.

use std::path::Path;

use tokio::sync::OnceCell;

use super::run_files::{Archives, RunFiles};
use crate::config::Config;
use crate::prebuilt::Prebuilt;
use crate::telemetry::{Counted, Telemetry};
use crate::terminal;
use longshore_build::source::driver::{self, AvailableDriver};
use longshore_core::failure::Failure;
use longshore_core::flavour::Flavour;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_fetch::http::{Policy, UnreachableHosts};

/// The configured sources.
pub(super) struct Sources<'a> {
    config: &'a Config,
    progress: Box<dyn Progress>,
    /// Unreachable servers, shared by all sources so that none queries them again.
    away: UnreachableHosts,
    pub(super) archive: OnceCell<Archive>,
    pub(super) run_files: RunFiles<'a>,
}

impl<'a> Sources<'a> {
    /// Returns the sources of `config`; transfers are shown on the terminal or in the log.
    pub(super) fn new(config: &'a Config) -> Self {
        let away = UnreachableHosts::default();
        let run_files = RunFiles::new(config, away.clone());
        let (progress, archive) = (terminal::progress(), OnceCell::new());
        Self { config, progress, away, archive, run_files }
    }

    /// Counts transfers in `telemetry`, too.
    pub(super) fn counting(self, telemetry: &Telemetry) -> Self {
        let progress = Box::new(Counted::new(self.progress, telemetry.clone()));
        Self { progress, ..self }
    }

    /// Like [`Archives::archive`], with short timeouts: for callers that have a fallback.
    pub(super) async fn archive_soon(&self, store: &Store) -> Result<&Archive, Failure> {
        let open = || {
            let (config, apt_root) = (&self.config.archives, self.apt_root());
            let policy = Policy::of(&self.config.downloads);
            Archive::open_soon(policy, config, apt_root, store, self.progress())
        };
        self.archive.get_or_try_init(open).await
    }

    /// Returns the driver of this version and flavour: from the .run files where configured, else
    /// from the archives. A .run file is in the store afterwards.
    ///
    /// # Errors
    /// Exit code 12 where no source has it.
    pub(super) async fn pick(
        &self,
        version: Option<&str>,
        flavour: Option<Flavour>,
        store: &Store,
    ) -> Result<AvailableDriver, Failure> {
        if self.run_files.are_named() {
            return self.run_files.choose(version, flavour, store, self).await;
        }
        driver::find(&driver::drivers(self.archive(store).await?), version, flavour)
    }

    /// Returns the prebuilt sets' sources.
    ///
    /// # Errors
    /// Exit code 2 for an unreadable public key.
    pub(super) fn prebuilt(&self) -> Result<Prebuilt<'a>, Failure> {
        Ok(Prebuilt::new(self.config)?.sharing(&self.away))
    }

    /// Returns the root of the apt sources to read: the host's. A captured tree without apt sources
    /// uses those of this machine.
    fn apt_root(&self) -> &Path {
        let host_root = &self.config.paths.host_root;
        let apt = host_root.join("etc/apt");
        let has_sources = ["sources.list", "sources.list.d"].iter().any(|n| apt.join(n).exists());
        if self.config.paths.is_captured() && !has_sources { Path::new("/") } else { host_root }
    }
}

impl Archives for Sources<'_> {
    async fn archive(&self, store: &Store) -> Result<&Archive, Failure> {
        let open = || {
            let (config, apt_root) = (&self.config.archives, self.apt_root());
            let policy = Policy::of(&self.config.downloads);
            let policy = Policy { away: self.away.clone(), ..policy };
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
