//! Leftovers of agents on a node, and the patches that remove them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::cordon::CordonRecord;
use crate::names;
use crate::report::{NodeStatus, Reason, is_own_taint};
use crate::safe_load::{SAFE_LOAD, is_own_request};

#[derive(Deserialize)]
struct List {
    items: Vec<Node>,
}

/// The part of a node's object that is read.
#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
    taints: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    name: String,
    #[serde(default)]
    reason: String,
}

/// A change of a node's object that an agent made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Leftover {
    /// A label.
    #[display("label {_0}")]
    Label(&'static str),
    /// An annotation.
    #[display("annotation {_0}")]
    Annotation(&'static str),
    /// The taint of a driver that is not ready.
    #[display("taint {}", names::TAINT)]
    Taint,
    /// The condition of the driver.
    #[display("condition {}", names::CONDITION)]
    Condition,
    /// The cordon, whose record is an annotation.
    #[display("cordon")]
    Cordon,
}

impl Leftover {
    /// Returns the kind, and the name without longshore's prefix; a cordon has none.
    pub fn parts(self) -> (&'static str, Option<&'static str>) {
        let (kind, name) = match self {
            Self::Label(name) => ("label", name),
            Self::Annotation(name) => ("annotation", name),
            Self::Taint => ("taint", names::TAINT),
            Self::Condition => ("condition", names::CONDITION),
            Self::Cordon => return ("cordon", None),
        };
        (kind, Some(name.strip_prefix(names::PREFIX).unwrap_or(name)))
    }
}

impl Serialize for Leftover {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A node with its leftovers.
#[derive(Debug, Clone)]
pub struct NodeLeftovers {
    /// Name, as the cluster has it.
    pub name: String,
    /// Version of the object that the leftovers were found in.
    version: String,
    /// Pod of the agent that wrote the status, `NAMESPACE/NAME`.
    pub pod: Option<String>,
    /// Pod of the agent that cordoned it, `NAMESPACE/NAME`.
    cordoned_by: Option<String>,
    /// The leftovers.
    pub found: Vec<Leftover>,
    /// It is cordoned, and the record of the cordon is none that an agent writes.
    pub has_foreign_record: bool,
    /// Taints of other programs.
    other_taints: Vec<Value>,
}

impl NodeLeftovers {
    /// Reads a list of nodes in JSON; those without leftovers are left out.
    ///
    /// # Errors
    /// The reason for which it is no such list.
    pub fn read_list(json: &[u8]) -> Result<Vec<Self>, serde_json::Error> {
        let mut nodes: Vec<Self> =
            serde_json::from_slice::<List>(json)?.items.into_iter().map(Self::from_node).collect();
        nodes.retain(|node| !node.is_clean());
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    /// Reads one node in JSON.
    ///
    /// # Errors
    /// The reason for which it is none.
    pub fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json).map(Self::from_node)
    }

    fn from_node(node: Node) -> Self {
        let (metadata, spec) = (node.metadata, node.spec);
        let labels = metadata.labels.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        let (own_taints, other_taints): (Vec<Value>, Vec<Value>) =
            spec.taints.unwrap_or_default().into_iter().partition(is_own_taint);
        let record = annotations.get(names::CORDONED);
        let read = record.and_then(|text| CordonRecord::of_annotation(text));
        let is_agents = read.is_some();
        let has_foreign_record = spec.unschedulable && record.is_some() && !is_agents;
        let conditions = node.status.conditions.unwrap_or_default();
        let has_condition = conditions.iter().any(|condition| {
            condition.name == names::CONDITION && Reason::is_of_condition(&condition.reason)
        });
        let request = annotations.get(SAFE_LOAD).is_some_and(|value| is_own_request(value));
        let annotated = [
            (names::STATUS, annotations.contains_key(names::STATUS)),
            (names::CORDONED, record.is_some() && !has_foreign_record),
            (SAFE_LOAD, request),
            (names::EVICT_REQUEST, annotations.contains_key(names::EVICT_REQUEST)),
            (names::EVICTIONS, annotations.contains_key(names::EVICTIONS)),
        ];
        let others = [
            (Leftover::Taint, !own_taints.is_empty()),
            (Leftover::Condition, has_condition),
            (Leftover::Cordon, spec.unschedulable && is_agents),
        ];
        let labelled = names::NODE_LABELS.into_iter().filter(|name| labels.contains_key(*name));
        let annotated = annotated.into_iter().filter(|(_, is_there)| *is_there);
        let others = others.into_iter().filter(|(_, is_there)| *is_there);
        let found = labelled.map(Leftover::Label);
        let found = found.chain(annotated.map(|(name, _)| Leftover::Annotation(name)));
        let found = found.chain(others.map(|(leftover, _)| leftover)).collect();
        let status = annotations.get(names::STATUS).map(|text| NodeStatus::of_annotation(text));
        Self {
            name: metadata.name,
            version: metadata.resource_version,
            pod: status.and_then(|status| status.ok()?.pod),
            cordoned_by: read.map(|record| record.pod),
            found,
            has_foreign_record,
            other_taints,
        }
    }

    /// Returns the pod of the agent that was on the node last, by its status, or else by the record of its cordon.
    pub fn agent(&self) -> Option<&str> {
        self.pod.as_deref().or(self.cordoned_by.as_deref())
    }

    /// True where nothing of an agent's is on the node.
    pub fn is_clean(&self) -> bool {
        self.found.is_empty() && !self.has_foreign_record
    }

    /// Returns the merge patch that removes all leftovers but the condition. It holds for the version that
    /// they were found in: after any other change of the node the server answers 409.
    pub fn patch(&self) -> Option<Value> {
        let (mut labels, mut annotations, mut spec) = (Map::new(), Map::new(), Map::new());
        for leftover in &self.found {
            match leftover {
                Leftover::Label(name) => drop(labels.insert((*name).to_owned(), Value::Null)),
                Leftover::Annotation(name) => {
                    drop(annotations.insert((*name).to_owned(), Value::Null));
                }
                Leftover::Taint => drop(spec.insert("taints".into(), json!(self.other_taints))),
                Leftover::Cordon => drop(spec.insert("unschedulable".into(), Value::Null)),
                Leftover::Condition => {}
            }
        }
        let is_empty = labels.is_empty() && annotations.is_empty() && spec.is_empty();
        let metadata = json!({
            "resourceVersion": self.version, "labels": labels, "annotations": annotations,
        });
        (!is_empty).then(|| json!({ "metadata": metadata, "spec": spec }))
    }

    /// Returns the strategic patch of the status that removes the condition alone, for a node of this
    /// version.
    pub fn status_patch(&self, version: &str) -> Option<Value> {
        let condition = json!({ "$patch": "delete", "type": names::CONDITION });
        self.found.contains(&Leftover::Condition).then(|| {
            json!({ "metadata": { "resourceVersion": version },
                    "status": { "conditions": [condition] } })
        })
    }

    /// Returns the version of the object; None where the cluster gave none.
    pub fn version(&self) -> Option<&str> {
        Some(self.version.as_str()).filter(|version| !version.is_empty())
    }
}
