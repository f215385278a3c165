//! Acquisition with fallback: where a source offers something and then does not deliver it, the
//! next source is tried. One loop serves a plan of this host and the commands that fill a store.
//!
//! A compile with MOFED's headers that failed is planned again without them: no driver at all is worse than
//! an nvidia_peermem that the kernel may refuse.
//!
//! Invalid data is no reason for a fallback. A registry that serves something else than it
//! announced is damaged or compromised, and its operator has to learn of it. Nor is a disk that
//! cannot be read or written: it is the same for the next source.

use super::missed::{Missed, not_built};
use super::{Provisioner, source};
use crate::catalog::Item;
use crate::journal::PlanSummary;
use crate::plan::{Acquire, Plan};
use crate::provider::{Gathered, Provider};
use crate::steps::Step;
use crate::telemetry::Awaited;
use longshore_core::failure::{Failure, FailureKind};

/// Part of a plan's acquisitions that was carried out.
pub(super) enum Carried<T> {
    /// All that is wanted.
    All(T),
    /// Those up to an item whose contents may change the choice: a .run file, a package's modules.
    Part,
}

/// Most packages with finished modules that one acquisition reads, after each of which the plan is made anew.
const MOST_PACKAGES: usize = 64;

fn without_end(files: usize) -> Failure {
    let cause = format!("the plan still fetches another file after {files} of them");
    Failure::new(FailureKind::Bug, cause)
        .remedy("run `longshore plan --json`, and report what it acquires; `--driver` with a whole version needs one file")
}

/// Purpose of an acquisition.
pub(super) trait Aim {
    /// A plan, with what carrying it out needs.
    type Planned;
    /// Result.
    type Got;

    /// Plans with what is available now.
    async fn plan(&self) -> Result<Self::Planned, Failure>;

    /// Carries a plan out, as far as it can be before it has to be made again.
    async fn carry_out(&self, planned: &Self::Planned) -> Result<Carried<Self::Got>, Missed>;

    /// Returns the failure to end with where a plan is of no use; `missed` is that of the part that was left out of
    /// it.
    fn ends_with(&self, planned: &Self::Planned, missed: Option<&Failure>) -> Option<Failure>;
}

impl Provisioner<'_> {
    /// Carries out a plan; where a part fails, plans again without it.
    ///
    /// # Errors
    /// Those of carrying out and planning, where no other source helps.
    pub(super) async fn acquire_for<A: Aim>(
        &self,
        aim: &A,
        mut planned: A::Planned,
    ) -> Result<A::Got, Failure> {
        // Each .run file and package is in the store afterwards.
        let most = self.config().run_files.len() + MOST_PACKAGES;
        let mut parts = 0;
        loop {
            let missed = match aim.carry_out(&planned).await {
                Ok(Carried::All(got)) => return Ok(got),
                Ok(Carried::Part) if parts == most => return Err(without_end(most)),
                Ok(Carried::Part) => {
                    parts += 1;
                    None
                }
                Err(Missed::Failed(failure)) => return Err(failure),
                Err(Missed::Part(part, failure)) => {
                    self.inventory.leave_out(&part, &failure);
                    Some((part, failure))
                }
            };
            planned = aim.plan().await?;
            let failure = missed.as_ref().map(|(_, failure)| failure);
            if let Some(end) = aim.ends_with(&planned, failure) {
                return Err(end);
            }
            if let Some((part, failure)) = missed {
                tracing::warn!("continuing without {part}: {}", failure.one_line());
            }
        }
    }
}

/// The driver of this host: everything that its plan acquires.
pub(super) struct OfHost<'p>(pub(super) &'p Provisioner<'p>);

impl Aim for OfHost<'_> {
    type Planned = Plan;
    type Got = ();

    async fn plan(&self) -> Result<Plan, Failure> {
        Ok(self.0.inventory.decide().await?.1)
    }

    async fn carry_out(&self, plan: &Plan) -> Result<Carried<()>, Missed> {
        let of = self.0;
        for acquire in &plan.acquire {
            match acquire {
                Acquire::Fetch(item) => {
                    source::acquire(item, of).await?;
                    if matches!(item, Item::Package(_) | Item::RunFile(_)) {
                        return Ok(Carried::Part);
                    }
                }
                Acquire::BuildSet(build) => {
                    of.build_once(build).await.map_err(|failure| not_built(build, failure))?;
                }
                Acquire::SignSet { set, .. } => of.sign(set.as_ref().clone()).await.map(drop)?,
                Acquire::AssembleUserspace { driver_version, run_file, sources } => {
                    of.assemble(driver_version, run_file.as_ref(), *sources).await?;
                }
            }
        }
        Ok(Carried::All(()))
    }

    fn ends_with(&self, plan: &Plan, missed: Option<&Failure>) -> Option<Failure> {
        // Without another source the failure of the part is the reason.
        plan.refusal().map(|refusal| missed.cloned().unwrap_or(refusal))
    }
}

impl Provider for Provisioner<'_> {
    async fn gather(&self) -> Result<Gathered, Failure> {
        self.inventory.gather().await
    }

    fn plan(&self, of: &Gathered) -> Result<Plan, Failure> {
        self.inventory.plan(of)
    }

    async fn acquire(&self, plan: &Plan) -> Result<(), Failure> {
        self.acquire_for(&OfHost(self), plan.clone()).await
    }

    fn awaits(&self, plan: &Plan) -> Option<Awaited> {
        self.awaited(plan)
    }

    async fn offered(&self) -> Vec<String> {
        self.offered_for(None).await
    }

    async fn installed(&self, plan: &PlanSummary, steps: &[Step]) {
        self.inventory.look_after_store(plan, steps).await;
    }
}
