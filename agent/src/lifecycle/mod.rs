//! Agent runs: from Probing to Ready and, on SIGTERM, to Removed.

mod agent;
pub mod init;
mod notify;
pub mod probe;
#[cfg(any(test, feature = "testing"))]
pub mod scripted;
pub mod signals;
mod starts;
mod startup_lock;
pub(crate) mod stuck;
mod watch;
mod watchdog;

use std::sync::Arc;
use std::time::Instant;

pub use agent::{Agent, Conduct, Context, HeldChange, OnlyLogged, Successors};
pub use signals::Renewal;
pub use watch::Triggers;
use watchdog::Asked;
pub use watchdog::Idle;

use crate::cluster::DriverReport;
use crate::config::Config;
use crate::endpoint;
use crate::engine::InUseWait;
use crate::engine::image::{Images, ModuleImages};
use crate::journal::phase::Phase;
use crate::journal::{self, Journal};
use crate::next_kernel::{FetchCommand, NextKernel, Permission, TellFailure, Times};
use crate::provider::Configurations;
use crate::serve::{self, LivenessProbe, Server, Subject};
use crate::supplier::HostKernels;
use crate::telemetry::{FailureRecord, Telemetry};
use crate::termination;
use longshore_cluster::{Event, Reason, Regarding, Reporter};
use longshore_core::cancel::CancelFlag;
use longshore_core::deadlines::Deadlines;
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::store::Store;
use longshore_host::facts::process_files::Looker;
use longshore_host::real::kernel_call::KernelCalls;
use longshore_host::{Host, RealHost};

/// Installs, adopts or changes the driver, stays until SIGTERM or SIGINT, and uninstalls it; on
/// SIGHUP follows the configuration as it is then; prepares the kernel of the next boot by `fetch`. Calls
/// `stuck` with the reason where this can no longer end by itself: it ends the process.
///
/// # Errors
/// The failure that ended it; the host is then as it was before, or the failure (exit code 20 or
/// 21) names what is left.
pub async fn run(
    config: Config,
    configurations: impl Configurations,
    telemetry: &Telemetry,
    fetch: FetchCommand,
    stuck: impl FnOnce(&Failure) + Send + 'static,
) -> Result<ExitCode, Failure> {
    let parts = Parts { context: real_context, kernels: Some(HostKernels::new(fetch)) };
    run_in(config, configurations, telemetry, stuck, parts).await
}

/// The same over another host and other images.
///
/// # Errors
/// Like [`run`].
#[cfg(any(test, feature = "testing"))]
pub async fn run_over(
    config: Config,
    configurations: impl Configurations,
    telemetry: &Telemetry,
    host: Arc<dyn Host>,
    images: Arc<dyn Images>,
) -> Result<ExitCode, Failure> {
    let context = |config: &Config, _: &Journal, telemetry: &Telemetry, _: Looker| {
        let triggers = Triggers::default();
        Context { triggers, ..context(config, host, images, telemetry) }
    };
    run_in(config, configurations, telemetry, |_| (), Parts { context, kernels: None }).await
}

/// Parts of a run that tests replace.
struct Parts<W> {
    /// Makes the context of an agent run.
    context: W,
    /// Kernels to prepare; None in tests.
    kernels: Option<HostKernels>,
}

async fn run_in(
    config: Config,
    configurations: impl Configurations,
    telemetry: &Telemetry,
    stuck: impl FnOnce(&Failure) + Send + 'static,
    parts: Parts<impl FnOnce(&Config, &Journal, &Telemetry, Looker) -> Context>,
) -> Result<ExitCode, Failure> {
    let Parts { context, kernels } = parts;
    let (probe, responder) = LivenessProbe::new();
    let asked = Asked::default();
    asked.rest.give(config.task_limit());
    let holders = Looker::default();
    let subject = Subject::new(telemetry.clone(), probe, config.paths.clone(), holders.clone());
    let server = Server::begin(&config.serving, subject);
    let context = |config: &Config, journal: &Journal| context(config, journal, telemetry, holders);
    let parts = Parts { context, kernels };
    let run = run_agent(config, configurations, telemetry, server.as_ref(), asked.clone(), parts);
    let run = Box::pin(run);
    let ended = watchdog::watched(responder.drive(run), asked, telemetry, stuck).await;
    if let Some(server) = server {
        server.end();
    }
    ended
}

async fn run_agent(
    config: Config,
    configurations: impl Configurations,
    telemetry: &Telemetry,
    server: Option<&Server>,
    asked: Asked,
    parts: Parts<impl FnOnce(&Config, &Journal) -> Context>,
) -> Result<ExitCode, Failure> {
    let Parts { context, kernels } = parts;
    let started = Instant::now();
    let Asked { stop, renewal, rest } = asked;
    let _signals = signals::Watch::begin(stop.clone(), renewal.clone())?;
    let Some(journal) = startup_lock::open_journal(&config, &stop).await? else {
        return Ok(ExitCode::Done);
    };
    serve::publish(server, &config.paths.state, config.disk());
    telemetry.store_limit(config.store_max_size);
    remember(&config, &journal, telemetry);
    let notifier = notify::Notifier::begin(telemetry);
    let report = DriverReport::begin(&config, telemetry, &|name| std::env::var(name).ok());
    let reporter = report.as_ref().map(DriverReport::reporter);
    let conduct = conduct(&config, reporter, telemetry);
    let context = Context { rest, conduct, ..context(&config, &journal) };
    let next_kernel = kernels.map(|kernels| {
        let tell = events_of(report.as_ref().map(DriverReport::reporter));
        NextKernel::begin(kernels, &context.permission, telemetry, tell, Times::default())
    });
    let agent = Agent::new(context, journal, stop, renewal, started);
    let ended = Box::pin(agent.live(config, &configurations)).await;
    if let Some(notifier) = notifier {
        notifier.end().await;
    }
    if let Some(next_kernel) = next_kernel {
        next_kernel.end().await;
    }
    if let Some(report) = report {
        report.end().await;
    }
    ended
}

/// Returns the receiver of failed preparations: each is an event of the node.
fn events_of(reporter: Option<Arc<Reporter>>) -> TellFailure {
    Box::new(move |release, failure| {
        let Some(reporter) = &reporter else { return };
        reporter.event(Event {
            regarding: Regarding::Node(reporter.node().to_owned()),
            reason: Reason::NextKernelUnprepared,
            action: "PrepareNextKernel",
            note: format!(
                "kernel {release} is installed, and has no modules yet: {}",
                failure.cause
            ),
        });
    })
}

/// Reports the previous agents to telemetry.
fn remember(config: &Config, journal: &Journal, telemetry: &Telemetry) {
    let (paths, disk) = (&config.paths, config.disk());
    if let Some(starts) = starts::count(&paths.state, journal.state().boot_id.as_deref(), disk) {
        telemetry.starts(starts);
    }
    let phase = journal.phase();
    if !matches!(phase, Phase::Removed | Phase::Failed | Phase::InUse) {
        let failure = FailureRecord::without_report(phase, journal::written(&paths.state));
        tracing::warn!("{}", failure.cause);
        termination::keep_soon(paths, disk, failure);
    }
    telemetry.failed_before(termination::last(paths).map(|last| last.failure));
}

/// Undoes the effects that the journal of an ended agent has on the host. With `takes_over_unsealed`
/// it then undoes those of a record that no seal proves.
///
/// # Errors
/// 15 if an agent is running, 20 if the driver is in use, 21 if something could not be undone; 13 if
/// the unsealed record has an entry that no list permits.
pub async fn unload(
    config: &Config,
    takes_over_unsealed: bool,
    telemetry: &Telemetry,
) -> Result<ExitCode, Failure> {
    if !takes_over_unsealed {
        journal::warn_of_passed_over(&config.paths);
        return unload_recorded(config, telemetry).await;
    }
    unload_recorded(config, telemetry).await?;
    let Some(mut journal) = startup_lock::open_journal(config, &CancelFlag::default()).await?
    else {
        return Ok(ExitCode::Done);
    };
    if !journal.take_over_unsealed(&config.paths)? {
        tracing::info!("there is no unsealed record to take over");
        return Ok(ExitCode::Done);
    }
    uninstall(config, journal, telemetry).await
}

/// Undoes the effects that the agent's own journal has.
async fn unload_recorded(config: &Config, telemetry: &Telemetry) -> Result<ExitCode, Failure> {
    let dir = &config.paths.state;
    if journal::holder(dir) == Ok(None) && journal::read_state(&config.paths)?.is_none() {
        tracing::info!(
            "nothing to undo: there is no record in {} (a container sees the host's only where \
             /run/longshore or /run/nvidia is mounted into it, or with the host's PID namespace)",
            dir.display()
        );
        return Ok(ExitCode::Done);
    }
    // A signal ends this command by itself.
    let Some(journal) = startup_lock::open_journal(config, &CancelFlag::default()).await? else {
        return Ok(ExitCode::Done);
    };
    endpoint::forget(dir);
    uninstall(config, journal, telemetry).await
}

async fn uninstall(
    config: &Config,
    mut journal: Journal,
    telemetry: &Telemetry,
) -> Result<ExitCode, Failure> {
    if journal.live().next().is_none() {
        tracing::info!("nothing to undo: the last agent undid all its changes to this host");
        return Ok(ExitCode::Done);
    }
    if let Err(failure) = journal.begin(Phase::Removing) {
        tracing::warn!("uninstalling all the same: {}", failure.one_line());
    }
    let context = real_context(config, &journal, telemetry, Looker::default());
    agent::remove(&context, journal).await.1
}

/// Returns the context of an agent run. A child process, which holds the journal's lock, makes the
/// calls that may hang in the kernel.
fn real_context(
    config: &Config,
    journal: &Journal,
    telemetry: &Telemetry,
    holders: Looker,
) -> Context {
    let Deadlines { unload, load, look, .. } = config.deadlines;
    let calls = KernelCalls::by_child(journal.share_lock(), load, unload);
    // The store is opened by the tasks that read it, where an unresponsive disk blocks nothing else. An
    // uninstall seldom reads it: an unreachable store is no reason to leave the driver on a host.
    let store = Store::at(&config.paths.store, config.disk());
    let images = ModuleImages::new(store, &config.paths).always_hashed(config.signatures.required);
    let host = RealHost::new(&config.paths.root);
    let host = host.calling(calls, look).looking_for_holders_with(holders);
    let triggers = Triggers { kernel: true, ..Triggers::default() };
    Context { triggers, ..context(config, Arc::new(host), Arc::new(images), telemetry) }
}

/// Returns the context over any host, without sources of events.
fn context(
    config: &Config,
    host: Arc<dyn Host>,
    images: Arc<dyn Images>,
    telemetry: &Telemetry,
) -> Context {
    Context {
        host,
        images,
        in_use_wait: in_use_wait(config),
        step_limit: config.step_limit(),
        telemetry: telemetry.clone(),
        rest: Idle::default(),
        missing_gpus: config.missing_gpus,
        triggers: Triggers::default(),
        conduct: Conduct::default().follow(config),
        permission: Permission::default(),
    }
}

/// Returns the conduct by these settings: a change that waits asks the cluster for a drain, or drains the
/// node itself.
fn conduct(config: &Config, reporter: Option<Arc<Reporter>>, telemetry: &Telemetry) -> Conduct {
    let held = agent::drain::DrainsNode::of_process(config, reporter, telemetry);
    Conduct { held: Arc::new(held), ..Conduct::default() }.follow(config)
}

fn in_use_wait(config: &Config) -> InUseWait {
    InUseWait::with_deadline(config.deadlines.users)
}

#[cfg(test)]
mod tests;
