//! One agent run, over a host and a provider that may be the real ones or a test's.

mod change;
pub(super) mod drain;
mod held;
mod postponed;
mod repairs;
mod stay;
mod version;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Idle, Renewal, Triggers, stuck};
use crate::config::{Config, MissingGpus};
use crate::engine::image::Images;
use crate::engine::{Engine, InUseWait, NotUndone, Stopped};
use crate::journal::phase::Phase;
use crate::journal::{Entry, Journal, PlanSummary};
use crate::plan::{Plan, Severity};
use crate::provider::{Configurations, Gathered, Provider};
use crate::steps::{Announces, LoadModule, Step};
use crate::telemetry::{DriverInfo, Origin, Telemetry};
pub use held::{Conduct, HeldChange, OnlyLogged};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::FailureKind;
use longshore_core::failure::{ExitCode, Failure, OrFail};
use longshore_core::privileges;
use longshore_host::Host;
use longshore_host::in_use::InUse;
use postponed::Postponed;
use repairs::Repairs;
use stay::{Base, Next};
use version::Unsettled;

/// Context of an agent run: everything it acts on.
#[derive(Clone)]
pub struct Context {
    /// The host.
    pub host: Arc<dyn Host>,
    /// Source of module images.
    pub images: Arc<dyn Images>,
    /// Time limit for SIGTERM to wait for a driver in use.
    pub in_use_wait: InUseWait,
    /// Time limit of a step of a change; after it the agent ends without the step.
    pub step_limit: Duration,
    /// Receives phases, steps and failures.
    pub telemetry: Telemetry,
    /// Idle state of the run: idle while it waits for nothing but signals.
    pub rest: Idle,
    /// Consequence of a GPU that the driver did not take.
    pub missing_gpus: MissingGpus,
    /// Sources of events about the driver that is Ready.
    pub triggers: Triggers,
    /// Conduct in the driver pod of the GPU operator.
    pub conduct: Conduct,
}

impl Context {
    /// Applies the time limits of this configuration from now on.
    fn follow(&mut self, config: &Config) {
        self.in_use_wait = super::in_use_wait(config);
        self.step_limit = config.step_limit();
        self.missing_gpus = config.missing_gpus;
        self.conduct = self.conduct.follow(config);
        if let Some(host) = self.host.within(&config.deadlines) {
            self.host = host;
        }
        if let Some(images) = self.images.on(config.disk()) {
            self.images = images;
        }
        self.rest.give(config.task_limit());
    }

    fn engine(&self) -> Engine<'_> {
        let Self { host, images, in_use_wait, telemetry, missing_gpus, .. } = self;
        Engine {
            host: &**host,
            images: &**images,
            in_use_wait: *in_use_wait,
            telemetry,
            refuses_missing_gpus: missing_gpus.refuses(),
        }
    }
}

/// One agent run.
pub struct Agent {
    world: Context,
    journal: Journal,
    stop: CancelFlag,
    renewal: Renewal,
    /// Trigger of the present work, and its time.
    asked: (&'static str, Instant),
    entered: Instant,
    /// Basis of the driver that is Ready.
    base: Base,
    repairs: Repairs,
    /// Wait before the next try of a change that is held.
    held_for: Option<Duration>,
    /// The journal stays with a step that hangs.
    is_journal_lost: bool,
    /// Users that the last change was refused for.
    refused_by: Option<InUse>,
    /// Change that waits while the installed driver is Ready.
    postponed: Option<Postponed>,
}

/// Reason that a run did not reach Ready.
enum Outcome {
    /// A stop was requested.
    Stopped,
    /// The change that was held is to be planned again.
    Again {
        /// True if the configuration is to be read before.
        renewed: bool,
    },
    /// Something failed. The journal records whether the previous driver is there, whole.
    Failed(Failure),
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Outcome::Failed(failure)
    }
}

impl Agent {
    /// Returns a run that begins with the state of `journal`, ends when `stop` is set, and follows
    /// a changed configuration at each request of `renewal`. `started` is the start time of its
    /// process.
    pub fn new(
        world: Context,
        journal: Journal,
        stop: CancelFlag,
        renewal: Renewal,
        started: Instant,
    ) -> Self {
        let (asked, entered) = (("the start", started), Instant::now());
        let (base, repairs) = (Base::default(), Repairs::default());
        Self {
            world,
            journal,
            stop,
            renewal,
            asked,
            entered,
            base,
            repairs,
            held_for: None,
            is_journal_lost: false,
            refused_by: None,
            postponed: None,
        }
    }

    /// Runs: installs the driver that `config` wants, stays, uninstalls. A provider, which may hold
    /// the indexes of whole archives, is kept only until the driver is Ready.
    ///
    /// # Errors
    /// Like [`run`](super::run).
    pub async fn live(
        self,
        config: Config,
        configurations: &impl Configurations,
    ) -> Result<ExitCode, Failure> {
        let telemetry = self.world.telemetry.clone();
        let held = Arc::clone(&self.world.conduct.held);
        let unsettled = Unsettled::new(self.world.conduct.asks_again);
        let renewal = self.renewal.clone();
        let ended = tokio::select! {
            biased;
            ended = self.run_phases(config, configurations, &unsettled) => ended,
            never = unsettled.ask(configurations, &renewal) => match never {},
        };
        held.ended().await;
        ended.inspect_err(|failure| telemetry.failed(failure))
    }

    async fn run_phases(
        mut self,
        mut config: Config,
        configurations: &impl Configurations,
        unsettled: &Unsettled,
    ) -> Result<ExitCode, Failure> {
        self.begin()?;
        self.withdraw_at_start().await?;
        let mut lived = match self.settle_version(&mut config, configurations, unsettled).await {
            Ok(()) => self.install_wanted(&mut config, configurations).await,
            Err(end) => Err(end),
        };
        loop {
            match lived {
                Ok(()) => {}
                Err(Outcome::Stopped | Outcome::Again { .. }) => return self.uninstall().await,
                Err(Outcome::Failed(failure)) => return Err(self.fail(failure).await),
            }
            lived = match self.stay().await {
                Ok(Next::Stop) => return self.uninstall().await,
                Ok(Next::Renew) => self.renew(&mut config, configurations).await,
                Ok(Next::Retry) => self.retry(&mut config, configurations).await,
                Err(end) => Err(end),
            };
        }
    }

    /// Installs the driver that the configuration wants, which may change while that is held.
    async fn install_wanted(
        &mut self,
        config: &mut Config,
        configurations: &impl Configurations,
    ) -> Result<(), Outcome> {
        loop {
            let installed = self.install(&configurations.provider(config)).await;
            let Err(Outcome::Again { renewed }) = installed else { return installed };
            if renewed {
                self.read_held(config, configurations).await?;
            }
        }
    }

    async fn install(&mut self, provider: &impl Provider) -> Result<(), Outcome> {
        let plan = self.decide(provider).await?;
        let plan = self.complete(provider, plan).await?;
        let (going, first) = (change::going(&self.journal, &plan), self.journal.next_seq());
        if going.is_empty() && self.journal.state().previous.is_empty() {
            self.apply(&plan).await?;
        } else if let Some(failure) = self.refused_before(&plan) {
            return Err(Outcome::Failed(failure));
        } else {
            self.exchange(&plan, going, Phase::InUse).await?;
        }
        self.held_for = None;
        self.ready(&plan, first)?;
        self.tell(provider).await;
        Ok(())
    }

    /// Returns a plan of which nothing is left to be acquired.
    async fn complete(&mut self, provider: &impl Provider, plan: Plan) -> Result<Plan, Outcome> {
        let mut plan = refused(plan)?;
        if !plan.acquire.is_empty() {
            let ready = self.journal.phase() == Phase::Ready;
            if !ready {
                self.enter(Phase::Acquiring)?;
            }
            or_stop(&self.stop, provider.acquire(&plan)).await?;
            let again =
                if ready { self.plan(provider).await? } else { self.decide(provider).await? };
            plan = refused(again)?;
        }
        if !plan.exact || !plan.acquire.is_empty() {
            return Err(Outcome::Failed(not_exact(&plan)));
        }
        Ok(plan)
    }

    /// Carries out a plan that replaces nothing.
    async fn apply(&mut self, plan: &Plan) -> Result<(), Outcome> {
        self.enter(Phase::Installing)?;
        self.journal.carry_out(PlanSummary::from(plan))?;
        let stop = self.stop.clone();
        let steps = plan.install.clone();
        let applied = self.on_engine(move |engine, journal| engine.apply(&steps, journal, &stop));
        match applied.await? {
            Ok(()) => Ok(()),
            Err(Stopped::Cancelled) => Err(Outcome::Stopped),
            Err(Stopped::Failed(failure)) => Err(Outcome::Failed(failure)),
        }
    }

    /// Enters Ready, and logs the time it took. Entries from number `first` on were made for it.
    fn ready(&mut self, plan: &Plan, first: u64) -> Result<(), Failure> {
        let (of_driver, others): (Vec<_>, Vec<_>) = self.journal.live().partition(|entry| {
            LoadModule::recorded(&entry.step).is_some_and(LoadModule::is_of_driver)
        });
        let is_new = |entry: &&&Entry| entry.seq >= first;
        let put_right = others.iter().filter(is_new).count();
        let how = match (of_driver.iter().filter(is_new).count(), put_right) {
            (0, 0) => "adopted as it was".to_owned(),
            (0, n) => format!("adopted, {n} put right beside it"),
            (n, _) => format!("{n} of its modules loaded"),
        };
        let is_ours = !of_driver.is_empty();
        self.world.telemetry.driver(installed(plan, &self.journal, first));
        self.base = Base::of(plan);
        self.enter(Phase::Ready)?;
        self.world.conduct.held.over();
        let version = &plan.driver_version;
        let (what, since) = self.asked;
        let ms = since.elapsed().as_millis();
        tracing::info!(
            driver = version,
            ms,
            "driver {version} is ready ({how}), {ms} ms after {what}"
        );
        if !is_ours {
            tracing::warn!(
                "driver {version} was loaded by another program: it stays when this agent ends"
            );
        }
        Ok(())
    }

    /// Reports the installed driver to the provider; a stop does not wait for it.
    async fn tell(&self, provider: &impl Provider) {
        let Some(plan) = self.journal.state().plan.clone() else { return };
        let steps: Vec<Step> = self.journal.live().map(|entry| entry.step.step()).collect();
        tokio::select! {
            biased;
            () = self.stop.wait() => {}
            () = provider.installed(&plan, &steps) => {}
        }
    }

    /// Reads the host and makes a plan.
    async fn decide(&mut self, provider: &impl Provider) -> Result<Plan, Outcome> {
        let gathered = or_stop(&self.stop, provider.gather()).await?;
        self.enter(Phase::Planning)?;
        Ok(planned(provider, &gathered)?)
    }

    /// The same while the driver is Ready, which it stays.
    async fn plan(&self, provider: &impl Provider) -> Result<Plan, Outcome> {
        let gathered = or_stop(&self.stop, provider.gather()).await?;
        Ok(planned(provider, &gathered)?)
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

    /// Ends a failed run: the host is as it was before, or a driver that was Ready is left as it
    /// is. If neither is possible, the journal keeps the rest for the next run.
    async fn fail(&mut self, failure: Failure) -> Failure {
        let state = self.journal.state();
        // These kinds mean that uninstalling was tried just now.
        let tried = matches!(failure.kind(), FailureKind::InUse | FailureKind::RolledBack);
        let undone = match state.whole || tried || self.journal.live().next().is_none() {
            true => Ok(()),
            false => self.undo_rest().await,
        };
        self.leave_not_ready().await;
        if self.journal.phase().next().contains(&Phase::Failed)
            && let Err(unwritten) = self.enter(Phase::Failed)
        {
            tracing::error!("{}", unwritten.one_line());
        }
        match undone {
            Ok(()) => failure,
            Err(left) => {
                let cause = format!(
                    "{}; the unfinished changes of an earlier agent could then not be undone: {}",
                    failure.one_line(),
                    left.one_line()
                );
                Failure::new(FailureKind::RolledBack, cause)
                    .remedy("run `longshore unload` once nothing holds the driver")
            }
        }
    }

    async fn undo_rest(&mut self) -> Result<(), Failure> {
        tracing::info!("undoing the unfinished changes of an earlier agent");
        let undone = self.on_engine(|engine, journal| engine.undo(journal)).await?;
        undone.map_err(NotUndone::into_failure)
    }

    /// Applies the time limits of this configuration from now on.
    fn follow(&mut self, config: &Config) {
        self.world.follow(config);
        self.journal.follow_disk(config.disk());
    }

    /// Undoes all entries of the journal.
    async fn uninstall(&mut self) -> Result<ExitCode, Failure> {
        self.no_longer_postponed();
        let untouched = self.journal.live().next().is_none();
        if untouched && self.journal.phase().next().contains(&Phase::Removed) {
            self.enter(Phase::Removed)?;
            return Ok(ExitCode::Done);
        }
        // A disk that is full just now is no reason to leave the driver on the host: the host
        // itself shows later what was undone.
        if let Err(failure) = self.enter(Phase::Removing) {
            if failure.kind() == FailureKind::Bug {
                return Err(failure);
            }
            tracing::warn!("uninstalling all the same: {}", failure.one_line());
        }
        let journal = std::mem::replace(&mut self.journal, Journal::in_memory());
        let (journal, result) = remove(&self.world, journal).await;
        if let Some(journal) = journal {
            self.journal = journal;
        }
        match result {
            Err(failure) if failure.kind() == FailureKind::InUse && self.is_of_operator() => {
                let left = failure.one_line();
                tracing::info!("{left}; it is left to the operator's next driver pod");
                Ok(ExitCode::Done)
            }
            result => result,
        }
    }

    /// True in the driver pod of the GPU operator: its pods use the driver across the agent's end.
    fn is_of_operator(&self) -> bool {
        self.world.conduct.parent.is_some()
    }

    async fn on_engine<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&Engine<'_>, &mut Journal) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let journal = std::mem::replace(&mut self.journal, Journal::in_memory());
        self.is_journal_lost = true;
        let (journal, result) = on_engine(&self.world, journal, act).await?;
        (self.journal, self.is_journal_lost) = (journal, false);
        Ok(result)
    }
}

fn tell_phase(phase: Phase, last: Phase, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    tracing::info!(
        %phase, %last, seconds, "phase {phase}, after {seconds:.1} s of {last}"
    );
}

/// Returns the description of the driver that `plan` installed with the entries from number `first`
/// on.
fn installed(plan: &Plan, journal: &Journal, first: u64) -> DriverInfo {
    let is_of_driver = |module: &&LoadModule| module.is_of_driver();
    let mut planned = plan.install.iter().filter_map(LoadModule::of).filter(is_of_driver);
    let nvidia = planned.find(|module| module.name == "nvidia");
    let entries = journal.live().filter(|entry| entry.seq >= first);
    let mut loaded = entries.filter_map(|e| LoadModule::recorded(&e.step)).filter(is_of_driver);
    DriverInfo {
        version: plan.driver_version.clone(),
        flavour: plan.flavour.to_string(),
        kernel: plan.kernel_release.clone(),
        module_digest: nvidia.and_then(LoadModule::digest).map(str::to_owned),
        origin: loaded.next().is_none().then_some(Origin::Adopted),
    }
}

/// Undoes all entries of a journal in phase Removing, and enters the phase that follows. Returns
/// the journal unless the undo itself panicked.
pub(super) async fn remove(
    world: &Context,
    journal: Journal,
) -> (Option<Journal>, Result<ExitCode, Failure>) {
    let since = Instant::now();
    let undo = |engine: &Engine<'_>, journal: &mut Journal| {
        let undone = engine.undo(journal);
        if matches!(undone, Err(NotUndone::InUse(_))) {
            engine.withdraw(Announces::Agent, journal);
        }
        undone
    };
    let undone = on_engine(world, journal, undo).await;
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

/// Runs `act` on a thread that may block. If one of its steps hangs, the thread is abandoned, with
/// the journal.
async fn on_engine<T: Send + 'static>(
    world: &Context,
    mut journal: Journal,
    act: impl FnOnce(&Engine<'_>, &mut Journal) -> T + Send + 'static,
) -> Result<(Journal, T), Failure> {
    let (at, step_limit) = (world.clone(), world.step_limit);
    let work = move || {
        let result = act(&at.engine(), &mut journal);
        at.host.release_idle();
        (journal, result)
    };
    tokio::select! {
        biased;
        done = privileges::run_privileged(work) => done.or_fail(FailureKind::Bug, || {
            "changing the host; the journal on disk has its progress"
        }),
        hangs = stuck::stuck(&world.telemetry, step_limit) => Err(hangs),
    }
}

/// Runs `work` until it ends or the stop is set, which drops it.
async fn or_stop<T>(
    stop: &CancelFlag,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Outcome> {
    let result = tokio::select! {
        biased;
        () = stop.wait() => return Err(Outcome::Stopped),
        result = work => result?,
    };
    // The stop may have been set during a part of the work that did not notice it.
    if stop.is_set() { Err(Outcome::Stopped) } else { Ok(result) }
}

/// Makes the plan, and warns of the sources that it goes on without.
fn planned(provider: &impl Provider, gathered: &Gathered) -> Result<Plan, Failure> {
    let plan = provider.plan(gathered)?;
    gathered.catalog.failures.warn();
    Ok(plan)
}

/// Returns the plan, unless preflight refused it: the gravest refusal, which comes first, ends the
/// run and is reported then; the others are logged.
fn refused(plan: Plan) -> Result<Plan, Outcome> {
    let refusals = plan.findings.iter().filter(|f| f.severity == Severity::Refusal);
    for finding in refusals.skip(1) {
        tracing::error!("{}: {}; remedy: {}", finding.code, finding.detail, finding.remedy);
    }
    match plan.refusal() {
        Some(failure) => Err(Outcome::Failed(failure)),
        None => Ok(plan),
    }
}

fn is_of_driver(step: &Step) -> bool {
    LoadModule::of(step).is_some_and(LoadModule::is_of_driver)
}

fn not_exact(plan: &Plan) -> Failure {
    let left = plan.acquire.len();
    Failure::new(
        FailureKind::Bug,
        format!(
            "planning again after acquiring everything: the plan is {}exact and still wants {left} \
             things acquired",
            if plan.exact { "" } else { "not " }
        ),
    )
}
