//! Set and user-mode tree for any kernel, whether or not they could be loaded here: from the store,
//! or else from the same sources as `run`.

use std::slice;

use super::acquire::{Aim, Carried};
use super::host_facts::installed_version;
use super::missed::{Missed, not_built};
use super::{Provisioner, source};
use crate::catalog::{Catalog, Item};
use crate::config::Config;
use crate::plan::{self, Acquire, BuildSet, Plan};
use crate::provider::Gathered;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::{self, About, Code, Finding, Severity};
use longshore_core::flavour::Flavour;
use longshore_core::kernel_id::KernelId;
use longshore_core::source_id::SourceId;
use longshore_host::HostFacts;
use longshore_modules::artifact::{HeadersFrom, ModuleSet, SetQuery};
use longshore_modules::sets::SetStore;
use longshore_sources::userspace::{self, AvailableUserspace};

impl Provisioner<'_> {
    /// Acquires the modules for `release`, or for this host's kernel, and the user-mode tree (unless modules alone are
    /// wanted) into the store, from the same sources as `run`. Where the store has exactly the requested
    /// version, no other source is queried.
    ///
    /// # Errors
    /// As [`Provisioner::build`], and where compiling is not allowed and no set is available; 12
    /// and 13 for the user-mode packages.
    pub async fn fetch(
        &self,
        release: Option<&str>,
    ) -> Result<(ModuleSet, Option<AvailableUserspace>), Failure> {
        self.inventory.store.share().await?;
        if let Some(stored) = self.stored(release)? {
            return Ok(stored);
        }
        let aim = OfKernel { of: self, release };
        let planned = aim.plan().await?;
        let set = self.acquire_for(&aim, planned).await?;
        if self.config().modules_only {
            return Ok((set, None));
        }
        let sources = self.sources_beside(&set);
        let tree = self.assemble(&set.key.driver_version, None, sources).await?;
        Ok((set, Some(tree)))
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
    ) -> Result<Option<(ModuleSet, Option<AvailableUserspace>)>, Failure> {
        let (config, requested) = (self.config(), &self.config().driver);
        // The choice of the set needs the whole catalog if signatures are required, or sets are denied.
        let any = !config.signatures.required
            && config.signatures.denied.is_empty()
            && config.module_signing.is_none();
        let version =
            requested.version.as_deref().filter(|version| any && requested.permits(version));
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
            flavour: requested.flavour,
        };
        sets.retain(|set| {
            query.matches_with(set, &requested.extra_modules)
                && config.patches.allows(set.key.patches.keys())
                // The catalog has those of packages where they are wanted and fit.
                && set.headers_origin() != HeadersFrom::Package
                && store.holds(set)
        });
        let Some(set) = sets.pop().filter(|_| sets.is_empty()) else { return Ok(None) };
        if config.modules_only {
            return Ok(Some((set, None)));
        }
        let sources = self.sources_beside(&set);
        let mut trees = userspace::available(&store)?.into_iter();
        let tree = trees.find(|t| t.driver_version == version && t.sources == sources);
        Ok(tree.map(|tree| (set, Some(tree))))
    }

    /// Compiles what a plan builds, or the driver that a plan without any set would choose, where
    /// the plan knows no sources of its own.
    async fn build_planned(
        &self,
        build: &BuildSet,
        release: Option<&str>,
    ) -> Result<ModuleSet, Failure> {
        if build.driver.is_none() {
            return self.build_once(&self.wanted(release, build.signs).await?).await;
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

/// The modules for `release`, or for this host's kernel, whether or not they could be loaded here.
struct OfKernel<'p> {
    of: &'p Provisioner<'p>,
    release: Option<&'p str>,
}

impl Aim for OfKernel<'_> {
    type Planned = (Gathered, Plan);
    type Got = ModuleSet;

    async fn plan(&self) -> Result<(Gathered, Plan), Failure> {
        let gathered = self.of.inventory.gather_kernel(self.release).await?;
        let plan = plan::plan(self.of.config(), &gathered.facts, &gathered.catalog)?;
        Ok((gathered, plan))
    }

    async fn carry_out(
        &self,
        (gathered, plan): &(Gathered, Plan),
    ) -> Result<Carried<ModuleSet>, Missed> {
        let of = self.of;
        let signs = may_sign(plan, &gathered.catalog)?;
        let build = plan.acquire.iter().find_map(|one| match one {
            Acquire::BuildSet(build) => Some(build),
            _ => None,
        });
        let mut found = None;
        for acquire in &plan.acquire {
            let Acquire::Fetch(item) = acquire else { continue };
            match item {
                // A tree fetches its own file.
                Item::RunFile(_) if build.is_none() => {}
                Item::SourceTree(_) => {
                    of.ready_to_build().await?;
                    source::acquire(item, of).await?;
                }
                Item::RunFile(_) => {
                    of.ready_to_build().await?;
                    source::acquire(item, of).await?;
                    return Ok(Carried::Part);
                }
                Item::Set(_) | Item::Package(_) => {
                    found = source::acquire(item, of).await?;
                    break;
                }
            }
        }
        let found = match (found, build) {
            (None, Some(build)) => {
                let built = of.build_planned(build, self.release).await;
                Some(built.map_err(|failure| not_built(build, failure))?)
            }
            (found, _) => found.or_else(|| stored(of.config(), gathered, plan)),
        };
        let Some(set) = found else {
            of.note_awaited(plan);
            return Err(no_source(plan).into());
        };
        Ok(Carried::All(if signs { of.sign(set).await? } else { set }))
    }

    fn ends_with(
        &self,
        (gathered, _): &(Gathered, Plan),
        missed: Option<&Failure>,
    ) -> Option<Failure> {
        let Catalog { sets, finished, .. } = &gathered.catalog;
        let is_left = self.of.config().may_compile() || !sets.is_empty() || !finished.is_empty();
        missed.filter(|_| !is_left).cloned()
    }
}

/// Returns the store's set of the plan's driver; one with all modules, and unsigned, is preferred.
fn stored(config: &Config, of: &Gathered, plan: &Plan) -> Option<ModuleSet> {
    let query = SetQuery {
        kernel: of.facts.kernel.id(),
        driver_version: &plan.driver_version,
        flavour: Some(plan.flavour),
    };
    let stored = of.catalog.sets.iter().filter(|available| available.place.is_store());
    let mut stored: Vec<&ModuleSet> =
        stored.map(|available| &available.set).filter(|set| query.matches(&set.key)).collect();
    stored.sort_by_key(|set| set.key.signed_by.is_some());
    let complete = stored.iter().find(|set| set.has_all(&config.driver.extra_modules));
    complete.or(stored.first()).copied().cloned()
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
            Err(catalog.failure_of(SourceId::Archives).cloned().unwrap_or_else(refusal))
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
        finding.severity == Severity::Refusal && finding.code.entry().is_about(About::Modules)
    });
    about.refusal().unwrap_or_else(|| {
        let cause = format!(
            "no set of {} {} is available for {}",
            plan.driver_version, plan.flavour, plan.kernel_release
        );
        Failure::new(FailureKind::Download, cause)
    })
}
