//! One agent run, over a host and a provider that may be the real ones or a test's.

mod awaiting;
mod change;
pub(super) mod drain;
mod ending;
mod evicting;
mod held;
mod idle;
mod installing;
mod postponed;
mod reading;
mod repairs;
mod stay;
mod version;
mod waiting;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Idle, Renewal, Triggers, stuck};
use crate::config::{Config, Reaction};
use crate::engine::image::Images;
use crate::engine::{Engine, InUseWait};
use crate::journal::Journal;
use crate::journal::phase::Phase;
use crate::next_kernel::Permission;
use crate::provider::Configurations;
use crate::steps::{LoadModule, Step};
use crate::supplier::OfferWait;
use crate::telemetry::{Awaited, Telemetry};
pub(super) use ending::remove;
pub use held::{Conduct, HeldChange, OnlyLogged, Successors};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::privileges;
use longshore_host::Host;
use longshore_host::facts::in_use::InUse;
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
    pub missing_gpus: Reaction,
    /// Sources of events about the driver that is Ready.
    pub triggers: Triggers,
    /// Conduct in a cluster, and in the driver pod of the GPU operator.
    pub conduct: Conduct,
    /// Permission to prepare the kernel of the next boot.
    pub permission: Permission,
}

impl Context {
    /// Applies the time limits of this configuration from now on.
    fn follow(&mut self, config: &Config) {
        self.in_use_wait = super::in_use_wait(config);
        self.step_limit = config.step_limit();
        self.missing_gpus = config.missing_gpus;
        self.telemetry.store_limit(config.store_max_size);
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
    context: Context,
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
    /// Name of the last change.
    change: String,
    /// Wait for modules that no registry has yet.
    awaiting: Option<OfferWait>,
}

/// Reason that a run did not reach Ready.
#[derive(derive_more::From)]
enum Outcome {
    /// A stop was requested.
    Stopped,
    /// The change that was held is to be planned again.
    Again {
        /// True if the configuration is to be read before.
        renewed: bool,
    },
    /// No GPU is here, and the configuration says to wait for one; nothing of ours is on the host.
    NoGpu,
    /// The plan lacks modules that a registry may get, and was refused with this failure.
    Unpublished(Box<Awaited>, Failure),
    /// Something failed. The journal records whether the previous driver is there, whole.
    #[from]
    Failed(Failure),
}

impl Agent {
    /// Returns a run that begins with the state of `journal`, ends when `stop` is set, and follows
    /// a changed configuration at each request of `renewal`. `started` is the start time of its
    /// process.
    pub fn new(
        context: Context,
        journal: Journal,
        stop: CancelFlag,
        renewal: Renewal,
        started: Instant,
    ) -> Self {
        let (asked, entered) = (("the start", started), Instant::now());
        let (base, repairs) = (Base::default(), Repairs::default());
        Self {
            context,
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
            change: String::new(),
            awaiting: None,
        }
    }

    /// Runs: installs the driver that `config` wants, stays, uninstalls. A provider, which may hold
    /// the indexes of whole archives, is kept only until the driver is Ready.
    ///
    /// # Errors
    /// Like [`run`](super::run).
    pub async fn live(
        mut self,
        config: Config,
        configurations: &impl Configurations,
    ) -> Result<ExitCode, Failure> {
        let telemetry = self.context.telemetry.clone();
        let held = Arc::clone(&self.context.conduct.held);
        let unsettled = Unsettled::new(self.context.conduct.asks_again);
        let renewal = self.renewal.clone();
        let ended = tokio::select! {
            biased;
            ended = self.run_phases(config, configurations, &unsettled) => ended,
            never = unsettled.ask(configurations, &renewal) => match never {},
            never = ask_at_changes(configurations, &renewal) => match never {},
        };
        // The next agent on this host begins after that: the journal's lock is held until here.
        held.ended().await;
        ended.inspect_err(|failure| telemetry.failed(failure))
    }

    async fn run_phases(
        &mut self,
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
                Err(Outcome::NoGpu) => {
                    lived = self.install_wanted(&mut config, configurations).await;
                    continue;
                }
                Err(Outcome::Failed(failure) | Outcome::Unpublished(_, failure)) => {
                    return Err(self.fail(failure).await);
                }
            }
            self.context.permission.give(&config);
            let stayed = self.stay().await;
            self.context.permission.withdraw();
            lived = match stayed {
                Ok(Next::Stop) => return self.uninstall().await,
                Ok(Next::Renew) => self.renew(&mut config, configurations).await,
                Ok(Next::Retry) => self.retry(&mut config, configurations).await,
                Err(end) => Err(end),
            };
        }
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.journal.begin(Phase::Probing)?;
        self.entered = Instant::now();
        self.context.telemetry.enter(Phase::Probing);
        tracing::info!(phase = "probing", "phase probing");
        Ok(())
    }

    fn enter(&mut self, phase: Phase) -> Result<(), Failure> {
        let last = self.journal.phase();
        self.journal.enter(phase)?;
        self.context.telemetry.enter(phase);
        tell_phase(phase, last, self.entered);
        self.entered = Instant::now();
        Ok(())
    }

    /// Applies the time limits of this configuration from now on.
    fn follow(&mut self, config: &Config) {
        self.context.follow(config);
        self.journal.follow_disk(config.disk());
    }

    async fn on_engine<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&Engine<'_>, &mut Journal) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let journal = std::mem::replace(&mut self.journal, Journal::in_memory());
        self.is_journal_lost = true;
        let (journal, result) = on_engine(&self.context, journal, act).await?;
        (self.journal, self.is_journal_lost) = (journal, false);
        Ok(result)
    }
}

/// Requests the support table whenever its place has another one.
async fn ask_at_changes(configurations: &impl Configurations, renewal: &Renewal) -> Infallible {
    loop {
        configurations.table_changed().await;
        renewal.ask_for_table();
    }
}

fn tell_phase(phase: Phase, last: Phase, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    tracing::info!(
        %phase, %last, seconds, "phase {phase}, after {seconds:.1} s of {last}"
    );
}

/// Runs `act` on a thread that may block. If one of its steps hangs, the thread is abandoned, with
/// the journal.
async fn on_engine<T: Send + 'static>(
    context: &Context,
    mut journal: Journal,
    act: impl FnOnce(&Engine<'_>, &mut Journal) -> T + Send + 'static,
) -> Result<(Journal, T), Failure> {
    let (at, step_limit) = (context.clone(), context.step_limit);
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
        hangs = stuck::stuck(&context.telemetry, step_limit) => Err(hangs),
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

fn is_of_driver(step: &Step) -> bool {
    LoadModule::from_step(step).is_some_and(LoadModule::is_of_driver)
}
