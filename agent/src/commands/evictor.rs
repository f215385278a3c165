//! `longshore evictor`: the controller of evictions.

use clap::Args;
use futures_util::StreamExt;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::signal_name;
use signal_hook_tokio::Signals;

use super::{CommandOutcome, env};
use crate::cluster::{EvictorQuestion, ask_evictor, run_evictor};
use crate::config::Config;
use longshore_cluster::{EvictPace, EvictorOptions, Share};
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};

/// Arguments of `evictor`.
#[derive(Debug, Args)]
pub(super) struct EvictorArgs {
    /// Number of nodes that are drained at a time, or a percentage of the nodes with an agent, rounded up
    #[arg(long, value_name = "N|N%", default_value_t = Share::default())]
    max_nodes: Share,
    /// Ask the controller of this pod if its task goes on (liveness probe); exit code 30 if not
    #[arg(long, conflicts_with = "max_nodes")]
    alive: bool,
    /// Ask it if it follows the nodes (readiness probe); exit code 30 if not
    #[arg(long, conflicts_with_all = ["max_nodes", "alive"])]
    ready: bool,
}

/// Runs the controller until SIGTERM or SIGINT, or asks the one that runs. The time limit of evictions is the setting,
/// or the request's where that is shorter.
pub(super) async fn evictor(
    config: &Config,
    asked: EvictorArgs,
) -> Result<CommandOutcome, Failure> {
    let question = match (asked.alive, asked.ready) {
        (true, _) => Some(EvictorQuestion::Alive),
        (_, true) => Some(EvictorQuestion::Ready),
        _ => None,
    };
    if let Some(question) = question {
        let code = if ask_evictor(question)? { ExitCode::Done } else { ExitCode::NotReady };
        return Ok(CommandOutcome::Code(code));
    }
    let signals = Signals::new([SIGTERM, SIGINT]);
    let mut signals = signals.or_fail(FailureKind::Bug, || "setting signal handlers")?;
    let options = EvictorOptions {
        most_nodes: asked.max_nodes,
        pace: EvictPace { deadline: config.cluster.evict_deadline, ..EvictPace::default() },
        ..EvictorOptions::default()
    };
    tokio::select! {
        biased;
        Some(signal) = signals.next() => {
            let name = signal_name(signal).unwrap_or("a signal");
            tracing::info!("{name}: ended; requests and cordons stay on the nodes for the next controller");
            Ok(CommandOutcome::Code(ExitCode::Done))
        }
        ended = run_evictor(&env, options) => match ended? {},
    }
}
