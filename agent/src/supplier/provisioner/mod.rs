//! Acquisition of what a plan lacks: compiled, signed and assembled here, or brought in with
//! fallback (`acquire`); and the same for the commands that fill a store (`obtain`).

use std::path::Path;
use std::sync::{Arc, Mutex};

use tracing::Instrument;

use super::Inventory;
use super::core_objects::CoreRegistries;
use super::host_facts::installed_version;
use super::missed::{Missed, missed};
use super::open_archives::OpenArchives;
use super::signing::Signing;
use crate::build_lease::Claims;
use crate::catalog::{Catalog, SetPlace};
use crate::config::Config;
use crate::plan::{self, BuildSet};
use crate::telemetry::{Awaited, Origin, Telemetry};
use longshore_build::build_root::{Contents, Run, inspect};
use longshore_build::{self as build, CoreSource, Failed, KnownFailure};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_host::HostFacts;
use longshore_host::facts::Probe;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::signature::key::PublicKey;
use longshore_sources::driver::{AvailableDriver, DriverOrigin};
use longshore_sources::runfile::AvailableRunFile;
use longshore_sources::userspace::{self, AvailableUserspace};

/// Provides plans with their inputs, and the store with everything that plans need.
pub struct Provisioner<'a> {
    pub(super) inventory: Inventory<'a>,
    pub(super) telemetry: Telemetry,
    pub(super) signing: Signing<'a>,
    /// Claims that it compiles under for other hosts.
    pub(super) claims: Claims,
    /// True to retry a compile that failed before.
    pub(super) retry: bool,
    /// Modules that the last fetch failed for.
    pub(super) missing: Mutex<Option<Awaited>>,
}

impl<'a> Provisioner<'a> {
    /// Returns a provisioner for `config` that reports to the terminal or the log.
    pub fn new(config: &'a Config) -> Self {
        Self {
            inventory: Inventory::new(config),
            telemetry: Telemetry::default(),
            signing: Signing::new(config),
            claims: Claims::default(),
            retry: false,
            missing: Mutex::default(),
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
        let inventory = self.inventory.counting(telemetry);
        Self { inventory, telemetry: telemetry.clone(), ..self }
    }

    pub(super) fn config(&self) -> &'a Config {
        self.inventory.config
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Exit code 15 where it is not writable.
    pub fn store(&self) -> Result<Store, Failure> {
        self.inventory.store.open()
    }

    /// Compiles the configured driver for `release`, or for this host's kernel, and signs it for
    /// the kernel where configured. With publishing configured, takes the set from the registry, or
    /// the one that another host compiles meanwhile.
    ///
    /// # Errors
    /// 2 for an unusable key, 11 for headers, or where nothing can sign with the key, 12 for an
    /// unavailable driver, and 13, 14, 15 as in the build.
    pub async fn build(&self, release: Option<&str>) -> Result<ModuleSet, Failure> {
        self.build_once(&self.wanted(release, true).await?).await
    }

    /// Returns the digest of everything that the outcome of [`Provisioner::build`] depends on, and compiles nothing.
    ///
    /// # Errors
    /// As [`Provisioner::build`], until it would compile.
    pub async fn inputs(&self, release: Option<&str>) -> Result<String, Failure> {
        let build = self.wanted(release, true).await?;
        let (request, store) = (self.request(&build).await?, self.store()?);
        let sources = &self.inventory.sources;
        let archive = sources.archive_to_build(&store).await?;
        build::identity(&request, archive, &store, sources.progress()).await
    }

    /// Returns the set that a build for `release`, or for this host's kernel, makes; without `signs` its modules stay
    /// unsigned.
    pub(super) async fn wanted(
        &self,
        release: Option<&str>,
        signs: bool,
    ) -> Result<BuildSet, Failure> {
        let facts = self.ready_to_build().await?;
        let driver = self.choose(&facts).await?;
        let (release, version) = match release {
            Some(named) if named != facts.kernel.release => {
                (named, installed_version(&self.config().paths, named))
            }
            _ => (facts.kernel.release.as_str(), Some(facts.kernel.version.clone())),
        };
        Ok(BuildSet {
            driver_version: driver.version.clone(),
            flavour: driver.flavour,
            kernel_release: release.to_owned(),
            kernel_version: version,
            driver: Some(driver),
            headers: None,
            mofed: super::mofed::of_host(self.config(), release).await?,
            signs,
        })
    }

    /// Checks everything that a build by command needs, before anything is fetched for it; reads
    /// the host.
    pub(super) async fn ready_to_build(&self) -> Result<HostFacts, Failure> {
        let paths = &self.config().paths;
        build::check_modules(&self.config().driver.extra_modules)?;
        self.signing.check()?;
        self.inventory.store.share().await?;
        let facts = HostFacts::read(&paths.root, &paths.host_root)?;
        self.check_sandbox(&facts)?;
        Ok(facts)
    }

    /// Returns the driver that a plan for `facts` would choose of all kernel sources, with or without a GPU. A .run
    /// file is in the store afterwards.
    async fn choose(&self, facts: &HostFacts) -> Result<AvailableDriver, Failure> {
        let (requested, sources) = (&self.config().driver, &self.inventory.sources);
        let store = self.store()?;
        // A file's flavours and GPUs are known only once it is in the store, and may change the choice.
        for _ in 0..=self.config().run_files.len() {
            let mut catalog = Catalog::without_sources("not asked");
            catalog.add(sources.drivers(&store).await?, &facts.kernel);
            let (version, flavour) = plan::choose_driver(self.config(), facts, &catalog)?;
            let found = sources.find_driver(Some(&version), Some(flavour), &store).await;
            let Ok(driver) = found else { break };
            if !sources.fetch_file_of(&driver, &store).await? {
                return Ok(driver);
            }
        }
        // A request that no plan can meet is reported against the available drivers.
        sources.driver_in_store(requested.version.as_deref(), requested.flavour, &store).await
    }

    /// Checks that this process may make the build sandbox, before anything is fetched for it.
    fn check_sandbox(&self, facts: &HostFacts) -> Result<(), Failure> {
        let is_captured = self.config().paths.is_captured();
        let (Probe::Read(have), false) = (&facts.capabilities, is_captured) else {
            return Ok(());
        };
        if have.contains("CAP_SYS_ADMIN") {
            return Ok(());
        }
        let user = nix::unistd::geteuid();
        let cause = format!(
            "running with user id {user} and without CAP_SYS_ADMIN, which the build sandbox needs"
        );
        Err(Failure::new(FailureKind::Preflight, cause)
            .remedy("run it as root (the container privileged), or build elsewhere and give the set with --prebuilt"))
    }

    /// Compiles on this host now, or returns the store's set of the same inputs; where a key signs it as compiled here
    /// (`signed_by`), only one that has the record of its compile.
    pub(super) async fn compile(
        &self,
        build: &BuildSet,
        signed_by: Option<PublicKey>,
    ) -> Result<ModuleSet, Failed> {
        // Of this level, so that no filter leaves it out of the fields of a warning.
        let (driver, kernel) = (&build.driver_version, &build.kernel_release);
        let span = tracing::error_span!("compile", driver, kernel);
        let compile = async {
            let (store, sources) = (self.store()?, &self.inventory.sources);
            let archive = sources.archive_to_build(&store).await?;
            if build.signs {
                self.signing.check_archive(build, archive, &store)?;
            }
            let mut request = self.request(build).await?;
            request.recorded = signed_by.is_some();
            request.core_source = self.core_source(&request.driver, signed_by)?;
            let set = build::build(&request, archive, &store, sources.progress()).await?;
            self.telemetry.origin(Origin::Compiled);
            Ok::<_, Failed>(self.sign_as(build, set).await?)
        };
        compile.instrument(span).await
    }

    /// Returns the registries as places of core objects, for a driver that has sources alone.
    fn core_source(
        &self,
        driver: &AvailableDriver,
        signed_by: Option<PublicKey>,
    ) -> Result<Option<Arc<dyn CoreSource>>, Failure> {
        if !matches!(driver.origin, DriverOrigin::SourceTree { .. }) {
            return Ok(None);
        }
        let away = self.inventory.sources.away();
        let source = CoreRegistries::new(self.config(), signed_by, away, &self.telemetry)?;
        Ok(Some(Arc::new(source)))
    }

    /// Signs a set of `build`, unless it is to stay unsigned.
    pub(super) async fn sign_as(
        &self,
        build: &BuildSet,
        set: ModuleSet,
    ) -> Result<ModuleSet, Failure> {
        if build.signs { self.sign(set).await } else { Ok(set) }
    }

    /// Returns the failure, of those that other hosts `reported`, that compiling here would end with,
    /// too.
    pub(super) async fn predict_failure(
        &self,
        build: &BuildSet,
        reported: &[KnownFailure],
    ) -> Result<Option<Failure>, Failure> {
        let (request, store) = (self.request(build).await?, self.store()?);
        let sources = &self.inventory.sources;
        let archive = sources.archive_to_build(&store).await?;
        build::predict_failure(&request, archive, &store, sources.progress(), reported).await
    }

    async fn request(&self, build: &BuildSet) -> Result<build::Request, Failure> {
        let (config, sources) = (self.config(), &self.inventory.sources);
        let driver = match &build.driver {
            Some(driver) => driver.clone(),
            // Its sources may be readable by now, or the failure names the nearest versions.
            None => {
                let (version, flavour) = (Some(build.driver_version.as_str()), Some(build.flavour));
                sources.driver_in_store(version, flavour, &self.store()?).await?
            }
        };
        let mut request = build::Request::new(driver, &build.kernel_release);
        request.kernel_version.clone_from(&build.kernel_version);
        request.modules.clone_from(&config.driver.extra_modules);
        request.jobs = config.jobs;
        request.user = config.build_user;
        request.limit = config.deadlines.build;
        request.patches = config.patches.clone();
        request.headers = config.header_places();
        request.build_root = sources.unpacked_root(&self.store()?).await?;
        request.available_headers.clone_from(&build.headers);
        request.mofed.clone_from(&build.mofed);
        request.retry = self.retry;
        Ok(request)
    }

    /// Unpacks a build root into the store, and lists what it has.
    ///
    /// # Errors
    /// Exit code 2 where none is configured; as [`build::build_root::Identified::acquire`] and
    /// [`build::build_root::inspect`].
    pub async fn inspect_build_root(&self) -> Result<Contents, Failure> {
        self.inventory.store.share().await?;
        let (config, store) = (self.config(), self.store()?);
        let root = self.inventory.sources.unpacked_root(&store).await?.ok_or_else(|| {
            Failure::new(FailureKind::Usage, "no build root is named and none is configured")
                .remedy("name one: `longshore build-root inspect PLACE`, or set build-root")
        })?;
        let helper = Path::new("/proc/self/exe");
        inspect(&root, &Run { helper, store: &store, user: config.build_user }).await
    }

    /// Signs a set for the kernel, where configured and not done yet.
    ///
    /// # Errors
    /// As `Signing::sign`.
    pub async fn sign(&self, set: ModuleSet) -> Result<ModuleSet, Failure> {
        let (store, sources) = (self.store()?, &self.inventory.sources);
        self.signing.sign(set, &store, sources.progress(), || sources.archive(&store)).await
    }

    /// Assembles the user-mode tree of a driver, from `run_file` or else from packages, with the kernel
    /// sources of the flavour `kernel_sources` if given; returns the store's, where it has one.
    pub(super) async fn assemble(
        &self,
        driver_version: &str,
        run_file: Option<&AvailableRunFile>,
        kernel_sources: Option<Flavour>,
    ) -> Result<AvailableUserspace, Failure> {
        let (store, sources) = (self.store()?, &self.inventory.sources);
        let progress = sources.progress();
        let there = userspace::available(&store)?;
        let is_it = |tree: &AvailableUserspace| {
            tree.driver_version == driver_version && tree.sources == kernel_sources
        };
        if let Some(tree) = there.into_iter().find(is_it) {
            return Ok(tree);
        }
        let run_files = &sources.run_files;
        let file = match run_file {
            Some(file) => Some(file.clone()),
            None if !run_files.are_named() => None,
            None => Some(run_files.of_version(driver_version, &store, sources).await?),
        };
        if let Some(file) = file {
            let stored = run_files.fetch(&file, &store, progress).await?;
            return userspace::assemble_run_file(stored, kernel_sources, &store, progress).await;
        }
        let archive = sources.archive(&store).await?;
        userspace::assemble(driver_version, kernel_sources, archive, &store, progress).await
    }

    /// Classifies a failure to acquire a built set from `place`, and counts it where no other source is tried: another
    /// one is counted where it is left out.
    pub(super) fn missed_set(&self, place: &SetPlace, failure: Failure) -> Missed {
        let missed = missed(place, failure);
        if let Missed::Failed(failure) = &missed {
            self.telemetry.source_failed(place.source, failure);
        }
        missed
    }
}

#[cfg(test)]
mod tests;
