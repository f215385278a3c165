//! One agent's life, over a host and a provider that may be the real ones or a test's.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use super::{Phase, Provider};
use crate::engine::{CancelFlag, Engine, NotUndone, Patience, Stopped};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::host::Host;
use crate::journal::{Journal, PlanSummary};
use crate::kernel::image::Images;
use crate::plan::{Plan, Severity};
use crate::step::{ModuleOrigin, Step};
use crate::telemetry::{DriverInfo, Origin, Telemetry};

/// What a life acts on.
#[derive(Clone)]
pub struct World {
    /// The host.
    pub host: Arc<dyn Host>,
    /// Where module images come from.
    pub images: Arc<dyn Images>,
    /// How long SIGTERM waits for a driver in use.
    pub patience: Patience,
    /// Hears what becomes of it all.
    pub telemetry: Telemetry,
}

/// One agent's life.
pub struct Life {
    world: World,
    journal: Journal,
    stop: CancelFlag,
    entered: Instant,
}

/// Why a life did not come to Ready.
enum End {
    /// It was asked to stop.
    Stopped,
    /// Something failed.
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Failed(failure)
    }
}

impl Life {
    /// A life that begins with what `journal` holds, and ends when `stop` is set.
    pub fn new(world: World, journal: Journal, stop: CancelFlag) -> Self {
        Self { world, journal, stop, entered: Instant::now() }
    }

    /// Lives: installs, waits for the stop, removes. The provider, which may know whole archives,
    /// is dropped as soon as the driver is installed.
    ///
    /// # Errors
    /// As [`run`](super::run).
    pub async fn live(self, provider: impl Provider) -> Result<ExitCode, Failure> {
        let telemetry = self.world.telemetry.clone();
        let ended = self.live_through(provider).await;
        ended.inspect_err(|failure| telemetry.failed(failure))
    }

    async fn live_through(mut self, provider: impl Provider) -> Result<ExitCode, Failure> {
        self.begin()?;
        let installed = self.install(&provider).await;
        if installed.is_ok() {
            self.tell(&provider).await;
        }
        drop(provider);
        match installed {
            Ok(()) => self.stop.wait().await,
            Err(End::Stopped) => {}
            Err(End::Failed(failure)) => return Err(self.give_up(failure)),
        }
        self.take_off().await
    }

    async fn install(&mut self, provider: &impl Provider) -> Result<(), End> {
        let plan = self.decide_with_leftovers(provider).await?;
        let plan =
            if plan.acquire.is_empty() { plan } else { self.acquire(provider, plan).await? };
        if !plan.exact || !plan.acquire.is_empty() {
            return Err(End::Failed(not_exact(&plan)));
        }
        self.enter(Phase::Installing)?;
        self.journal.carry_out(PlanSummary::from(&plan))?;
        let (stop, first) = (self.stop.clone(), self.journal.next_seq());
        let steps = plan.install.clone();
        let applied = self.on_engine(move |engine, journal| engine.apply(&steps, journal, &stop));
        match applied.await? {
            Ok(()) => {}
            Err(Stopped::Cancelled) => return Err(End::Stopped),
            Err(Stopped::Failed(failure)) => return Err(End::Failed(failure)),
        }
        self.world.telemetry.driver(installed(&plan, &self.journal, first));
        self.enter(Phase::Ready)?;
        tracing::info!(driver = plan.driver_version, "driver {} is ready", plan.driver_version);
        Ok(())
    }

    /// Tells the provider what is installed; a stop is not kept waiting.
    async fn tell(&self, provider: &impl Provider) {
        let Some(plan) = self.journal.state().plan.clone() else { return };
        let steps: Vec<Step> = self.journal.live().map(|entry| entry.step.clone()).collect();
        tokio::select! {
            biased;
            () = self.stop.wait() => {}
            () = provider.installed(&plan, &steps) => {}
        }
    }

    /// A plan for the host as it is, where what a dead agent left fits it; else for the host
    /// with that taken off.
    async fn decide_with_leftovers(&mut self, provider: &impl Provider) -> Result<Plan, End> {
        let plan = self.decide(provider).await?;
        if self.journal.live().next().is_none() {
            return refused(plan);
        }
        if plan.refusal().is_none() && fits(&self.journal, &plan) {
            tracing::info!("what the last agent left is what is wanted: going on from there");
            return Ok(plan);
        }
        tracing::info!("taking off what the last agent left");
        self.take_off().await?;
        self.begin()?;
        refused(self.decide(provider).await?)
    }

    async fn decide(&mut self, provider: &impl Provider) -> Result<Plan, End> {
        let (facts, catalog) = or_stop(&self.stop, provider.gather()).await?;
        self.enter(Phase::Planning)?;
        Ok(provider.plan(&facts, &catalog)?)
    }

    async fn acquire(&mut self, provider: &impl Provider, plan: Plan) -> Result<Plan, End> {
        self.enter(Phase::Acquiring)?;
        or_stop(&self.stop, provider.acquire(&plan)).await?;
        refused(self.decide(provider).await?)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.journal.begin(Phase::Probing)?;
        self.entered = Instant::now();
        self.world.telemetry.enter(Phase::Probing);
        tracing::info!(phase = "probing", "phase probing");
        Ok(())
    }

    fn enter(&mut self, phase: Phase) -> Result<(), Failure> {
        let last = self.journal.phase();
        self.journal.enter(phase)?;
        self.world.telemetry.enter(phase);
        tell_phase(phase, last, self.entered);
        self.entered = Instant::now();
        Ok(())
    }

    /// Ends a life that failed. The journal keeps what is left, so a next life can take it off.
    fn give_up(&mut self, failure: Failure) -> Failure {
        if self.journal.phase().next().contains(&Phase::Failed)
            && let Err(unwritten) = self.enter(Phase::Failed)
        {
            tracing::error!("{}", unwritten.one_line());
        }
        failure
    }

    /// Undoes all that the journal has.
    async fn take_off(&mut self) -> Result<ExitCode, Failure> {
        let untouched = self.journal.live().next().is_none();
        if untouched && self.journal.phase().next().contains(&Phase::Removed) {
            self.enter(Phase::Removed)?;
            return Ok(ExitCode::Done);
        }
        // A disk that is full just now is no reason to leave the driver on the host: what is undone
        // is told by looking at the host.
        if let Err(failure) = self.enter(Phase::Removing) {
            if failure.code() == ExitCode::Bug {
                return Err(failure);
            }
            tracing::warn!("removing all the same: {}", failure.one_line());
        }
        let journal = std::mem::replace(&mut self.journal, Journal::in_memory());
        let (journal, result) = remove(&self.world, journal).await;
        if let Some(journal) = journal {
            self.journal = journal;
        }
        result
    }

    async fn on_engine<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&Engine<'_>, &mut Journal) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let journal = std::mem::replace(&mut self.journal, Journal::in_memory());
        let (journal, result) = on_engine(&self.world, journal, act).await?;
        self.journal = journal;
        Ok(result)
    }
}

fn tell_phase(phase: Phase, last: Phase, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    tracing::info!(
        %phase, %last, seconds, "phase {phase}, after {seconds:.1} s of {last}"
    );
}

/// What is told of the driver that `plan` installed with the entries from number `first` on.
fn installed(plan: &Plan, journal: &Journal, first: u64) -> DriverInfo {
    let of_driver = |step: &Step| match step {
        Step::LoadModule { name, origin: ModuleOrigin::Driver { sha256 }, .. } => {
            Some((name.clone(), sha256.clone()))
        }
        _ => None,
    };
    let nvidia = plan.install.iter().filter_map(of_driver).find(|(name, _)| name == "nvidia");
    let loaded = journal.live().any(|e| e.seq >= first && of_driver(&e.step).is_some());
    DriverInfo {
        version: plan.driver_version.clone(),
        flavour: plan.flavour.to_string(),
        kernel: plan.kernel_release.clone(),
        module_digest: nvidia.map(|(_, sha256)| sha256),
        origin: (!loaded).then_some(Origin::Adopted),
    }
}

/// Undoes all that a journal in phase Removing has, and enters the phase that follows. Gives the
/// journal back unless the undo itself broke.
pub(super) async fn remove(
    world: &World,
    journal: Journal,
) -> (Option<Journal>, Result<ExitCode, Failure>) {
    let since = Instant::now();
    let undone = on_engine(world, journal, |engine, journal| engine.undo(journal)).await;
    let (mut journal, undone) = match undone {
        Ok(undone) => undone,
        Err(bug) => return (None, Err(bug)),
    };
    let phase = match &undone {
        Ok(()) => Phase::Removed,
        Err(NotUndone::InUse(_)) => Phase::InUse,
        Err(NotUndone::Left(_)) => Phase::Failed,
    };
    let entered = journal.enter(phase);
    world.telemetry.enter(phase);
    tell_phase(phase, Phase::Removing, since);
    let result = undone.map_err(NotUndone::into_failure).and(entered).map(|()| ExitCode::Done);
    (Some(journal), result)
}

/// Runs `act` where it may block.
async fn on_engine<T: Send + 'static>(
    world: &World,
    mut journal: Journal,
    act: impl FnOnce(&Engine<'_>, &mut Journal) -> T + Send + 'static,
) -> Result<(Journal, T), Failure> {
    let World { host, images, patience, telemetry } = world.clone();
    let work = move || {
        let engine = Engine { host: &*host, images: &*images, patience, telemetry: &telemetry };
        let result = act(&engine, &mut journal);
        (journal, result)
    };
    tokio::task::spawn_blocking(work)
        .await
        .or_fail(ExitCode::Bug, || "changing the host; the journal on disk says how far it came")
}

/// Runs `work` until it ends or the stop is set, which drops it.
async fn or_stop<T>(
    stop: &CancelFlag,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, End> {
    let result = tokio::select! {
        biased;
        () = stop.wait() => return Err(End::Stopped),
        result = work => result?,
    };
    // It may have been set while the work was at something that it does not wait for.
    if stop.is_set() { Err(End::Stopped) } else { Ok(result) }
}

/// The plan, unless preflight refused it: the gravest refusal, which comes first, ends the life and
/// is reported then; the others are logged.
fn refused(plan: Plan) -> Result<Plan, End> {
    let refusals = plan.findings.iter().filter(|f| f.severity == Severity::Refusal);
    for finding in refusals.skip(1) {
        tracing::error!("{}: {}; remedy: {}", finding.code, finding.seen, finding.remedy);
    }
    match plan.refusal() {
        Some(failure) => Err(End::Failed(failure)),
        None => Ok(plan),
    }
}

/// Whether what the journal has is part of what the plan wants. A module the plan does not name
/// is one that it found loaded.
fn fits(journal: &Journal, plan: &Plan) -> bool {
    let names =
        |wanted: &Step, name: &str| matches!(wanted, Step::LoadModule { name: n, .. } if n == name);
    let wanted = |step: &Step| match step {
        Step::LoadModule { name, .. } => {
            plan.install.contains(step) || !plan.install.iter().any(|wanted| names(wanted, name))
        }
        step => plan.install.contains(step),
    };
    journal.state().plan == Some(PlanSummary::from(plan)) && journal.live().all(|e| wanted(&e.step))
}

fn not_exact(plan: &Plan) -> Failure {
    let left = plan.acquire.len();
    Failure::new(
        ExitCode::Bug,
        format!(
            "planning again after all was acquired: the plan is {}exact and still wants {left} \
             things acquired",
            if plan.exact { "" } else { "not " }
        ),
    )
}
