//! The two ways to ask a cluster: the user's kubectl, or in a pod its own service account. What both answer is the same.

use serde_json::Value;

use super::daemon_set::{DaemonSetRef, DaemonSetState};
use super::in_cluster::{InCluster, failed};
use super::kubectl::{Kubectl, LARGEST_ANSWER, object};
use super::pods::{Pod, PodList};
use super::{NAME, Nodes, bounded};
use longshore_cluster::{NodeLeftovers, NodePatch, PodsOf};
use longshore_core::failure::{Failure, FailureKind};

/// Size limit of a list of pods that kubectl prints, in bytes.
const LARGEST_PODS: u64 = 512 << 20;
/// Size limit of a node that kubectl prints, in bytes.
const LARGEST_NODE: u64 = 64 << 20;

/// A cluster, and the way to ask it.
#[derive(Debug)]
pub enum Backend {
    /// By kubectl, which has the credentials.
    Kubectl(Kubectl),
    /// By the service account of the pod that this process runs in.
    InCluster(InCluster),
}

impl Backend {
    /// Lists the nodes; without `all`, those that have an agent or a label of a GPU.
    ///
    /// # Errors
    /// Exit code 32 where the cluster cannot be asked, or does not answer with a list of nodes.
    pub async fn nodes(&self, all: bool) -> Result<Nodes, Failure> {
        let mut nodes = self.listed(|json| Nodes::read(json, all).map(|nodes| nodes.0)).await?;
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Nodes(nodes))
    }

    /// Lists the nodes; `read` takes those of a list, which may be a part of all.
    ///
    /// # Errors
    /// As [`Backend::nodes`].
    pub(super) async fn listed<T>(
        &self,
        read: impl Fn(&[u8]) -> Result<Vec<T>, serde_json::Error>,
    ) -> Result<Vec<T>, Failure> {
        match self {
            Self::Kubectl(kubectl) => kubectl.listed(read).await,
            Self::InCluster(InCluster(fleet)) => fleet.nodes(read).await.map_err(|e| failed(&e)),
        }
    }

    /// Reads a node.
    ///
    /// # Errors
    /// As [`Backend::nodes`].
    pub(super) async fn node(&self, name: &str) -> Result<NodeLeftovers, Failure> {
        match self {
            Self::Kubectl(kubectl) => {
                let words = ["get", "node", name, "--output=json"];
                kubectl.read_with(&words, LARGEST_NODE, "a node", NodeLeftovers::read).await
            }
            Self::InCluster(InCluster(fleet)) => {
                let text = fleet.node(name).await.map_err(|e| failed(&e))?;
                read("a node", &text, NodeLeftovers::read)
            }
        }
    }

    /// Lists pods.
    ///
    /// # Errors
    /// As [`Backend::nodes`].
    pub(super) async fn pods(&self, of: PodsOf<'_>) -> Result<Vec<Pod>, Failure> {
        let items = |json: &[u8]| serde_json::from_slice(json).map(|list: PodList| list.items);
        let kubectl = match self {
            Self::Kubectl(kubectl) => kubectl,
            Self::InCluster(InCluster(fleet)) => {
                return fleet.pods(of, items).await.map_err(|e| failed(&e));
            }
        };
        let (scope, only) = match of {
            PodsOf::Node(node) => (
                "--all-namespaces".to_owned(),
                Some(format!("--field-selector=spec.nodeName={node}")),
            ),
            PodsOf::Namespace(namespace) => (format!("--namespace={namespace}"), None),
        };
        let mut words = vec!["get", "pods", scope.as_str()];
        words.extend(only.as_deref());
        words.push("--output=json");
        kubectl.read_with(&words, LARGEST_PODS, "a list of pods", items).await
    }

    /// Sends a patch of a node, and returns the node that it made; None after another program's change of the node.
    ///
    /// # Errors
    /// As [`Backend::nodes`].
    pub(super) async fn patch(
        &self,
        name: &str,
        patch: NodePatch<'_>,
    ) -> Result<Option<NodeLeftovers>, Failure> {
        match self {
            Self::Kubectl(kubectl) => by_kubectl(kubectl, name, patch).await,
            Self::InCluster(InCluster(fleet)) => {
                let text = fleet.patch_node(name, patch).await.map_err(|e| failed(&e))?;
                text.map(|text| read("a node", &text, NodeLeftovers::read)).transpose()
            }
        }
    }

    /// Reads a DaemonSet; None where there is none of that name.
    ///
    /// # Errors
    /// As [`Backend::nodes`].
    pub(super) async fn daemon_set(
        &self,
        set: &DaemonSetRef,
    ) -> Result<Option<DaemonSetState>, Failure> {
        let DaemonSetRef { namespace, name } = set;
        match self {
            Self::Kubectl(kubectl) => {
                let scope = format!("--namespace={namespace}");
                let words = ["get", "daemonset", name, &scope, "--output=json"];
                let answer = kubectl.call(&words, LARGEST_ANSWER).await?;
                // kubectl prints the reason of the server's status in brackets.
                if !answer.status.success() && answer.message.contains("(NotFound)") {
                    return Ok(None);
                }
                object(&words, &answer, "a DaemonSet", DaemonSetState::read).map(Some)
            }
            Self::InCluster(InCluster(fleet)) => {
                let text = fleet.daemon_set(namespace, name).await.map_err(|e| failed(&e))?;
                text.map(|text| read("a DaemonSet", &text, DaemonSetState::read)).transpose()
            }
        }
    }

    /// Deletes a DaemonSet, which stays until its pods are gone.
    ///
    /// # Errors
    /// As [`Backend::nodes`].
    pub(super) async fn delete_daemon_set(
        &self,
        set: &DaemonSetRef,
        state: &DaemonSetState,
    ) -> Result<(), Failure> {
        let DaemonSetRef { namespace, name } = set;
        match self {
            Self::Kubectl(kubectl) => {
                let scope = format!("--namespace={namespace}");
                let how = ["--cascade=foreground", "--wait=false", "--ignore-not-found"];
                let words = [&["delete", "daemonset", name, scope.as_str()], &how[..]].concat();
                let answer = kubectl.call(&words, LARGEST_ANSWER).await?;
                object(&words, &answer, "", |_| Ok(()))
            }
            Self::InCluster(InCluster(fleet)) => {
                let deleted = fleet.delete_daemon_set(namespace, name, state.uid()).await;
                deleted.map_err(|e| failed(&e))
            }
        }
    }
}

async fn by_kubectl(
    kubectl: &Kubectl,
    name: &str,
    patch: NodePatch<'_>,
) -> Result<Option<NodeLeftovers>, Failure> {
    let (options, patch): (&[&str], &Value) = match patch {
        NodePatch::Merge(patch) => (&["--type=merge"], patch),
        NodePatch::Status(patch) => (&["--subresource=status", "--type=strategic"], patch),
    };
    let patch = format!("--patch={patch}");
    let words = [&["patch", "node", name], options, &[patch.as_str(), "--output=json"]].concat();
    let answer = kubectl.call(&words, LARGEST_NODE).await?;
    // kubectl prints the reason of the server's status in brackets.
    if !answer.status.success() && answer.message.contains("(Conflict)") {
        return Ok(None);
    }
    object(&words, &answer, "a node", NodeLeftovers::read).map(Some)
}

/// Reads an object of the API server's answer.
fn read<T>(
    wanted: &str,
    text: &str,
    read: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
) -> Result<T, Failure> {
    read(text.as_bytes()).map_err(|error| {
        let cause = format!("the API server's answer is not {wanted}: {error}");
        Failure::new(FailureKind::Kubectl, bounded(&cause, NAME)).remedy("see the API server's log")
    })
}
