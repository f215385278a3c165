//! `longshore fleet plan`: the plan of each node, made by its own agent's program in its own pod.

use futures_util::{StreamExt, stream};
use serde::Serialize;

use super::kubectl::{Kubectl, LARGEST_ANSWER, why};
use super::node_plan::{Action, NodePlan};
use super::pods::{Pod, parts};
use super::table::columns;
use super::{AT_ONCE, NAME, Node, NodeStatus, Nodes, bounded};

/// A plan to ask every node for.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Driver version or branch; None for the configured one.
    pub driver: Option<String>,
    /// Flavour; None for the configured one.
    pub flavour: Option<String>,
    /// Namespace in which the agents' pods must be; None for any.
    pub namespace: Option<String>,
    /// Container of the pods; None for longshore's by its name.
    pub container: Option<String>,
}

/// The plans of all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FleetPlan {
    /// Number of nodes with a plan that can be carried out.
    pub possible: usize,
    /// Number of the others.
    pub impossible: usize,
    /// The nodes, ordered by name.
    pub nodes: Vec<NodePlan>,
}

impl FleetPlan {
    fn new(mut nodes: Vec<NodePlan>) -> Self {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let is_bad = |node: &&NodePlan| matches!(node.action, Action::Refused | Action::Unknown);
        let impossible = nodes.iter().filter(is_bad).count();
        Self { possible: nodes.len() - impossible, impossible, nodes }
    }

    /// Formats a line for each node, and the counts.
    pub fn render(&self) -> String {
        if self.nodes.is_empty() {
            return "no node has an agent or a label of a GPU\n".to_owned();
        }
        let row = |node: &NodePlan| {
            let (line, below) = node.lines();
            (vec![node.name.clone(), line], below)
        };
        let rows: Vec<_> = self.nodes.iter().map(row).collect();
        let count = |action| self.nodes.iter().filter(|node| node.action == action).count();
        let counts = [
            ("to keep", count(Action::Keeps)),
            ("to install", count(Action::Installs)),
            ("to replace", count(Action::Replaces)),
            ("refused", count(Action::Refused)),
            ("without a plan", count(Action::Unknown)),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let nodes = if self.nodes.len() == 1 { "node" } else { "nodes" };
        format!("{}{} {nodes}: {}\n", columns(&rows), self.nodes.len(), counts.join(", "))
    }
}

/// Asks the pods of all nodes, 16 at a time. A node that does not answer is one without a plan.
pub async fn plan(kubectl: &Kubectl, nodes: Nodes, question: &Question) -> FleetPlan {
    let asked = nodes.0.into_iter().map(|node| of_node(kubectl, node, question));
    FleetPlan::new(stream::iter(asked).buffer_unordered(AT_ONCE).collect().await)
}

async fn of_node(kubectl: &Kubectl, node: Node, question: &Question) -> NodePlan {
    let status = match node.status {
        None => return NodePlan::unknown(&node.name, None, "no agent".to_owned()),
        Some(Err(why)) => return NodePlan::unknown(&node.name, None, why.to_string()),
        Some(Ok(status)) => status,
    };
    match ask(kubectl, &node.name, &status, question).await {
        Ok(plan) => plan,
        Err(why) => NodePlan::unknown(&node.name, Some(status), why),
    }
}

/// Asks the agent's pod on a node. The node's annotation names the pod: it is asked only if it runs
/// on that node, so that whoever may write to one node's annotations cannot point at other pods.
async fn ask(
    kubectl: &Kubectl,
    node: &str,
    status: &NodeStatus,
    question: &Question,
) -> Result<NodePlan, String> {
    let Some(place) = status.pod.as_deref() else {
        return Err("the status names no pod".to_owned());
    };
    let (namespace, pod) = parts(place, question.namespace.as_deref())?;
    let in_namespace = format!("--namespace={namespace}");
    let get = ["get", "pod", pod, &in_namespace, "--output=json"];
    let answer = kubectl.call(&get, LARGEST_ANSWER).await.map_err(|e| e.one_line())?;
    if !answer.status.success() {
        return Err(format!("pod {place}: {}", why(&answer)));
    }
    let wrong =
        |error: serde_json::Error| bounded(&format!("pod {place}: not a pod: {error}"), NAME);
    let found: Pod = serde_json::from_slice(&answer.output).map_err(wrong)?;
    if found.spec.node_name != node {
        let other = bounded(&found.spec.node_name, NAME);
        return Err(format!("pod {place} runs on node {other:?}, not on this one"));
    }
    let container = found.spec.agents_container(question.container.as_deref())?;
    let container = format!("--container={container}");
    let driver = question.driver.as_ref().map(|driver| format!("--driver={driver}"));
    let flavour = question.flavour.as_ref().map(|flavour| format!("--flavour={flavour}"));
    let mut exec = vec!["exec", pod, &in_namespace, &container, "--"];
    exec.extend(["longshore", "plan", "--json"]);
    exec.extend(driver.as_deref());
    exec.extend(flavour.as_deref());
    let answer = kubectl.call(&exec, LARGEST_ANSWER).await.map_err(|e| e.one_line())?;
    // A refused plan is printed too, and ends with its exit code.
    NodePlan::read(node, status, &answer.output).map_err(|error| {
        if answer.output.is_empty() || !answer.status.success() {
            return why(&answer);
        }
        bounded(&format!("`longshore plan --json` printed no plan: {error}"), NAME)
    })
}
