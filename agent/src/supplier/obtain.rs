//! Set and user-mode tree for any kernel, whether or not they could be loaded here: from the store,
//! or else from the same sources as `run`.

use std::slice;

use super::Provisioner;
use super::acquire::{Missed, not_built, run_file_to_fetch, warn_of_fallback};
use super::other_kernel::installed_version;
use crate::catalog::{Catalog, SetPlace};
use crate::plan::{self, Acquire, BuildSet, Plan};
use crate::provider::Gathered;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::{self, Code, Finding, Severity};
use longshore_core::flavour::Flavour;
use longshore_core::kernel_id::KernelId;
use longshore_host::HostFacts;
use longshore_modules::artifact::{HeadersFrom, ModuleSet, SetQuery};
use longshore_modules::sets::SetStore;
use longshore_sources::userspace::{self, AvailableUserspace};

/// Findings about missing sources of modules; the others are about the host that would load them.
pub(super) const ABOUT_SOURCES: [Code; 11] = [
    Code::SignatureMissing,
    Code::AttestationMissing,
    Code::IndexRefused,
    Code::SetDenied,
    Code::DriverBelowMinimum,
    Code::DriverNotOffered,
    Code::ArchivesUnread,
    Code::RegistryUnread,
    Code::RunFileUnread,
    Code::NothingBuilt,
    Code::ModuleNotBuilt,
];

impl Provisioner<'_> {
    /// Acquires the modules for `release`, or for this host's kernel, and the user-mode tree into
    /// the store, from the same sources as `run`. Where the store has exactly the requested
    /// version, no other source is queried.
    ///
    /// # Errors
    /// As [`Provisioner::build`], and where compiling is not allowed and no set is available; 12
    /// and 13 for the user-mode packages.
    pub async fn fetch(
        &self,
        release: Option<&str>,
    ) -> Result<(ModuleSet, AvailableUserspace), Failure> {
        self.inventory.store.share().await?;
        if let Some(stored) = self.stored(release)? {
            return Ok(stored);
        }
        let set = self.obtain(release).await?;
        let sources = self.sources_beside(&set);
        let tree = self.assemble(&set.key.driver_version, None, sources).await?;
        Ok((set, tree))
    }

    /// Returns the flavour of the kernel sources that a tree for `set` has to have.
    fn sources_beside(&self, set: &ModuleSet) -> Option<Flavour> {
        self.config().operator.exposes_sources().then_some(set.key.flavour)
    }

    /// Returns set and tree of exactly the requested version, where the store has them: then
    /// nothing has to be fetched, and no network is needed. None where there are several
    /// candidates.
    fn stored(
        &self,
        release: Option<&str>,
    ) -> Result<Option<(ModuleSet, AvailableUserspace)>, Failure> {
        let (config, wish) = (self.config(), &self.config().driver);
        // The choice of the set needs the whole catalog if signatures are required, or sets are denied.
        let any = !config.signatures.required
            && config.signatures.denied.is_empty()
            && config.module_signing.is_none();
        let version = wish.version.as_deref().filter(|version| any && wish.permits(version));
        let Some(version) = version else { return Ok(None) };
        let kernel = HostFacts::read(&config.paths.root, &config.paths.host_root)?.kernel;
        let release = release.unwrap_or(&kernel.release);
        let build = match release == kernel.release {
            true => Some(kernel.version.clone()),
            false => installed_version(&config.paths, release),
        };
        let store = self.store()?;
        let mut sets = store.sets()?;
        let query = SetQuery {
            kernel: KernelId { release, version: build.as_deref(), arch: &kernel.arch },
            driver_version: version,
            flavour: wish.flavour,
        };
        sets.retain(|set| {
            query.matches_with(set, &wish.extra_modules)
                && config.patches.allows(set.key.patches.keys())
                // The catalog has those of packages where they are wanted and fit.
                && set.headers_origin() != HeadersFrom::Package
                && store.holds(set)
        });
        let Some(set) = sets.pop().filter(|_| sets.is_empty()) else { return Ok(None) };
        let sources = self.sources_beside(&set);
        let mut trees = userspace::at_hand(&store)?.into_iter();
        let tree = trees.find(|t| t.driver_version == version && t.sources == sources);
        Ok(tree.map(|tree| (set, tree)))
    }

    /// Acquires the modules for `release`, or this host's kernel, into the store.
    async fn obtain(&self, release: Option<&str>) -> Result<ModuleSet, Failure> {
        loop {
            match self.obtain_once(release).await {
                Ok((set, true)) => return self.sign(set).await,
                Ok((set, false)) => return Ok(set),
                Err(Missed::Failed(failure)) => return Err(failure),
                Err(Missed::Source(source, failure)) => {
                    self.inventory.leave_out(&source, &failure);
                    if !self.config().may_compile() && self.nothing_left(release).await? {
                        return Err(failure);
                    }
                    warn_of_fallback(&source, &failure);
                }
            }
        }
    }

    async fn nothing_left(&self, release: Option<&str>) -> Result<bool, Failure> {
        let Catalog { sets, finished, .. } = self.inventory.gather_kernel(release).await?.catalog;
        Ok(sets.is_empty() && finished.is_empty())
    }

    /// Returns the set, and true if it is to be signed where configured.
    async fn obtain_once(&self, release: Option<&str>) -> Result<(ModuleSet, bool), Missed> {
        let Gathered { facts, catalog, .. } = self.inventory.gather_kernel(release).await?;
        let plan = plan::plan(self.config(), &facts, &catalog)?;
        let signs = may_sign(&plan, &catalog)?;
        for item in &plan.acquire {
            if let Acquire::BuildSet(build) = item {
                let built = self.build_planned(&plan, build, release).await;
                return built.map(|set| (set, signs)).map_err(|failure| not_built(build, failure));
            }
            if let Acquire::ReadPackage(finished) = item {
                return Ok((self.read_package(finished).await?, signs));
            }
            if let Some(set) = self.bring_in(item).await? {
                return Ok((set, signs));
            }
        }
        let stored = catalog.sets.iter().filter(|s| s.place == SetPlace::Store).map(|s| &s.set);
        let query = SetQuery {
            kernel: facts.kernel.id(),
            driver_version: &plan.driver_version,
            flavour: Some(plan.flavour),
        };
        let mut stored: Vec<&ModuleSet> = stored.filter(|set| query.matches(&set.key)).collect();
        stored.sort_by_key(|set| set.key.signed_by.is_some());
        let complete = stored.iter().find(|s| s.has_all(&self.config().driver.extra_modules));
        match complete.or(stored.first()).copied() {
            Some(set) => Ok((set.clone(), signs)),
            None => {
                self.note_awaited(&plan);
                Err(Missed::Failed(no_source(&plan)))
            }
        }
    }

    /// Compiles what `plan` builds, or the driver that a plan without any set would choose, where
    /// the plan knows no sources of its own.
    async fn build_planned(
        &self,
        plan: &Plan,
        build: &BuildSet,
        release: Option<&str>,
    ) -> Result<ModuleSet, Failure> {
        if build.driver.is_none() || run_file_to_fetch(plan).is_some() {
            return self.build_as(release, build.signs).await;
        }
        let own = self.ready_to_build().await?.kernel.release;
        let mut build = build.clone();
        if build.kernel_release != own {
            // Of a kernel that is not installed the newest build is wanted, whatever sets there are.
            build.kernel_version = installed_version(&self.config().paths, &build.kernel_release);
        }
        self.build_once(&build).await
    }
}

/// Returns false where the modules are to stay unsigned, because nothing can sign with the configured key.
///
/// # Errors
/// Exit code 11 or 12 where the kernel requires signatures.
fn may_sign(plan: &Plan, catalog: &Catalog) -> Result<bool, Failure> {
    let about = |finding: &&Finding| finding.code == Code::SignFileMissing;
    match plan.findings.iter().find(about) {
        Some(found) if found.severity == Severity::Refusal => {
            let refusal =
                || finding::refusal(slice::from_ref(found)).unwrap_or_else(|| no_source(plan));
            Err(catalog.failures.archives.clone().unwrap_or_else(refusal))
        }
        Some(found) => {
            tracing::warn!("{}: {}", found.code, found.detail);
            Ok(false)
        }
        // The modules of a package are not known yet.
        None => Ok(catalog.no_sign_file.is_none()),
    }
}

/// Makes the failure of a plan without a source of modules.
fn no_source(plan: &Plan) -> Failure {
    let mut about = plan.clone();
    about.findings.retain(|finding| {
        finding.severity == Severity::Refusal && ABOUT_SOURCES.contains(&finding.code)
    });
    about.refusal().unwrap_or_else(|| {
        let cause = format!(
            "no set of {} {} is available for {}",
            plan.driver_version, plan.flavour, plan.kernel_release
        );
        Failure::new(FailureKind::Download, cause)
    })
}
