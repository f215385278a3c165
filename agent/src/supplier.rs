//! Provides facts and catalog to the planner, and carries out a plan's acquisitions. Everything
//! here reads the host and writes only the store.

mod after;
mod at_hand;
mod fits;
mod gather;
mod ladder;
mod once;
mod run_files;
mod signing;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::sync::OnceCell;

use gather::read_host;
use run_files::{Archives, RunFiles};
use signing::Signing;

use crate::artifact::ModuleSet;
use crate::build::{self, Failed, KnownFailure};
use crate::catalog::{Catalog, SetPlace};
use crate::config::Config;
use crate::failure::{ExitCode, Failure};
use crate::finding::{Code, Severity};
use crate::flavour::Flavour;
use crate::host::HostFacts;
use crate::host::facts::Known;
use crate::journal::PlanSummary;
use crate::once::Claims;
use crate::plan::{self, Plan};
use crate::prebuilt::Offers;
use crate::progress::Progress;
use crate::provider::Provider;
use crate::source::archive::Archive;
use crate::source::driver::AvailableDriver;
use crate::source::http::{Away, Policy};
use crate::source::userspace::AvailableUserspace;
use crate::source::{driver, userspace};
use crate::steps::Step;
use crate::store::Store;
use crate::store::usage::InUse;
use crate::telemetry::{Counted, Origin, Telemetry};
use crate::terminal;

/// Provides plans with facts, and the store with everything that plans need.
pub struct Supplier<'a> {
    config: &'a Config,
    progress: Box<dyn Progress>,
    telemetry: Telemetry,
    /// Unreachable servers, shared by all sources so that none queries them again.
    away: Away,
    archive: OnceCell<Archive>,
    run_files: RunFiles<'a>,
    signing: Signing<'a>,
    /// Answers of the registries, queried once: a plan and its acquisitions rely on the same
    /// answers.
    registries: OnceCell<Offers>,
    /// Error that made the archives unreadable.
    unread: Mutex<Option<Failure>>,
    /// Locations whose sets could not be acquired, and count as unavailable since.
    failed: Mutex<Vec<SetPlace>>,
    /// True to retry a compile that failed before.
    retry: bool,
    /// Claims that it compiles under for other hosts.
    claims: Claims,
    /// Shared lock that prevents removals from the store meanwhile.
    in_use: Mutex<Option<InUse>>,
    /// The store, once opened.
    store: OnceLock<Store>,
}

impl<'a> Supplier<'a> {
    /// Returns a supplier for `config` that reports to the terminal or the log.
    pub fn new(config: &'a Config) -> Self {
        let away = Away::default();
        Self {
            config,
            progress: terminal::progress(),
            telemetry: Telemetry::default(),
            archive: OnceCell::new(),
            run_files: RunFiles::new(config, away.clone()),
            away,
            signing: Signing::new(config),
            registries: OnceCell::new(),
            unread: Mutex::default(),
            failed: Mutex::default(),
            retry: false,
            claims: Claims::default(),
            in_use: Mutex::default(),
            store: OnceLock::new(),
        }
    }

    /// With `retry`, also compiles what failed a short while ago.
    #[must_use]
    pub fn retrying(self, retry: bool) -> Self {
        Self { retry, ..self }
    }

    /// Adds its claims to `claims`, so that they are released where it is stopped.
    #[must_use]
    pub fn claiming(self, claims: &Claims) -> Self {
        Self { claims: claims.clone(), ..self }
    }

    /// Reports fetches, reuse and compiles to `telemetry`.
    #[must_use]
    pub fn telling(self, telemetry: &Telemetry) -> Self {
        let progress = Box::new(Counted::new(self.progress, telemetry.clone()));
        Self { progress, telemetry: telemetry.clone(), ..self }
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Exit code 15 where it is not writable.
    pub fn store(&self) -> Result<Store, Failure> {
        if let Some(store) = self.store.get() {
            return Ok(store.clone());
        }
        let store = Store::open(&self.config.paths.store)?;
        Ok(self.store.get_or_init(|| store).clone())
    }

    /// Returns facts and plan of this host.
    ///
    /// # Errors
    /// Failures that make planning impossible.
    pub async fn decide(&self) -> Result<(HostFacts, Plan), Failure> {
        let (facts, catalog) = self.gather().await?;
        let plan = self.plan(&facts, &catalog)?;
        Ok((facts, plan))
    }

    /// Compiles the configured driver for `release`, or for this host's kernel, and signs it for
    /// the kernel where configured. With publishing configured, takes the set from the registry, or
    /// the one that another host compiles meanwhile.
    ///
    /// # Errors
    /// 2 for an unusable key, 11 for headers, 12 for an unavailable driver, and 13, 14, 15 as in
    /// the build.
    pub async fn build(&self, release: Option<&str>) -> Result<ModuleSet, Failure> {
        let paths = &self.config.paths;
        build::check_modules(&self.config.driver.extra_modules)?;
        self.signing.check()?;
        self.share_store().await?;
        let facts = HostFacts::read(&paths.root, &paths.host_root)?;
        self.check_sandbox(&facts)?;
        let chosen = self.choose(&facts).await?;
        let (release, version) = match release {
            Some(named) if named != facts.kernel.release => (named, None),
            _ => (facts.kernel.release.as_str(), Some(facts.kernel.version.as_str())),
        };
        let set = self.build_once(once::Wanted::new(&chosen, release, version)).await?;
        // A set that another host published may be unsigned.
        self.sign(set).await
    }

    /// Returns the driver that a plan for `facts` would choose, with or without a GPU: from the
    /// .run files where configured, else from the archives. A .run file is in the store afterwards.
    async fn choose(&self, facts: &HostFacts) -> Result<AvailableDriver, Failure> {
        let wish = &self.config.driver;
        if self.run_files.are_named() {
            return self.pick(wish.version.as_deref(), wish.flavour).await;
        }
        let drivers = driver::drivers(self.archive().await?);
        let unasked = || "not asked".to_owned();
        let catalog = Catalog {
            sets: Vec::new(),
            refused: Vec::new(),
            unread: Vec::new(),
            userspace: Vec::new(),
            drivers: Known::Yes(drivers.clone()),
            run_files: Known::Unknown(unasked()),
            headers: Known::Unknown(unasked()),
            signer: None,
            fits: BTreeMap::new(),
        };
        let plan = plan::plan(self.config, facts, &catalog)?;
        let planned = driver::find(&drivers, Some(&plan.driver_version), Some(plan.flavour));
        // A request that no plan can meet is reported against the available drivers.
        planned.or_else(|_| driver::find(&drivers, wish.version.as_deref(), wish.flavour))
    }

    /// Acquires the modules for `release`, or for this host's kernel, and the user-mode tree into
    /// the store, from the same sources as `run`. Where the store has exactly the requested
    /// version, no other source is queried.
    ///
    /// # Errors
    /// As [`Supplier::build`], and where compiling is not allowed and no set is available; 12 and
    /// 13 for the user-mode packages.
    pub async fn fetch(
        &self,
        release: Option<&str>,
    ) -> Result<(ModuleSet, AvailableUserspace), Failure> {
        self.share_store().await?;
        if let Some(stored) = self.stored(release)? {
            return Ok(stored);
        }
        let set = self.obtain(release).await?;
        let tree = self.assemble(&set.key.driver_version).await?;
        Ok((set, tree))
    }

    /// Checks that this process may make the build sandbox, before anything is fetched for it.
    fn check_sandbox(&self, facts: &HostFacts) -> Result<(), Failure> {
        let (Known::Yes(have), false) = (&facts.capabilities, self.is_captured()) else {
            return Ok(());
        };
        if have.contains("CAP_SYS_ADMIN") {
            return Ok(());
        }
        let user = nix::unistd::geteuid();
        let cause = format!(
            "running with user id {user} and without CAP_SYS_ADMIN, which the build sandbox needs"
        );
        Err(Failure::new(ExitCode::Preflight, cause)
            .remedy("run it as root (the container privileged), or build elsewhere and give the set with --prebuilt"))
    }

    /// Returns the driver of this version and flavour: from the .run files where configured, else
    /// from the archives. A .run file is in the store afterwards.
    async fn pick(
        &self,
        version: Option<&str>,
        flavour: Option<Flavour>,
    ) -> Result<AvailableDriver, Failure> {
        if self.run_files.are_named() {
            return self.run_files.choose(version, flavour, &self.store()?, self).await;
        }
        driver::find(&driver::drivers(self.archive().await?), version, flavour)
    }

    /// Compiles on this host now.
    async fn compile(&self, wanted: &once::Wanted) -> Result<ModuleSet, Failed> {
        let request = self.request(wanted).await?;
        let (archive, store) = (self.archive().await?, self.store()?);
        let set = build::build(&request, archive, &store, self.progress.as_ref()).await?;
        self.telemetry.origin(Origin::Compiled);
        Ok(self.sign(set).await?)
    }

    /// Returns the failure, of those that other hosts reported in `told`, that compiling here would
    /// end with, too.
    async fn foresee(
        &self,
        wanted: &once::Wanted,
        told: &[KnownFailure],
    ) -> Result<Option<Failure>, Failure> {
        let request = self.request(wanted).await?;
        let (archive, store) = (self.archive().await?, self.store()?);
        build::foresee(&request, archive, &store, self.progress.as_ref(), told).await
    }

    async fn request(&self, wanted: &once::Wanted) -> Result<build::Request, Failure> {
        let driver = self.pick(Some(&wanted.driver_version), Some(wanted.flavour)).await?;
        let mut request = build::Request::new(driver, &wanted.kernel_release);
        request.kernel_version.clone_from(&wanted.kernel_version);
        request.modules.clone_from(&self.config.driver.extra_modules);
        request.jobs = self.config.jobs;
        request.user = self.config.build_user;
        request.limit = self.config.deadlines.build;
        request.patches = self.config.patches.clone();
        request.headers = self.config.header_places();
        request.retry = self.retry;
        Ok(request)
    }

    /// Signs a set for the kernel, where configured and not done yet.
    ///
    /// # Errors
    /// As `Signing::sign`.
    pub async fn sign(&self, set: ModuleSet) -> Result<ModuleSet, Failure> {
        let progress = self.progress.as_ref();
        self.signing.sign(set, &self.store()?, progress, || self.archive()).await
    }

    /// Signs the set of the store with this name.
    async fn sign_stored(&self, name: &str) -> Result<(), Failure> {
        let sets = self.store()?.sets()?;
        let found = sets.into_iter().find(|set| set.key.file_stem() == name).ok_or_else(|| {
            Failure::new(ExitCode::Bug, format!("the store has no set {name} to sign"))
        })?;
        self.sign(found).await.map(drop)
    }

    async fn assemble(&self, driver_version: &str) -> Result<AvailableUserspace, Failure> {
        let store = self.store()?;
        let there = userspace::at_hand(&store)?;
        if let Some(tree) = there.into_iter().find(|t| t.driver_version == driver_version) {
            return Ok(tree);
        }
        if self.run_files.are_named() {
            let progress = self.progress.as_ref();
            let chosen = self.run_files.fetch(driver_version, &store, self).await?;
            return userspace::assemble_run_file(chosen, &store, progress).await;
        }
        let archive = self.archive().await?;
        userspace::assemble(driver_version, archive, &store, self.progress.as_ref()).await
    }

    /// Returns the root of the apt sources to read: the host's. A captured tree without apt sources
    /// uses those of this machine.
    fn apt_root(&self) -> &Path {
        let host_root = &self.config.paths.host_root;
        let apt = host_root.join("etc/apt");
        let has_sources = ["sources.list", "sources.list.d"].iter().any(|n| apt.join(n).exists());
        if self.is_captured() && !has_sources { Path::new("/") } else { host_root }
    }

    /// True if the facts come from a captured tree instead of this host.
    fn is_captured(&self) -> bool {
        self.config.paths.root != Path::new("/")
    }
}

impl Archives for Supplier<'_> {
    /// Reads the archives' indexes, once.
    async fn archive(&self) -> Result<&Archive, Failure> {
        let apt_root = self.apt_root();
        self.archive
            .get_or_try_init(|| async {
                let store = self.store()?;
                let progress = self.progress.as_ref();
                let policy = Policy::of(&self.config.downloads);
                let policy = Policy { away: self.away.clone(), ..policy };
                let archives = &self.config.archives;
                Archive::open_with(policy, archives, apt_root, &store, progress).await
            })
            .await
    }

    fn progress(&self) -> &dyn Progress {
        self.progress.as_ref()
    }
}

impl Provider for Supplier<'_> {
    async fn gather(&self) -> Result<(HostFacts, Catalog), Failure> {
        self.gather_for(read_host).await
    }

    fn plan(&self, facts: &HostFacts, catalog: &Catalog) -> Result<Plan, Failure> {
        let plan = plan::plan(self.config, facts, catalog)?;
        let gravest = plan.findings.iter().find(|f| f.severity == Severity::Refusal);
        if gravest.is_some_and(|f| f.code == Code::ArchivesUnread) && !self.is_captured() {
            // The failure has more detail than the finding: an unreachable or unsigned archive.
            let unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner).take();
            return unread.map_or(Ok(plan), Err);
        }
        if let Some(failure) = &*self.unread.lock().unwrap_or_else(PoisonError::into_inner) {
            tracing::warn!("continuing without the archives: {}", failure.one_line());
        }
        if gravest.is_some_and(|f| f.code == Code::RunFileUnread) && !self.is_captured() {
            return self.run_files.take_unread().map_or(Ok(plan), Err);
        }
        self.run_files.warn_of_unread();
        Ok(plan)
    }

    async fn acquire(&self, plan: &Plan) -> Result<(), Failure> {
        self.climb(plan.clone()).await
    }

    async fn installed(&self, plan: &PlanSummary, steps: &[Step]) {
        self.look_after_store(plan, steps).await;
    }
}
