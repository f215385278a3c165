//! The driver on all nodes of a cluster, as an administrator's machine sees it: `longshore fleet`.
//!
//! Everything goes through the user's kubectl, which has the credentials (docs/internals/decisions/
//! fleet-through-kubectl.md); `clean` and `status` also run in a pod, with its service account. Only `clean` changes nodes, and only `doctor` makes a pod. Text from nodes and pods is bounded and escaped:
//! whoever may write to a node's annotations, or runs in a pod, wrote it.

mod agent_pod;
mod agents;
mod backend;
mod clean;
mod daemon_set;
mod daemon_sets;
mod debug_pod;
mod doctor;
mod in_cluster;
pub mod kubectl;
mod logs;
mod node_plan;
mod nodes;
mod plan;
mod pods;
mod status;
mod table;

pub use agent_pod::AgentOf;
pub use backend::Backend;
pub use clean::{CleanOutcome, Cleaning, FleetClean, NodeClean, clean};
pub use daemon_set::DaemonSetRef;
pub use daemon_sets::{Rollouts, end, rollouts};
pub use debug_pod::DebugPods;
pub use doctor::{Diagnosis, doctor};
pub use in_cluster::InCluster;
pub use logs::logs;
pub use node_plan::{Action, NodePlan, Refusal};
pub use nodes::{DriverCondition, Node, Nodes};
pub use plan::{FleetPlan, Question, plan};
pub use status::{FleetStatus, NodeReport, Readiness};

use longshore_cluster::{NodeStatus, Unreadable};

/// Number of nodes that are asked or cleaned at the same time.
const AT_ONCE: usize = 16;

/// Characters that are kept of a name, version or phase.
const NAME: usize = 253;
/// Characters that are kept of a sentence.
const SENTENCE: usize = 1000;

/// Escapes control characters, and cuts the text after `most` characters.
fn bounded(text: &str, most: usize) -> String {
    let cut: String = text.chars().take(most).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("{}{more}", longshore_core::sanitize::in_line(&cut))
}

#[cfg(test)]
mod tests;
