//! DaemonSets of agents: their rollout, and their end before a clean.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::backend::Backend;
use super::daemon_set::{DaemonSetRef, DaemonSetState};
use super::table::columns;
use super::{NAME, bounded};
use longshore_cluster::PodsOf;
use longshore_core::failure::{Failure, FailureKind};

/// Pause between two looks at DaemonSets.
const PAUSE: Duration = Duration::from_secs(1);

/// Rollouts of DaemonSets.
#[derive(Debug, Clone)]
pub struct Rollouts(Vec<(DaemonSetRef, DaemonSetState)>);

impl Rollouts {
    /// True where each rollout is complete, with a Ready pod on each node.
    pub fn are_ready(&self) -> bool {
        self.0.iter().all(|(_, state)| state.not_ready().is_none())
    }

    /// Formats a line for each DaemonSet, with the reason below one that is not ready, and the counts.
    pub fn render(&self) -> String {
        let header = ["DAEMONSET", "DESIRED", "UPDATED", "READY", "AVAILABLE"];
        let mut rows = vec![(header.map(str::to_owned).to_vec(), Vec::new())];
        rows.extend(self.0.iter().map(|(set, state)| {
            let counts = state.counts();
            let mut cells = vec![set.to_string()];
            cells.extend(counts.map(|count| count.to_string()));
            let reason = state.not_ready();
            let idle =
                (reason.is_none() && counts[0] == 0).then(|| "it selects no node".to_owned());
            (cells, reason.or(idle).into_iter().collect())
        }));
        let count = self.0.len();
        let not_ready = self.0.iter().filter(|(_, state)| state.not_ready().is_some()).count();
        let sets = if count == 1 { "DaemonSet" } else { "DaemonSets" };
        let ready = count - not_ready;
        format!("{}{count} {sets}: {ready} ready, {not_ready} not ready\n", columns(&rows))
    }
}

/// Reads the rollouts, again until all are complete or `wait` is over.
///
/// # Errors
/// Exit code 32 where the cluster cannot be asked, or has no such DaemonSet.
pub async fn rollouts(
    backend: &Backend,
    sets: &[DaemonSetRef],
    wait: Duration,
) -> Result<Rollouts, Failure> {
    let until = Instant::now() + wait;
    loop {
        let mut found = Vec::new();
        for set in sets {
            let Some(state) = backend.daemon_set(set).await? else {
                let cause = format!("there is no DaemonSet {set}");
                let remedy =
                    "check the namespace and the name: `kubectl get daemonsets --all-namespaces`";
                return Err(Failure::new(FailureKind::Kubectl, cause).remedy(remedy));
            };
            found.push((set.clone(), state));
        }
        let found = Rollouts(found);
        if found.are_ready() || Instant::now() >= until {
            return Ok(found);
        }
        sleep(PAUSE).await;
    }
}

/// Deletes DaemonSets, and waits until they and their pods are gone, for `wait` at most: their agents end while their
/// rights are there. One that there is not counts as gone, and so does one that is made anew meanwhile. Returns a failure
/// of exit code 31 where one is still there after that time: the nodes without such pods can be cleaned all the same.
///
/// # Errors
/// Exit code 32 where the cluster cannot be asked.
pub async fn end(
    backend: &Backend,
    sets: &[DaemonSetRef],
    wait: Duration,
) -> Result<Option<Failure>, Failure> {
    let until = Instant::now() + wait;
    let mut left = Vec::new();
    for set in sets {
        let Some(state) = backend.daemon_set(set).await? else {
            tracing::info!("there is no DaemonSet {set}");
            continue;
        };
        backend.delete_daemon_set(set, &state).await?;
        tracing::info!("DaemonSet {set} is being deleted");
        left.push((set, state));
    }
    loop {
        let mut still = Vec::new();
        for (set, state) in left {
            match backend.daemon_set(set).await? {
                Some(now) if now.uid() == state.uid() => still.push((set, state)),
                _ => tracing::info!("DaemonSet {set} and its pods are gone"),
            }
        }
        left = still;
        if left.is_empty() {
            return Ok(None);
        }
        if Instant::now() >= until {
            let sets: Vec<DaemonSetRef> = left.into_iter().map(|(set, _)| set.clone()).collect();
            return Ok(Some(not_gone(backend, &sets, wait).await));
        }
        sleep(PAUSE).await;
    }
}

/// Number of pods that a failure names.
const MOST_NAMED: usize = 5;

/// Failure of DaemonSets that are still there, with their pods.
async fn not_gone(backend: &Backend, sets: &[DaemonSetRef], wait: Duration) -> Failure {
    let mut pods = Vec::new();
    for set in sets {
        match backend.pods(PodsOf::Namespace(&set.namespace)).await {
            Ok(found) => pods.extend(
                found
                    .iter()
                    .filter(|pod| pod.daemon_set() == Some(&set.name) && !pod.has_ended())
                    .map(|pod| format!("{} on node {}", pod.place(), pod.spec.node_name)),
            ),
            Err(failure) => tracing::warn!("pods of {set} are not known: {}", failure.one_line()),
        }
    }
    pods.sort_unstable();
    let mut named: Vec<String> = pods.iter().take(MOST_NAMED).map(|p| bounded(p, NAME)).collect();
    if pods.len() > MOST_NAMED {
        named.push(format!("{} more", pods.len() - MOST_NAMED));
    }
    let names: Vec<String> = sets.iter().map(DaemonSetRef::to_string).collect();
    let names = names.join(", ");
    let cause = match named.is_empty() {
        true => format!("{names}: still there {wait:?} after the deletion"),
        false => format!(
            "{names}: still there {wait:?} after the deletion, with pods whose nodes were not cleaned: {}",
            named.join(", ")
        ),
    };
    let remedy = "see those pods (`kubectl describe pods`): an agent ends once the driver is uninstalled, and a pod of \
                  a node that is gone for good once its Node object is deleted; then run it again, or raise --wait";
    Failure::new(FailureKind::NodesNotReady, cause).remedy(remedy)
}
