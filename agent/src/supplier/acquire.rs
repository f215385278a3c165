//! Acquisition with fallback: where a source offers something and then does not deliver it, the
//! next source is tried.
//!
//! A compile with MOFED's headers that failed is planned again without them: no driver at all is worse than
//! an nvidia_peermem that the kernel may refuse.
//!
//! Invalid data is no reason for a fallback. A registry that serves something else than it
//! announced is damaged or compromised, and its operator has to learn of it. Nor is a disk that
//! cannot be read or written: it is the same for the next source.

use std::fmt;
use std::path::PathBuf;

use super::Provisioner;
use super::run_files::Archives;
use crate::catalog::SetPlace;
use crate::plan::{Acquire, BuildSet, Plan};
use crate::telemetry::{Origin, SourceKind};
use longshore_core::failure::{Failure, FailureKind};
use longshore_modules::artifact::ModuleSet;
use longshore_sources::runfile::AvailableRunFile;

/// Reason why an acquisition failed.
#[derive(Debug)]
pub(super) enum Missed {
    /// This source failed; a plan without it may succeed.
    Source(Source, Failure),
    /// No other source would help.
    Failed(Failure),
}

/// Part of a plan's acquisitions that was carried out.
enum Carried {
    /// All.
    All,
    /// Those up to a package's modules, which may change the choice.
    Package,
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Source of an acquisition that a plan can do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A set.
    Set(SetPlace),
    /// MOFED's headers for a kernel.
    Mofed { release: String, place: PathBuf },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(place) => write!(f, "the set in {place}"),
            Self::Mofed { place, .. } => write!(f, "MOFED's headers in {}", place.display()),
        }
    }
}

/// Classifies a failure to acquire a set from `place`.
pub(super) fn missed(place: SetPlace, failure: Failure) -> Missed {
    match failure.kind() {
        FailureKind::Download => Missed::Source(Source::Set(place), failure),
        _ => Missed::Failed(failure),
    }
}

/// Returns the kind of source that `place` is; None for the store.
pub(super) fn kind_of(place: &SetPlace) -> Option<SourceKind> {
    match place {
        SetPlace::Store => None,
        SetPlace::Layout { .. } => Some(SourceKind::Layout),
        SetPlace::Registry { .. } => Some(SourceKind::Registry),
        SetPlace::Package { .. } => Some(SourceKind::Package),
    }
}

/// Classifies a failure to compile a set.
pub(super) fn not_built(build: &BuildSet, failure: Failure) -> Missed {
    match (&build.mofed, failure.kind()) {
        (Some(mofed), FailureKind::Compile) => {
            let (release, place) = (build.kernel_release.clone(), mofed.place());
            Missed::Source(Source::Mofed { release, place }, failure)
        }
        _ => Missed::Failed(failure),
    }
}

impl Provisioner<'_> {
    /// Carries out the acquisitions of `plan`; where a source fails, plans again without it.
    pub(super) async fn acquire_with_fallback(&self, mut plan: Plan) -> Result<(), Failure> {
        loop {
            // Each is in the store afterwards.
            for _ in 0..self.config().run_files.len() {
                let Some(file) = run_file_to_fetch(&plan) else { break };
                self.fetch_run_file(file).await?;
                // The file's list of GPUs may change the choice.
                plan = self.plan_anew().await?;
                if let Some(refusal) = plan.refusal() {
                    return Err(refusal);
                }
            }
            match self.carry_out(&plan).await {
                Ok(Carried::All) => return Ok(()),
                Ok(Carried::Package) => {
                    plan = self.plan_anew().await?;
                    if let Some(refusal) = plan.refusal() {
                        return Err(refusal);
                    }
                }
                Err(Missed::Failed(failure)) => return Err(failure),
                Err(Missed::Source(source, failure)) => {
                    self.inventory.leave_out(&source, &failure);
                    plan = self.plan_anew().await?;
                    if plan.refusal().is_some() {
                        // No other source is left, and this failure is the reason.
                        return Err(failure);
                    }
                    warn_of_fallback(&source, &failure);
                }
            }
        }
    }

    async fn plan_anew(&self) -> Result<Plan, Failure> {
        Ok(self.inventory.decide().await?.1)
    }

    pub(super) async fn fetch_run_file(&self, file: &AvailableRunFile) -> Result<(), Failure> {
        let (store, sources) = (self.store()?, &self.inventory.sources);
        sources.run_files.fetch(file, &store, sources.progress()).await.map(drop)
    }

    async fn carry_out(&self, plan: &Plan) -> Result<Carried, Missed> {
        for item in &plan.acquire {
            match item {
                // Fetched before the plan was made.
                Acquire::FetchRunFile(_) => {}
                Acquire::BuildSet(build) => {
                    self.build_once(build).await.map_err(|failure| not_built(build, failure))?;
                }
                Acquire::ReadPackage(finished) => {
                    self.read_package(finished).await?;
                    return Ok(Carried::Package);
                }
                Acquire::SignSet { set, .. } => self.sign(set.as_ref().clone()).await.map(drop)?,
                Acquire::AssembleUserspace { driver_version, run_file, sources } => {
                    self.assemble(driver_version, run_file.as_ref(), *sources).await?;
                }
                Acquire::ImportSet { .. } | Acquire::PullSet { .. } => {
                    self.bring_in(item).await?;
                }
            }
        }
        Ok(Carried::All)
    }

    /// Acquires a prebuilt set; None where `item` is something else.
    pub(super) async fn bring_in(&self, item: &Acquire) -> Result<Option<ModuleSet>, Missed> {
        let sources = &self.inventory.sources;
        let (prebuilt, store) = (sources.prebuilt()?, self.store()?);
        let (brought, origin) = match item {
            Acquire::ImportSet { dir, manifest } => {
                (prebuilt.import(dir, manifest, &store).await, Origin::Imported)
            }
            Acquire::PullSet { registry, manifest } => {
                let progress = sources.progress();
                (prebuilt.pull(registry, manifest, &store, progress).await, Origin::Pulled)
            }
            _ => return Ok(None),
        };
        let place = item.place();
        let set = brought.map_err(|failure| match place {
            Some(place) => {
                let kind = kind_of(&place);
                let missed = missed(place, failure);
                // Another source that failed is counted where it is left out.
                if let (Missed::Failed(failure), Some(kind)) = (&missed, kind) {
                    self.telemetry.source_failed(kind, failure);
                }
                missed
            }
            None => Missed::Failed(failure),
        })?;
        self.telemetry.origin(origin);
        Ok(Some(set))
    }
}

/// Returns the .run file that has to be fetched first.
pub(super) fn run_file_to_fetch(plan: &Plan) -> Option<&AvailableRunFile> {
    plan.acquire.iter().find_map(|item| match item {
        Acquire::FetchRunFile(file) => Some(file),
        _ => None,
    })
}

/// Warns that a source is not used.
pub(super) fn warn_of_fallback(source: &Source, failure: &Failure) {
    tracing::warn!("continuing without {source}: {}", failure.one_line());
}
