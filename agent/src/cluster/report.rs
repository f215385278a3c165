//! Report of the driver to the cluster, in a task of its own: nothing waits for the API server, but the end
//! of the agent, for a few seconds.

mod described;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::Pod;
use crate::config::Config;
use crate::telemetry::{Live, Telemetry};
use described::Described;
use longshore_cluster::{Options, Reason, Reporter};
use longshore_core::environment::Env;
use longshore_core::failure::Failure;
use longshore_core::root::Root;
use longshore_host::facts::LiveDriver;
use longshore_host::modules::loaded_driver;
use longshore_host::verbs::DriverUser;

/// Time limit of the last report, at the end of the agent.
const LAST: Duration = Duration::from_secs(5);
/// Duration of a state that passes, as the first look at an adopted driver, before it is reported.
const PASSING: Duration = Duration::from_secs(5);
/// Time limit for reading the version of the loaded driver.
const READ: Duration = Duration::from_secs(2);

/// Report of this agent's driver.
#[derive(Debug)]
pub struct DriverReport {
    reporter: Arc<Reporter>,
    source: Source,
    task: JoinHandle<()>,
    limit: Duration,
}

impl DriverReport {
    /// Begins to report the agent of this process; None outside of a cluster, where the settings say so, and
    /// where the pod does not know its node. A cluster that cannot be used is a warning.
    pub fn begin(config: &Config, telemetry: &Telemetry, env: Env<'_>) -> Option<Self> {
        if !config.cluster.report {
            return None;
        }
        let pod = Pod::of_process(env).and_then(|pod| match pod {
            Some(pod) => {
                pod.reporter(&Options { taint: config.cluster.taint, ..Options::default() })
            }
            None => Ok(None),
        });
        match pod {
            Ok(found) => {
                let (reporter, pod) = found?;
                let root = config.paths.root.clone();
                Some(Self::of(reporter, Source::new(telemetry, root, pod), LAST))
            }
            Err(failure) => {
                tracing::warn!("the driver is not reported to the cluster: {}", failure.one_line());
                None
            }
        }
    }

    /// Begins to report this telemetry to a cluster of a test.
    #[cfg(test)]
    pub(crate) fn to(cluster: longshore_cluster::Cluster, telemetry: &Telemetry) -> Self {
        let begun = Reporter::begin(cluster, "n".to_owned(), Options::default());
        let source = Source::new(telemetry, "/nowhere".into(), None);
        Self::of(begun.expect("a name"), source, Duration::from_millis(50))
    }

    fn of(reporter: Reporter, source: Source, limit: Duration) -> Self {
        let reporter = Arc::new(reporter);
        let (told, mut from) = (Arc::clone(&reporter), source.clone());
        let task = tokio::spawn(async move { from.follow(&told).await });
        Self { reporter, source, task, limit }
    }

    /// Returns the reporter, for events beside the reports.
    pub(crate) fn reporter(&self) -> Arc<Reporter> {
        Arc::clone(&self.reporter)
    }

    /// Writes the last state, for a few seconds at most.
    pub async fn end(self) {
        self.task.abort();
        let last = self.source.described().await.report;
        if !self.reporter.finish(Some(last), self.limit).await {
            tracing::warn!(
                "the last state of the driver may not be on its node: the API server did not take it \
                 within {} s; the next agent reports its own",
                self.limit.as_secs_f64()
            );
        }
    }
}

/// Name of a program, and uid of its pod.
type Program = (String, Option<String>);

fn program(user: &DriverUser) -> Program {
    (user.comm.clone(), user.pod.clone())
}

/// Source of reports: telemetry, and the loaded driver.
#[derive(Debug, Clone)]
struct Source {
    telemetry: Telemetry,
    root: PathBuf,
    /// `NAMESPACE/NAME` of the agent's pod.
    pod: Option<String>,
    kernel: String,
    /// Time at which each program of a pod was found first, whichever of its processes: one that starts
    /// others would change the report with each of them. Clones share it.
    found: Arc<Mutex<BTreeMap<Program, Timestamp>>>,
    /// The last report was of a driver that its users hold.
    was_in_use: bool,
}

impl Source {
    fn new(telemetry: &Telemetry, root: PathBuf, pod: Option<String>) -> Self {
        let kernel = nix::sys::utsname::uname().ok();
        let kernel = kernel.map(|host| host.release().to_string_lossy().into_owned());
        Self {
            telemetry: telemetry.clone(),
            root,
            pod,
            kernel: kernel.unwrap_or_default(),
            found: Arc::default(),
            was_in_use: false,
        }
    }

    /// Reports each state, and one that passes once it has lasted for a while.
    async fn follow(&mut self, reporter: &Reporter) {
        let mut changes = self.telemetry.changes();
        let mut passing: Option<Instant> = None;
        loop {
            changes.borrow_and_update();
            let Described { report, passes } = self.described().await;
            let left = match passes {
                true => {
                    let since = passing.get_or_insert_with(Instant::now);
                    PASSING.saturating_sub(since.elapsed())
                }
                false => Duration::ZERO,
            };
            if left.is_zero() {
                if !passes {
                    passing = None;
                }
                self.was_in_use = report.reason == Reason::DriverInUse;
                reporter.report(report);
            }
            tokio::select! {
                // Telemetry lives as long as this source.
                changed = changes.changed() => if changed.is_err() { return },
                () = sleep(left), if !left.is_zero() => {}
            }
        }
    }

    async fn described(&self) -> Described {
        let live = self.telemetry.live();
        self.remember(&live);
        let loaded = loaded(&self.root).await;
        described::describe(self, &live, loaded)
    }

    fn found(&self) -> MutexGuard<'_, BTreeMap<Program, Timestamp>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the time at which each user was found first, for as long as it is found.
    fn remember(&self, live: &Live) {
        let Some(holders) = &live.holders else { return self.found().clear() };
        let present: BTreeSet<Program> = holders.processes.iter().map(program).collect();
        let mut found = self.found();
        found.retain(|known, _| present.contains(known));
        for program in present {
            found.entry(program).or_insert(holders.inspected);
        }
    }
}

/// Reads the loaded driver, on a thread that may block.
async fn loaded(root: &Path) -> Option<LiveDriver> {
    let root = root.to_path_buf();
    let read = tokio::task::spawn_blocking(move || loaded_driver(&Root::open(&root).ok()?));
    timeout(READ, read).await.ok()?.ok().flatten()
}

impl Pod {
    /// Begins reports to the pod's node, with the pod's name; None where the pod does not know its node.
    ///
    /// # Errors
    /// Exit code 15 where the node's name is none.
    fn reporter(self, options: &Options) -> Result<Option<(Reporter, Option<String>)>, Failure> {
        let Some(node) = self.node else {
            tracing::info!("the driver is not reported to the cluster: NODE_NAME is not set");
            return Ok(None);
        };
        let pod = match (self.namespace, self.given_name) {
            (Some(namespace), Some(name)) => Some((namespace, name)),
            _ => None,
        };
        let options =
            Options { pod: pod.as_ref().map(|(_, name)| name.clone()), ..options.clone() };
        let begun = Reporter::begin(self.cluster, node, options).map_err(|e| super::failed(&e))?;
        Ok(Some((begun, pod.map(|(namespace, name)| format!("{namespace}/{name}")))))
    }
}

#[cfg(test)]
mod tests;
