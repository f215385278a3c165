//! The own node: its labels, annotation, condition and taint, read and written.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, Patch, PatchParams};
use kube::core::Object;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Reason;
use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::names::{CONDITION, CORDONED, TAINT, TAINT_EFFECT};

const READ: &str = "reading the own node (get nodes)";
const METADATA: &str = "writing the own node's labels and annotation (patch nodes)";
const STATUS: &str = "writing the own node's condition (patch nodes/status)";
const TAINTS: &str = "writing the own node's taint (patch nodes)";

/// Number of times that taints are read again after another program's change.
const MOST_CONFLICTS: u32 = 5;

/// The part of a node that is read. Taints of others are kept as they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Option<Vec<Value>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Option<Vec<StoredCondition>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

type OwnNode = Object<Spec, Status>;

/// The own node, as far as it is about the report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeMarks {
    /// Value of the condition; None where it has none.
    pub(super) ready: Option<bool>,
    /// The taint is there.
    pub(super) tainted: bool,
    /// Longshore has it cordoned.
    pub(super) cordoned: bool,
    version: Option<String>,
    taints: Vec<Value>,
}

/// Condition to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) ready: bool,
    pub(super) reason: Reason,
    pub(super) message: String,
}

/// True for the taint of a driver that is not ready.
pub(crate) fn is_own_taint(taint: &Value) -> bool {
    taint.get("key").and_then(Value::as_str) == Some(TAINT)
}

fn is_cordoned(node: &ObjectMeta) -> bool {
    node.annotations.as_ref().is_some_and(|all| all.contains_key(CORDONED))
}

/// Checks that an answer is about this node.
fn of_node(call: &'static str, name: &str, node: &ObjectMeta) -> Result<(), Error> {
    match node.name.as_deref() == Some(name) {
        true => Ok(()),
        false => Err(Error::new(call, ApiErrorKind::Garbled, "an answer about another node")),
    }
}

impl Cluster {
    fn nodes(client: kube::Client) -> Api<OwnNode> {
        Api::all_with(client, &ApiResource::erase::<Node>(&()))
    }

    /// Reads the node.
    pub(super) async fn seen_node(&self, name: &str) -> Result<NodeMarks, Error> {
        let read = self.call(READ, |client| {
            let nodes = Self::nodes(client);
            async move { nodes.get(name).await }
        });
        let node = read.await?;
        of_node(READ, name, &node.metadata)?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let own = conditions.into_iter().find(|condition| condition.kind == CONDITION);
        let taints = node.spec.taints.unwrap_or_default();
        Ok(NodeMarks {
            ready: own.map(|condition| condition.status == "True"),
            tainted: taints.iter().any(is_own_taint),
            cordoned: is_cordoned(&node.metadata),
            version: node.metadata.resource_version,
            taints,
        })
    }

    /// Writes labels and annotations; null removes one. Returns true if longshore has the node cordoned.
    pub(super) async fn write_metadata(
        &self,
        name: &str,
        labels: &Value,
        annotations: &Value,
    ) -> Result<bool, Error> {
        let metadata = json!({ "labels": labels, "annotations": annotations });
        let patch = &Patch::Merge(json!({ "metadata": metadata }));
        let written = self.call(METADATA, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.patch_metadata(name, &PatchParams::default(), patch).await }
        });
        let node = written.await?;
        of_node(METADATA, name, &node.metadata)?;
        Ok(is_cordoned(&node.metadata))
    }

    /// Writes the condition; those of others stay, because conditions are merged by their type. The time
    /// of the transition stays where it is not `turned`.
    pub(super) async fn write_condition(
        &self,
        name: &str,
        condition: &Condition,
        turned: bool,
    ) -> Result<(), Error> {
        let now = Time(Timestamp::now());
        let mut written = json!({
            "type": CONDITION,
            "status": if condition.ready { "True" } else { "False" },
            "reason": condition.reason.to_string(),
            "message": condition.message,
            "lastHeartbeatTime": now,
        });
        if turned {
            written["lastTransitionTime"] = json!(now);
        }
        let patch = &Patch::Strategic(json!({ "status": { "conditions": [written] } }));
        let written = self.call(STATUS, |client| {
            let nodes = Self::nodes(client);
            async move { nodes.patch_status(name, &PatchParams::default(), patch).await }
        });
        of_node(STATUS, name, &written.await?.metadata)
    }

    /// Sets or removes the taint. The list is written whole, for the version of the node that it was read
    /// from: after another program's change the server answers 409, and it is read again.
    pub(super) async fn write_taint(&self, name: &str, wanted: bool) -> Result<(), Error> {
        let mut pauses = self.limits.pauses();
        let mut conflicts = 0;
        loop {
            let node = self.seen_node(name).await?;
            if node.tainted == wanted {
                return Ok(());
            }
            match self.patch_taints(name, node, wanted).await {
                Err(error)
                    if error.kind == ApiErrorKind::Status(409) && conflicts < MOST_CONFLICTS =>
                {
                    tracing::debug!(
                        "{error}; another program changed the node, which is read again"
                    );
                    conflicts += 1;
                    pauses.pause().await;
                }
                written => return written,
            }
        }
    }

    async fn patch_taints(&self, name: &str, node: NodeMarks, wanted: bool) -> Result<(), Error> {
        let Some(version) = node.version else {
            return Err(Error::new(TAINTS, ApiErrorKind::Garbled, "a node without a version"));
        };
        let mut taints: Vec<Value> = node.taints.into_iter().filter(|t| !is_own_taint(t)).collect();
        if wanted {
            taints.push(json!({ "key": TAINT, "effect": TAINT_EFFECT }));
        }
        let patch = &Patch::Merge(json!({
            "metadata": { "resourceVersion": version }, "spec": { "taints": taints },
        }));
        let written = self.call(TAINTS, |client| {
            let nodes: Api<Node> = Api::all(client);
            async move { nodes.patch_metadata(name, &PatchParams::default(), patch).await }
        });
        of_node(TAINTS, name, &written.await?.metadata)
    }
}
