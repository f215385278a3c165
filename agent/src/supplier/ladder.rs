//! Acquisition with fallback: where a source offers something and then does not deliver it, the
//! next source is tried.
//!
//! Invalid data is no reason for a fallback. A registry that serves something else than it
//! announced is damaged or compromised, and its operator has to learn of it.

use std::sync::PoisonError;

use super::Supplier;
use super::gather::read_host;
use super::once::Wanted;
use crate::artifact::ModuleSet;
use crate::artifact::SetQuery;
use crate::catalog::{Catalog, SetPlace};
use crate::failure::{ExitCode, Failure};
use crate::finding::{Code, Severity};
use crate::host::HostFacts;
use crate::plan::{self, Acquire, Plan};
use crate::prebuilt::Prebuilt;
use crate::provider::Provider;
use crate::telemetry::Origin;

/// Findings about missing sources of modules; the others are about the host that would load them.
const ABOUT_SOURCES: [Code; 7] = [
    Code::SignatureMissing,
    Code::DriverNotOffered,
    Code::ArchivesUnread,
    Code::RegistryUnread,
    Code::RunFileUnread,
    Code::NothingBuilt,
    Code::ModuleNotBuilt,
];

/// Reason why an acquisition failed.
enum Missed {
    /// This source failed; another may succeed.
    Source(SetPlace, Failure),
    /// No other source would help.
    Failed(Failure),
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Classifies a failure to acquire a set from `place`.
fn missed(place: SetPlace, failure: Failure) -> Missed {
    match failure.code() {
        ExitCode::Download => Missed::Source(place, failure),
        _ => Missed::Failed(failure),
    }
}

impl Supplier<'_> {
    /// Carries out the acquisitions of `plan`; where a source fails, plans again without it.
    pub(super) async fn climb(&self, mut plan: Plan) -> Result<(), Failure> {
        loop {
            if plan.acquire.iter().any(|item| matches!(item, Acquire::FetchRunFile { .. })) {
                self.run_files.fetch(&plan.driver_version, &self.store()?, self).await?;
                // The file's list of GPUs may change the choice.
                plan = self.plan_anew().await?;
                if let Some(refusal) = plan.refusal() {
                    return Err(refusal);
                }
            }
            match self.carry_out(&plan).await {
                Ok(()) => return Ok(()),
                Err(Missed::Failed(failure)) => return Err(failure),
                Err(Missed::Source(place, failure)) => {
                    self.give_up_on(&place);
                    plan = self.plan_anew().await?;
                    if plan.refusal().is_some() {
                        // No other source is left, and this failure is the reason.
                        return Err(failure);
                    }
                    going_on_without(&place, &failure);
                }
            }
        }
    }

    async fn plan_anew(&self) -> Result<Plan, Failure> {
        let (facts, catalog) = self.gather().await?;
        self.plan(&facts, &catalog)
    }

    async fn carry_out(&self, plan: &Plan) -> Result<(), Missed> {
        for item in &plan.acquire {
            match item {
                // Fetched before the plan was made.
                Acquire::FetchRunFile { .. } => {}
                Acquire::BuildSet { driver_version, flavour, kernel_release } => {
                    let kernel = read_host(self.config)?.kernel;
                    let wanted = Wanted {
                        driver_version: driver_version.clone(),
                        flavour: *flavour,
                        kernel_release: kernel_release.clone(),
                        kernel_version: Some(kernel.version),
                    };
                    let set = self.build_once(wanted).await?;
                    self.sign(set).await?;
                }
                Acquire::SignSet { set, .. } => self.sign_stored(set).await?,
                Acquire::AssembleUserspace { driver_version } => {
                    self.assemble(driver_version).await?;
                }
                Acquire::ImportSet { .. } | Acquire::PullSet { .. } => {
                    self.bring_in(item).await?;
                }
            }
        }
        Ok(())
    }

    /// Acquires a built set; None where `item` is something else.
    async fn bring_in(&self, item: &Acquire) -> Result<Option<ModuleSet>, Missed> {
        let prebuilt = Prebuilt::new(self.config)?.sharing(&self.away);
        let (store, progress) = (self.store()?, self.progress.as_ref());
        let (place, brought) = match item {
            Acquire::ImportSet { dir, manifest } => (
                SetPlace::Layout { dir: dir.clone(), manifest: manifest.clone() },
                prebuilt.import(dir, manifest, &store).await,
            ),
            Acquire::PullSet { registry, manifest } => (
                SetPlace::Registry { registry: registry.clone(), manifest: manifest.clone() },
                prebuilt.pull(registry, manifest, &store, progress).await,
            ),
            _ => return Ok(None),
        };
        let set = brought.map_err(|failure| missed(place, failure))?;
        self.telemetry.origin(match item {
            Acquire::ImportSet { .. } => Origin::Imported,
            _ => Origin::Pulled,
        });
        Ok(Some(set))
    }

    fn give_up_on(&self, place: &SetPlace) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(place.clone());
    }

    pub(super) fn leave_out_failed(&self, catalog: &mut Catalog) {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        catalog.sets.retain(|at_hand| !failed.contains(&at_hand.place));
    }

    /// Acquires the modules for `release`, or this host's kernel, into the store: from the same
    /// sources as `run`, whether or not they could be loaded here.
    pub(super) async fn obtain(&self, release: Option<&str>) -> Result<ModuleSet, Failure> {
        loop {
            match self.obtain_once(release).await {
                Ok(set) => return self.sign(set).await,
                Err(Missed::Failed(failure)) => return Err(failure),
                Err(Missed::Source(place, failure)) => {
                    self.give_up_on(&place);
                    if !self.config.may_compile() && self.nothing_left(release).await? {
                        return Err(failure);
                    }
                    going_on_without(&place, &failure);
                }
            }
        }
    }

    async fn nothing_left(&self, release: Option<&str>) -> Result<bool, Failure> {
        let (_, catalog) = self.gather_kernel(release).await?;
        Ok(catalog.sets.is_empty())
    }

    async fn obtain_once(&self, release: Option<&str>) -> Result<ModuleSet, Missed> {
        let (facts, catalog) = self.gather_kernel(release).await?;
        let plan = plan::plan(self.config, &facts, &catalog)?;
        for item in &plan.acquire {
            if matches!(item, Acquire::BuildSet { .. }) {
                return Ok(self.build(release).await?);
            }
            if let Some(set) = self.bring_in(item).await? {
                return Ok(set);
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
        let complete = stored.iter().find(|s| s.has_all(&self.config.driver.extra_modules));
        match complete.or(stored.first()).copied() {
            Some(set) => Ok(set.clone()),
            None => Err(Missed::Failed(no_source(&plan))),
        }
    }

    /// Returns the catalog for a kernel that need not run here.
    async fn gather_kernel(&self, release: Option<&str>) -> Result<(HostFacts, Catalog), Failure> {
        let release = release.map(str::to_owned);
        let read = move |config: &crate::config::Config| {
            let mut facts = read_host(config)?;
            // A loaded driver is no reason not to fetch.
            facts.loaded.clear();
            if let Some(other) = release.filter(|release| *release != facts.kernel.release) {
                facts.kernel.release = other;
                facts.kernel.version = String::new();
                facts.live_driver = None;
            }
            Ok(facts)
        };
        let (mut facts, catalog) = self.gather_for(read).await?;
        if facts.kernel.version.is_empty() {
            // The build of that kernel is not specified: that of the first set is used.
            let set = catalog.sets.iter().find(|s| facts.kernel.any_build().fits(&s.set.key));
            facts.kernel.version =
                set.map(|s| s.set.key.kernel_version.clone()).unwrap_or_default();
        }
        Ok((facts, catalog))
    }
}

fn going_on_without(place: &SetPlace, failure: &Failure) {
    tracing::warn!("continuing without the set in {place}: {}", failure.one_line());
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
        Failure::new(ExitCode::Download, cause)
    })
}
