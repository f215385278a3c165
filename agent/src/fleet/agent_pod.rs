//! Search for the agent's pod of one node.

use std::collections::BTreeSet;

use super::kubectl::{Kubectl, LARGEST_ANSWER};
use super::pods::{Pod, PodList};
use super::{NAME, Node, bounded};
use longshore_cluster::is_name;
use longshore_core::failure::{Failure, FailureKind};

/// Size limit of the list of a node's pods, in bytes.
const LARGEST: u64 = 64 << 20;

/// Number of namespaces that a message names.
const SHOWN: usize = 8;

/// A node, and the search for its agent.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct AgentOf {
    /// Name of the node
    pub node: String,
    /// Namespace of the agents' pods; by default that of the pod that reported on the node last
    #[arg(long, short = 'n', value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Container of the agents' pods; by default nvidia-driver-ctr, longshore, or the only one
    #[arg(long, short = 'c', value_name = "NAME")]
    pub container: Option<String>,
}

/// The agent's pod of a node, as far as there is one.
pub(super) struct AgentLocation {
    /// Namespace of the agents.
    pub(super) namespace: String,
    /// The pod, and the name of the agent's container in it.
    pub(super) pod: Option<(Pod, String)>,
}

impl AgentLocation {
    /// Option that names the namespace.
    pub(super) fn in_namespace(&self) -> String {
        format!("--namespace={}", self.namespace)
    }
}

impl AgentOf {
    /// Finds the agent's pod on the node. Pods of other namespaces than the agents' are not looked at: whoever may
    /// make pods in one could offer a pod of his own.
    ///
    /// # Errors
    /// Exit code 2 where the namespace is not known, or a name is none; 32 where kubectl fails, or there is no such
    /// node.
    pub(super) async fn find(&self, kubectl: &Kubectl) -> Result<AgentLocation, Failure> {
        let node = self.read_node(kubectl).await?;
        let place = node.place().map(str::to_owned);
        let of_status =
            place.as_deref().and_then(|place| Some(place.split_once('/')?.0.to_owned()));
        let Some(namespace) = self.namespace.clone().or(of_status) else {
            return Err(self.not_reported(kubectl).await);
        };
        if !is_name(&namespace) {
            return Err(not_a_name("namespace", &namespace));
        }
        let only = format!("--field-selector=spec.nodeName={}", self.node);
        let in_namespace = format!("--namespace={namespace}");
        let words = ["get", "pods", &in_namespace, &only, "--output=json"];
        let list: PodList = kubectl.read(&words, LARGEST, "a list of pods").await?;
        let container = self.container.as_deref();
        let is_agent = |pod: &Pod| pod.is_on(&self.node) && pod.is_of(place.as_deref(), container);
        let mut pods: Vec<(Pod, String)> = Vec::new();
        let mut unnamed = None;
        for pod in list.items.into_iter().filter(|pod| is_name(pod.name()) && is_agent(pod)) {
            match pod.spec.agents_container(container) {
                Ok(name) => pods.push((pod, name)),
                Err(why) => unnamed = Some(format!("pod {}: {why}", bounded(pod.name(), NAME))),
            }
        }
        if let (true, Some(cause)) = (pods.is_empty(), unnamed) {
            return Err(Failure::new(FailureKind::Usage, cause)
                .remedy("name the agent's container with --container"));
        }
        // Of several, as while one is replaced, one that runs.
        pods.sort_by_key(|(pod, name)| (!pod.runs(name), pod.is_deleted(), pod.has_ended()));
        Ok(AgentLocation { namespace, pod: pods.into_iter().next() })
    }

    /// Failure of a node on which no agent reported: one whose agents failed before they could, or may not. Names the
    /// namespaces of the node's pods with an agent's container, for a person to choose.
    async fn not_reported(&self, kubectl: &Kubectl) -> Failure {
        let cause =
            format!("no agent reported on node {}, so that its namespace is not known", self.node);
        let only = format!("--field-selector=spec.nodeName={}", self.node);
        let words = ["get", "pods", "--all-namespaces", &only, "--output=json"];
        let listed: Result<PodList, Failure> =
            kubectl.read(&words, LARGEST, "a list of pods").await;
        let is_agent =
            |pod: &Pod| pod.is_on(&self.node) && pod.is_of(None, self.container.as_deref());
        let (seen, remedy) = match listed {
            Ok(list) => {
                let pods =
                    list.items.iter().filter(|pod| is_agent(pod) && is_name(pod.namespace()));
                let seen: BTreeSet<&str> = pods.map(Pod::namespace).collect();
                let seen = seen.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ");
                (
                    seen,
                    "no pod on it has an agent's container: see that the DaemonSet selects it, and name its namespace",
                )
            }
            Err(failure) => {
                tracing::warn!("the pods of node {} are not listed: {failure}", self.node);
                (String::new(), "name the namespace of the agents' pods")
            }
        };
        let failure = Failure::new(FailureKind::Usage, cause);
        match seen.as_str() {
            "" => failure.remedy(format!("{remedy} with --namespace")),
            seen => failure.remedy(format!(
                "give the one that is your agents' with --namespace; pods with an agent's container are in {seen}"
            )),
        }
    }

    async fn read_node(&self, kubectl: &Kubectl) -> Result<Node, Failure> {
        if !is_name(&self.node) {
            return Err(not_a_name("node", &self.node));
        }
        let words = ["get", "node", &self.node, "--output=json"];
        kubectl.read_with(&words, LARGEST_ANSWER, "a node", Node::read).await
    }
}

fn not_a_name(kind: &str, name: &str) -> Failure {
    Failure::new(FailureKind::Usage, format!("{:?} is no name of a {kind}", bounded(name, NAME)))
        .remedy("take the name that kubectl shows")
}
