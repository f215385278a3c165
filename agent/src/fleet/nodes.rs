//! Nodes of a cluster, as `kubectl get nodes --output=json` lists them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{NAME, NodeStatus, SENTENCE, Unreadable, bounded};
use longshore_cluster::names;

/// Labels of nodes with a GPU: of longshore, the GPU operator, and Node Feature Discovery with the
/// operator's configuration and its own.
const GPU_LABELS: [&str; 5] = [
    names::DRIVER_VERSION,
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
];

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Kernel release, as its kubelet reports it.
    pub kernel: String,
    /// True if its kubelet is ready.
    pub is_ready: bool,
    /// Condition of the driver; None where the node has none.
    pub driver: Option<DriverCondition>,
    /// True if a label tells of a GPU.
    pub has_gpu: bool,
    /// Status that an agent wrote; None if there never was one.
    pub status: Option<Result<NodeStatus, Unreadable>>,
    /// True if an agent runs on it; None where that is not known.
    pub has_agent: Option<bool>,
}

/// Condition of a node's driver, as its agent wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverCondition {
    /// True if the driver is ready.
    pub is_ready: bool,
    /// Reason.
    pub reason: String,
    /// Sentence.
    pub message: String,
}

/// The nodes of a cluster, ordered by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes(pub Vec<Node>);

#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

/// The part of a node's object that is read.
#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
    #[serde(default)]
    status: ItemStatus,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ItemStatus {
    conditions: Option<Vec<Condition>>,
    node_info: NodeInfo,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    name: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfo {
    kernel_version: String,
}

impl Nodes {
    /// Reads a list of nodes in JSON. Without `all`, nodes that have neither an agent nor a label of a
    /// GPU are left out.
    ///
    /// # Errors
    /// The reason for which it is not such a list.
    pub fn read(json: &[u8], all: bool) -> Result<Self, serde_json::Error> {
        let items = serde_json::from_slice::<List>(json)?.items;
        let nodes = items.into_iter().map(Node::from_item);
        let mut nodes: Vec<Node> =
            nodes.filter(|node| all || node.status.is_some() || node.has_gpu).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self(nodes))
    }
}

impl Node {
    /// Reads one node in JSON.
    ///
    /// # Errors
    /// The reason for which it is none.
    pub(super) fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json).map(Self::from_item)
    }

    fn from_item(item: Item) -> Self {
        let labels = item.metadata.labels.unwrap_or_default();
        let annotation = item.metadata.annotations.unwrap_or_default().remove(names::STATUS);
        let tells = |name: &&str| labels.get(*name).is_some_and(|value| value != "false");
        let is_ready =
            |condition: &Condition| condition.name == "Ready" && condition.status == "True";
        let of_driver = |condition: &Condition| condition.name == names::CONDITION;
        let driver = item.status.conditions.iter().flatten().find(|found| of_driver(found));
        let driver = driver.map(|condition| DriverCondition {
            is_ready: condition.status == "True",
            reason: bounded(&condition.reason, NAME),
            message: bounded(&condition.message, SENTENCE),
        });
        Self {
            driver,
            name: bounded(&item.metadata.name, NAME),
            kernel: bounded(&item.status.node_info.kernel_version, NAME),
            is_ready: item.status.conditions.iter().flatten().any(is_ready),
            has_gpu: GPU_LABELS.iter().any(tells),
            status: annotation.map(|text| NodeStatus::of_annotation(&text)),
            has_agent: None,
        }
    }

    /// Returns the place of the pod that wrote the status, `NAMESPACE/NAME`.
    pub(super) fn place(&self) -> Option<&str> {
        self.status.as_ref()?.as_ref().ok()?.pod.as_deref()
    }
}
