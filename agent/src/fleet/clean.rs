//! `longshore fleet clean`: removes from nodes without an agent what agents left on them, as they do where an
//! uninstalled chart takes their rights before their last report.

use futures_util::{StreamExt, stream};
use serde::Serialize;

use super::backend::Backend;
use super::daemon_set::DaemonSetRef;
use super::pods::Pod;
use super::table::columns;
use super::{AT_ONCE, NAME, bounded};
use longshore_cluster::{Leftover, NodeLeftovers, NodePatch, PodsOf, is_name, names};
use longshore_core::failure::Failure;

/// Number of tries for one node, which another program may change meanwhile.
const MOST_TRIES: u32 = 5;

/// Conduct of a clean.
#[derive(Debug, Clone, Default)]
pub struct Cleaning {
    /// Change nothing.
    pub dry_run: bool,
    /// Container of the agents' pods; None for longshore's by its name.
    pub container: Option<String>,
    /// Clean only nodes whose last agent was of one of these DaemonSets; all nodes where there are none.
    pub only: Vec<DaemonSetRef>,
}

/// Outcome on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleanOutcome {
    /// Nothing of an agent's is on it any more.
    #[display("cleaned")]
    Cleaned,
    /// It would be cleaned.
    #[display("to clean")]
    ToClean,
    /// An agent runs on it, or it has something that is not for this clean to remove.
    #[display("kept")]
    Kept,
    /// Something stayed on it.
    #[display("failed")]
    Failed,
}

/// A node that had leftovers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeClean {
    /// The node's name.
    pub name: String,
    /// Outcome.
    pub outcome: CleanOutcome,
    /// Leftovers that were removed, or would be.
    pub removed: Vec<Leftover>,
    /// Reason, where it was kept or failed.
    pub reason: Option<String>,
}

/// All nodes that had leftovers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetClean {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Number of nodes that were cleaned, or would be.
    pub cleaned: usize,
    /// Number of nodes with an agent, or with something that is not for this clean to remove.
    pub kept: usize,
    /// Number of nodes on which something stayed.
    pub failed: usize,
    /// The nodes, ordered by name.
    pub nodes: Vec<NodeClean>,
}

/// Reason for which something stays on a node.
enum Obstacle {
    /// It is not to be removed.
    Kept(String),
    Failed(String),
}

impl FleetClean {
    fn new(dry_run: bool, mut nodes: Vec<NodeClean>) -> Self {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let count = |outcome| nodes.iter().filter(|node| node.outcome == outcome).count();
        let (kept, failed) = (count(CleanOutcome::Kept), count(CleanOutcome::Failed));
        let cleaned = nodes.len() - kept - failed;
        Self { dry_run, cleaned, kept, failed, nodes }
    }

    /// Formats a line for each node, with the reason below it, and the counts.
    pub fn render(&self) -> String {
        if self.nodes.is_empty() {
            return "no node has leftovers of an agent\n".to_owned();
        }
        let header = ["NODE", "RESULT", "REMOVED"].map(str::to_owned).to_vec();
        let mut rows = vec![(header, Vec::new())];
        rows.extend(self.nodes.iter().map(|node| {
            let cells = vec![node.name.clone(), node.outcome.to_string(), list(&node.removed)];
            (cells, node.reason.iter().cloned().collect())
        }));
        let Self { cleaned, kept, failed, nodes, .. } = self;
        let counted = if nodes.len() == 1 { "node" } else { "nodes" };
        let done = if self.dry_run { "to clean" } else { "cleaned" };
        let table = columns(&rows);
        format!(
            "{table}{} {counted}: {cleaned} {done}, {kept} kept, {failed} failed\n",
            nodes.len()
        )
    }
}

/// Formats leftovers by their kinds, with short names; `-` for none.
fn list(leftovers: &[Leftover]) -> String {
    let mut kinds: Vec<(&str, Vec<&str>)> = Vec::new();
    for (kind, name) in leftovers.iter().map(|leftover| leftover.parts()) {
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, names)) => names.extend(name),
            None => kinds.push((kind, name.into_iter().collect())),
        }
    }
    let kind = |(kind, names): &(&str, Vec<&str>)| match names.as_slice() {
        [] => (*kind).to_owned(),
        [name] => format!("{kind} {name}"),
        names => format!("{kind}s {}", names.join(", ")),
    };
    let kinds: Vec<String> = kinds.iter().map(kind).collect();
    if kinds.is_empty() { "-".to_owned() } else { kinds.join("; ") }
}

/// Cleans all nodes without an agent, 16 at a time. A node that cannot be cleaned holds up no other.
///
/// # Errors
/// Exit code 32 where the nodes cannot be listed.
pub async fn clean(cluster: &Backend, cleaning: &Cleaning) -> Result<FleetClean, Failure> {
    let nodes = cluster.listed(NodeLeftovers::read_list).await?;
    let cleaned = nodes.into_iter().map(|node| of_node(cluster, node, cleaning));
    let cleaned = stream::iter(cleaned).buffer_unordered(AT_ONCE).collect().await;
    Ok(FleetClean::new(cleaning.dry_run, cleaned))
}

async fn of_node(cluster: &Backend, node: NodeLeftovers, cleaning: &Cleaning) -> NodeClean {
    let (name, mut removed) = (bounded(&node.name, NAME), Vec::new());
    let ended = remove(cluster, node, cleaning, &mut removed).await;
    let (outcome, reason) = match ended {
        Ok(()) if cleaning.dry_run => (CleanOutcome::ToClean, None),
        Ok(()) => (CleanOutcome::Cleaned, None),
        Err(Obstacle::Kept(why)) => (CleanOutcome::Kept, Some(why)),
        Err(Obstacle::Failed(why)) => (CleanOutcome::Failed, Some(why)),
    };
    NodeClean { name, outcome, removed, reason }
}

/// Removes the leftovers of one node. The node was read before its pods are: an agent that began since is
/// found, or has changed the node, which is read again then.
async fn remove(
    cluster: &Backend,
    mut node: NodeLeftovers,
    cleaning: &Cleaning,
    removed: &mut Vec<Leftover>,
) -> Result<(), Obstacle> {
    if !is_name(&node.name) {
        return Err(Obstacle::Failed("its name is not a valid node name".to_owned()));
    }
    // The first of a node's two patches removes its pod's name, and the second may be refused for another's change.
    let mut last_agent = None;
    for _ in 0..MOST_TRIES {
        last_agent = node.agent().map(str::to_owned).or(last_agent);
        if let Some(why) = not_of(last_agent.as_deref(), &cleaning.only) {
            return Err(Obstacle::Kept(why));
        }
        if let Some(pod) = agent(cluster, &node, cleaning.container.as_deref()).await? {
            return Err(Obstacle::Kept(format!("pod {pod} runs there")));
        }
        if cleaning.dry_run {
            removed.extend(&node.found);
            return judged(&node, cleaning);
        }
        if patch(cluster, &node, removed).await? {
            return judged(&node, cleaning);
        }
        node = cluster.node(&node.name).await?;
        if node.is_clean() {
            return Ok(());
        }
    }
    Err(Obstacle::Failed(format!("other programs changed it during each of {MOST_TRIES} tries")))
}

/// Returns the reason for which the pod of a node's last agent is not known to be of one of these DaemonSets: what is on
/// the node may be another release's, whose pod is just being replaced.
fn not_of(agent: Option<&str>, sets: &[DaemonSetRef]) -> Option<String> {
    match agent {
        _ if sets.is_empty() => None,
        Some(pod) if sets.iter().any(|set| set.makes(pod)) => None,
        Some(pod) => {
            Some(format!("its last agent, pod {}, is of no ended DaemonSet", bounded(pod, NAME)))
        }
        None => Some(
            "nothing on it names the pod of its last agent: `longshore fleet clean` without \
             --end-daemonsets cleans it"
                .to_owned(),
        ),
    }
}

/// Refuses a node with a cordon that is nobody's for sure.
fn judged(node: &NodeLeftovers, cleaning: &Cleaning) -> Result<(), Obstacle> {
    if !node.has_foreign_record {
        return Ok(());
    }
    let why = format!(
        "it is cordoned, and its annotation {} is none that an agent writes: both stay; if the cordon is \
         not wanted, run `kubectl uncordon` and remove the annotation",
        names::CORDONED
    );
    // It stays after each further try, and would hold up an uninstall for ever.
    Err(if cleaning.only.is_empty() { Obstacle::Failed(why) } else { Obstacle::Kept(why) })
}

/// Removes the leftovers of a node of this version; false after another program's change of it.
async fn patch(
    cluster: &Backend,
    node: &NodeLeftovers,
    removed: &mut Vec<Leftover>,
) -> Result<bool, Obstacle> {
    let Some(mut version) = node.version().map(str::to_owned) else {
        return Err(Obstacle::Failed("its object has no version".to_owned()));
    };
    if let Some(patch) = node.patch() {
        let Some(now) = cluster.patch(&node.name, NodePatch::Merge(&patch)).await? else {
            return Ok(false);
        };
        removed.extend(node.found.iter().filter(|left| **left != Leftover::Condition));
        version = now.version().unwrap_or_default().to_owned();
    }
    if let Some(patch) = node.status_patch(&version) {
        if cluster.patch(&node.name, NodePatch::Status(&patch)).await?.is_none() {
            return Ok(false);
        }
        removed.push(Leftover::Condition);
    }
    Ok(true)
}

impl From<Failure> for Obstacle {
    fn from(failure: Failure) -> Self {
        Self::Failed(bounded(&failure.one_line(), NAME))
    }
}

/// Returns the place of an agent's pod on a node: one with such a container, or that the status names.
async fn agent(
    cluster: &Backend,
    node: &NodeLeftovers,
    container: Option<&str>,
) -> Result<Option<String>, Obstacle> {
    let pods = cluster.pods(PodsOf::Node(&node.name)).await?;
    let is_agent = |pod: &&Pod| pod.is_agent_on(&node.name, node.pod.as_deref(), container);
    Ok(pods.iter().find(is_agent).map(|pod| bounded(&pod.place(), NAME)))
}
