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
use super::pod_names::pods_by_uid;
use crate::config::Config;
use crate::telemetry::{Live, Telemetry};
use described::Described;
use longshore_cluster::{Options, PodRef, Reason, Reporter};
use longshore_core::environment::Env;
use longshore_core::failure::Failure;
use longshore_core::paths::Paths;
use longshore_core::root::Root;
use longshore_host::facts::LiveDriver;
use longshore_host::facts::modules::loaded_driver;
use longshore_host::values::DriverUser;

/// Time limit of the last report, at the end of the agent.
const LAST: Duration = Duration::from_secs(5);
/// Duration of a state that passes, as the first look at an adopted driver, before it is reported.
const PASSING: Duration = Duration::from_secs(5);
/// Time limit for reading the version of the loaded driver, and the names of the node's pods.
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
                Some(Self::start(reporter, Source::new(telemetry, &config.paths, pod), LAST))
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
        let source = Source::new(telemetry, &Paths::below("/nowhere".as_ref()), None);
        Self::start(begun.expect("a name"), source, Duration::from_millis(50))
    }

    fn start(reporter: Reporter, source: Source, limit: Duration) -> Self {
        let reporter = Arc::new(reporter);
        let (reported, mut from) = (Arc::clone(&reporter), source.clone());
        let task = tokio::spawn(async move { from.follow(&reported).await });
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
    host_root: PathBuf,
    /// `NAMESPACE/NAME` of the agent's pod.
    pod: Option<String>,
    kernel: String,
    /// Time at which each program of a pod was found first, whichever of its processes: one that starts
    /// others would change the report with each of them. Clones share it.
    found: Arc<Mutex<BTreeMap<Program, Timestamp>>>,
    /// Pods of the driver's users, by the uids of their cgroups. Clones share it.
    pods: Arc<Mutex<BTreeMap<String, PodRef>>>,
    /// The last report was of a driver that its users hold.
    was_in_use: bool,
}

impl Source {
    fn new(telemetry: &Telemetry, paths: &Paths, pod: Option<String>) -> Self {
        let kernel = nix::sys::utsname::uname().ok();
        let kernel = kernel.map(|host| host.release().to_string_lossy().into_owned());
        Self {
            telemetry: telemetry.clone(),
            root: paths.root.clone(),
            host_root: paths.host_root.clone(),
            pod,
            kernel: kernel.unwrap_or_default(),
            found: Arc::default(),
            pods: Arc::default(),
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
        let pods = self.pods_of(&live).await;
        described::describe(self, &live, loaded, &pods)
    }

    /// Returns the pods of the driver's users, by uid. The host is read where one of them is not known yet: an uid
    /// is never that of another pod.
    async fn pods_of(&self, live: &Live) -> BTreeMap<String, PodRef> {
        let processes = live.holders.iter().flat_map(|holders| &holders.processes);
        let uids: BTreeSet<&String> = processes.filter_map(|user| user.pod.as_ref()).collect();
        let mut known = self.pods.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.retain(|uid, _| uids.contains(uid));
        if uids.len() != known.len() {
            let mut found = named(&self.host_root).await;
            let new = uids.into_iter().filter_map(|uid| Some((uid.clone(), found.remove(uid)?)));
            known.extend(new);
        }
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&known);
        known
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

/// Reads the names of the node's pods, on a thread that may block; none where they cannot be read.
async fn named(host_root: &Path) -> BTreeMap<String, PodRef> {
    let host_root = host_root.to_path_buf();
    let read = tokio::task::spawn_blocking(move || pods_by_uid(&host_root));
    match timeout(READ, read).await {
        Ok(Ok(Ok(pods))) => pods,
        Ok(Ok(Err(error))) => {
            tracing::debug!("pods that use the driver are reported without names: {error}");
            BTreeMap::new()
        }
        Ok(Err(_)) | Err(_) => BTreeMap::new(),
    }
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
            (Some(namespace), Some(name)) => Some(format!("{namespace}/{name}")),
            _ => None,
        };
        let options = Options { pod: self.name, ..options.clone() };
        let begun = Reporter::begin(self.cluster, node, options).map_err(|e| super::failed(&e))?;
        Ok(Some((begun, pod)))
    }
}

#[cfg(test)]
mod tests;
