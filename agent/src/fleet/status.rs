//! `longshore fleet status`: the driver on each node, as its agent reported it.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::table::columns;
use super::{DriverCondition, Node, NodeStatus, Nodes};
use crate::telemetry::DEGRADED;

/// Readiness of a node's driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Readiness {
    /// The driver is ready, and the node is.
    Ready,
    /// The driver or the node is not ready.
    NotReady,
    /// No agent runs on the node, or none ever wrote a status.
    NoAgent,
    /// The node has a status that cannot be read.
    Unreadable,
}

/// A node with its driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// Kernel release, as its kubelet reports it.
    pub kernel: String,
    /// Readiness.
    pub readiness: Readiness,
    /// Reason, where the node is not ready.
    pub reason: Option<String>,
    /// The agent's status.
    pub status: Option<NodeStatus>,
}

/// The driver on all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetStatus {
    /// Number of nodes that are ready.
    pub ready: usize,
    /// Number of the others.
    pub not_ready: usize,
    /// The nodes, ordered by name.
    pub nodes: Vec<NodeReport>,
}

impl FleetStatus {
    /// Judges each node.
    pub fn from_nodes(nodes: Nodes) -> Self {
        let nodes: Vec<NodeReport> = nodes.0.into_iter().map(NodeReport::from_node).collect();
        let ready = nodes.iter().filter(|node| node.readiness == Readiness::Ready).count();
        Self { ready, not_ready: nodes.len() - ready, nodes }
    }

    /// Formats a line for each node, with its last failure below it, and the counts. `now` is the time
    /// that ages are computed from.
    pub fn render(&self, now: Timestamp) -> String {
        if self.nodes.is_empty() {
            return "no node has an agent or a label of a GPU; --all lists every node\n".to_owned();
        }
        let mut rows = vec![(HEADER.map(str::to_owned).to_vec(), Vec::new())];
        rows.extend(self.nodes.iter().map(|node| (node.cells(now), node.below())));
        let count = self.nodes.len();
        let nodes = if count == 1 { "node" } else { "nodes" };
        let Self { ready, not_ready, .. } = self;
        format!("{}{count} {nodes}: {ready} ready, {not_ready} not ready\n", columns(&rows))
    }
}

const HEADER: [&str; 9] =
    ["NODE", "KERNEL", "WANTED", "LIVE", "PHASE", "AGE", "PREBUILT", "NEXT KERNEL", "USED BY"];

/// Reason of a node without a status.
const NO_AGENT: &str = "no agent";
/// Reason of a node whose agent has gone.
const ENDED: &str = "no agent runs there any more, and this is the last one's status; \
                     `longshore fleet clean` removes it";

impl NodeReport {
    fn from_node(node: Node) -> Self {
        let (readiness, reason, status) = match node.status {
            None => (Readiness::NoAgent, Some(NO_AGENT.to_owned()), None),
            Some(Err(why)) => (Readiness::Unreadable, Some(why.to_string()), None),
            Some(Ok(status)) if node.has_agent == Some(false) => {
                (Readiness::NoAgent, Some(ENDED.to_owned()), Some(status))
            }
            Some(Ok(status)) => {
                let reason = not_ready(&status, node.is_ready, node.driver.as_ref());
                let readiness =
                    if reason.is_none() { Readiness::Ready } else { Readiness::NotReady };
                (readiness, reason, Some(status))
            }
        };
        Self { name: node.name, kernel: node.kernel, readiness, reason, status }
    }

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let Some(status) = &self.status else {
            let mut cells = vec![self.name.clone(), self.kernel.clone()];
            cells.extend(["-", "-"].map(str::to_owned));
            cells
                .push(if self.readiness == Readiness::NoAgent { NO_AGENT } else { "?" }.to_owned());
            return cells;
        };
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let phase = match status.cordoned {
            _ if self.readiness == Readiness::NoAgent => NO_AGENT.to_owned(),
            true => format!("{}, cordoned", status.phase),
            false => status.phase.clone(),
        };
        let prebuilt = match status.prebuilt {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let next = match &status.next_kernel {
            Some(next) if next.ready => "ready",
            Some(_) => "missing",
            None => "-",
        };
        vec![
            self.name.clone(),
            self.kernel.clone(),
            or_none(&status.wanted),
            or_none(&status.live),
            phase,
            age(status.since, now),
            prebuilt.to_owned(),
            next.to_owned(),
            used_by(status),
        ]
    }

    /// Lines below the node's own.
    fn below(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let says_phase = |reason: &String| reason.starts_with("phase ") || reason == NO_AGENT;
        lines.extend(self.reason.iter().filter(|reason| !says_phase(reason)).cloned());
        lines.extend(self.status.as_ref().and_then(users));
        if let Some(failure) = self.status.as_ref().and_then(|status| status.last_failure.as_ref())
        {
            lines.push(format!("{}: {}", failure.code, failure.cause));
            lines.push(format!("remedy: {}", failure.remedy));
        }
        if let Some(next) = self.status.as_ref().and_then(|status| status.next_kernel.as_ref())
            && !next.ready
        {
            lines.push(format!("no modules yet for the next kernel {}", next.release));
        }
        lines
    }
}

/// Reason for which a driver is not ready; None where it is. The condition is asked too: the annotation is a report
/// of its own, which an earlier agent leaves at phase `ready` while its driver is not whole, and which may be refused
/// where the condition is taken.
fn not_ready(
    status: &NodeStatus,
    is_node_ready: bool,
    driver: Option<&DriverCondition>,
) -> Option<String> {
    if !is_node_ready {
        return Some("the node is not ready".to_owned());
    }
    // An agent that waits for a GPU has nothing to install.
    let is_idle = status.phase == "idle";
    let is_whole = status.phase == "ready" || is_idle;
    match driver {
        // Of other phases, the last failure and the users have the cause.
        Some(driver) if !driver.is_ready && (is_whole || status.phase == DEGRADED) => {
            Some(format!("{}: {}", driver.reason, driver.message))
        }
        _ if !is_whole => Some(format!("phase {}", status.phase)),
        _ if status.live.is_none() && !is_idle => Some("no driver is loaded".to_owned()),
        _ => None,
    }
}

/// Formats the number of holders, and the first of them.
pub(super) fn used_by(status: &NodeStatus) -> String {
    let count = status.holders.len().saturating_add(status.more_holders);
    let Some(first) = status.holders.first() else {
        return if count == 0 { "-".to_owned() } else { count.to_string() };
    };
    let pod = first.pod.as_ref().map_or_else(String::new, |pod| format!(" ({pod})"));
    let more = if count > 1 { ", ..." } else { "" };
    format!("{count}: {}{pod}{more}", first.program)
}

/// Users that [`users`] names, at most.
const MOST_USERS: usize = 8;

/// Names the users of a driver where there is more than the one of the node's own line: a daemon of another
/// DaemonSet (a device plugin, a metrics exporter) is seldom the first.
fn users(status: &NodeStatus) -> Option<String> {
    let count = status.holders.len().saturating_add(status.more_holders);
    if count < 2 || status.holders.is_empty() {
        return None;
    }
    let named = status.holders.iter().take(MOST_USERS).map(|holder| match &holder.pod {
        Some(pod) => format!("{} ({pod})", holder.program),
        None => holder.program.clone(),
    });
    let named: Vec<String> = named.collect();
    let more = count - named.len();
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    Some(format!("used by {}{more}", named.join(", ")))
}

/// Formats the time since `since` in its largest unit; `-` where it is not known.
fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else {
        return "-".to_owned();
    };
    // The clocks of node and reader differ.
    let seconds = now.duration_since(since).max(SignedDuration::ZERO).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}
