//! Reads the host, finds what is at hand, and carries out the acquiring part of a plan. Everything
//! here reads the host and writes only the store.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tokio::sync::OnceCell;

use crate::artifact::ModuleSet;
use crate::build;
use crate::catalog::{self, Catalog, DriverAtHand, UserspaceAtHand};
use crate::config::Config;
use crate::failure::Failure;
use crate::host::HostFacts;
use crate::host::facts::{Kernel, Known};
use crate::lifecycle::Provider;
use crate::plan::{self, Acquire, Plan, Severity};
use crate::prebuilt::Prebuilt;
use crate::progress::Progress;
use crate::source::archive::Archive;
use crate::source::{driver, headers, userspace};
use crate::store::Store;
use crate::terminal;

/// Supplies plans with facts and a store with what plans need.
pub struct Supplier<'a> {
    config: &'a Config,
    progress: Box<dyn Progress>,
    archive: OnceCell<Archive>,
    /// Why the archives could not be read.
    unread: Mutex<Option<Failure>>,
}

impl<'a> Supplier<'a> {
    /// A supplier that works as `config` says and reports to the terminal or the log.
    pub fn new(config: &'a Config) -> Self {
        Self {
            config,
            progress: terminal::progress(),
            archive: OnceCell::new(),
            unread: Mutex::default(),
        }
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Exit code 15 where it cannot be written.
    pub fn store(&self) -> Result<Store, Failure> {
        Store::open(&self.config.paths.store)
    }

    /// The archives' indexes, read once.
    async fn archive(&self) -> Result<&Archive, Failure> {
        let apt_root = self.apt_root();
        self.archive
            .get_or_try_init(|| async {
                let store = self.store()?;
                let progress = self.progress.as_ref();
                Archive::open(&self.config.archives, apt_root, &store, progress).await
            })
            .await
    }

    /// Facts and plan of this host.
    ///
    /// # Errors
    /// What makes a plan impossible.
    pub async fn decide(&self) -> Result<(HostFacts, Plan), Failure> {
        let (facts, catalog) = self.gather().await?;
        let plan = self.plan(&facts, &catalog)?;
        Ok((facts, plan))
    }

    /// Compiles the configured driver for `release`, or for this host's kernel.
    ///
    /// # Errors
    /// 11 for headers, 12 for a driver that is not to be had, 13, 14, 15 as the build says.
    pub async fn build(&self, release: Option<&str>) -> Result<ModuleSet, Failure> {
        let paths = &self.config.paths;
        let facts = HostFacts::read(&paths.root, &paths.host_root)?;
        let archive = self.archive().await?;
        let wish = &self.config.driver;
        let drivers = driver::drivers(archive);
        let chosen = driver::find(&drivers, wish.version.as_deref(), wish.flavour)?;
        let (release, version) = match release {
            Some(named) if named != facts.kernel.release => (named, None),
            _ => (facts.kernel.release.as_str(), Some(facts.kernel.version.as_str())),
        };
        self.compile(archive, chosen, release, version).await
    }

    /// Compiles the configured driver and assembles its user-mode tree.
    ///
    /// # Errors
    /// As [`Supplier::build`]; 12 and 13 for the user-mode packages.
    pub async fn fetch(
        &self,
        release: Option<&str>,
    ) -> Result<(ModuleSet, UserspaceAtHand), Failure> {
        let set = self.build(release).await?;
        let tree = self.assemble(&set.key.driver_version).await?;
        Ok((set, tree))
    }

    async fn compile(
        &self,
        archive: &Archive,
        driver: DriverAtHand,
        release: &str,
        version: Option<&str>,
    ) -> Result<ModuleSet, Failure> {
        let mut request = build::Request::new(driver, release);
        request.kernel_version = version.map(str::to_owned);
        request.modules.clone_from(&self.config.driver.extra_modules);
        request.jobs = self.config.jobs;
        build::build(&request, archive, &self.store()?, self.progress.as_ref()).await
    }

    async fn assemble(&self, driver_version: &str) -> Result<UserspaceAtHand, Failure> {
        let store = self.store()?;
        let there = userspace::at_hand(&store)?;
        if let Some(tree) = there.into_iter().find(|t| t.driver_version == driver_version) {
            return Ok(tree);
        }
        let archive = self.archive().await?;
        userspace::assemble(driver_version, archive, &store, self.progress.as_ref()).await
    }

    /// Adds what the archives offer, unless all that is wanted is at hand. That they cannot be
    /// read is for the plan to weigh: with a set for this kernel at hand it is no reason to leave a
    /// node without its driver, and a host without a GPU has a graver finding.
    async fn ask_archives(&self, kernel: &Kernel, catalog: &mut Catalog) {
        let has_tree = |version| catalog.userspace.iter().any(|t| &t.driver_version == version);
        if self.config.driver.version.as_ref().is_some_and(has_tree)
            && self.has_set(kernel, catalog)
        {
            return;
        }
        match self.archive().await {
            Ok(archive) => {
                let version = Some(kernel.version.as_str());
                catalog.drivers = Known::Yes(driver::drivers(archive));
                catalog.headers = Known::Yes(headers::at_hand(archive, &kernel.release, version));
            }
            Err(failure) => {
                tracing::warn!("going on without the archives: {}", failure.report());
                catalog.drivers = Known::Unknown(failure.to_string());
                catalog.headers = Known::Unknown(failure.to_string());
                *self.unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            }
        }
    }

    /// Whether a set of exactly the version asked for, with all modules, is at hand for a kernel.
    fn has_set(&self, kernel: &Kernel, catalog: &Catalog) -> bool {
        let wish = &self.config.driver;
        let Some(version) = &wish.version else { return false };
        catalog.sets.iter().map(|s| &s.set).any(|set| {
            set.key.kernel_release == kernel.release
                && set.key.kernel_version == kernel.version
                && &set.key.driver_version == version
                && set.has_all(&wish.extra_modules)
                && wish.flavour.is_none_or(|flavour| flavour == set.key.flavour)
        })
    }

    /// Whose apt sources are read: the host's. A captured tree without any is decided upon with
    /// those of the machine it is looked at on.
    fn apt_root(&self) -> &Path {
        let host_root = &self.config.paths.host_root;
        let apt = host_root.join("etc/apt");
        let has_sources = ["sources.list", "sources.list.d"].iter().any(|n| apt.join(n).exists());
        if self.is_captured() && !has_sources { Path::new("/") } else { host_root }
    }

    /// Whether the facts come from a captured tree and not from this host.
    fn is_captured(&self) -> bool {
        self.config.paths.root != Path::new("/")
    }
}

impl Provider for Supplier<'_> {
    async fn gather(&self) -> Result<(HostFacts, Catalog), Failure> {
        let paths = &self.config.paths;
        let facts = HostFacts::read(&paths.root, &paths.host_root)?;
        let store = self.store()?;
        let unasked = Known::Unknown("not asked: all that is wanted is at hand".into());
        let mut catalog = catalog::gather(self.config, &facts, Some(&store), unasked)?;
        let prebuilt = Prebuilt::new(self.config)?;
        prebuilt.judge(&facts.kernel, &store, &mut catalog);
        if !self.has_set(&facts.kernel, &catalog) {
            prebuilt.ask_registries(&facts.kernel, &mut catalog).await?;
        }
        self.ask_archives(&facts.kernel, &mut catalog).await;
        Ok((facts, catalog))
    }

    fn plan(&self, facts: &HostFacts, catalog: &Catalog) -> Result<Plan, Failure> {
        let plan = plan::plan(self.config, facts, catalog)?;
        let gravest = plan.findings.iter().find(|f| f.severity == Severity::Refusal);
        if gravest.is_some_and(|f| f.code == "archives-unread") && !self.is_captured() {
            // The failure itself says more than the finding: what was not reached, or not signed.
            let unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner).take();
            return unread.map_or(Ok(plan), Err);
        }
        Ok(plan)
    }

    async fn acquire(&self, plan: &Plan) -> Result<(), Failure> {
        for item in &plan.acquire {
            match item {
                Acquire::ImportSet { dir, manifest } => {
                    let prebuilt = Prebuilt::new(self.config)?;
                    prebuilt.import(dir, manifest, &self.store()?).await?;
                }
                Acquire::PullSet { registry, manifest } => {
                    let prebuilt = Prebuilt::new(self.config)?;
                    let (store, progress) = (self.store()?, self.progress.as_ref());
                    prebuilt.pull(registry, manifest, &store, progress).await?;
                }
                Acquire::BuildSet { driver_version, flavour, kernel_release } => {
                    let archive = self.archive().await?;
                    let chosen = driver::find(
                        &driver::drivers(archive),
                        Some(driver_version),
                        Some(*flavour),
                    )?;
                    let paths = &self.config.paths;
                    let kernel = HostFacts::read(&paths.root, &paths.host_root)?.kernel;
                    self.compile(archive, chosen, kernel_release, Some(&kernel.version)).await?;
                }
                Acquire::AssembleUserspace { driver_version } => {
                    self.assemble(driver_version).await?;
                }
            }
        }
        Ok(())
    }
}
