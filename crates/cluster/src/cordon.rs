//! Cordon of the own node: `spec.unschedulable`, and the annotation that tells longshore's cordon from
//! that of another program.
//!
//! Both are written by one PATCH with the version of the node that was read, so the server takes both or
//! neither, and none after another change of the node. An annotation without `unschedulable` is therefore
//! a node that another program uncordoned since.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node as CoreNode;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, Patch, PatchParams};
use kube::core::{NotUsed, Object};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::names;
use crate::text::is_version;

const READ: &str = "reading the own node (get nodes)";
const CORDON: &str = "cordoning the own node (patch nodes)";
const UNCORDON: &str = "uncordoning the own node (patch nodes)";

/// The part of a node that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Spec {
    #[serde(default)]
    unschedulable: bool,
}

type Node = Object<Spec, NotUsed>;

/// Content of the annotation of a cordoned node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CordonRecord {
    /// The pod that cordoned it, `NAMESPACE/NAME`.
    pub pod: String,
    /// Time of the cordon, RFC 3339.
    pub since: String,
    /// The change that it is cordoned for.
    pub reason: String,
}

impl CordonRecord {
    /// Reads the annotation; None where no agent writes such a one.
    pub(crate) fn of_annotation(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the time since the cordon, in whole seconds; zero where its time is none, or in the future by
    /// this clock.
    fn age(&self, now: Timestamp) -> Duration {
        let since: Option<Timestamp> = self.since.parse().ok();
        let seconds =
            since.and_then(|since| u64::try_from(now.duration_since(since).as_secs()).ok());
        Duration::from_secs(seconds.unwrap_or(0))
    }
}

/// The own node, as far as it is about its cordon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeCordon {
    /// No pod is scheduled to it.
    pub(crate) is_unschedulable: bool,
    /// It has longshore's annotation.
    pub(crate) has_record: bool,
    /// Its content, where an agent can have written it.
    record: Option<CordonRecord>,
    version: String,
}

/// Change of a cordon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CordonChange {
    /// Cordon a node that pods are scheduled to.
    Cordon(CordonRecord),
    /// Uncordon the node that longshore cordoned.
    Uncordon,
    /// Remove the annotation from a node that another program uncordoned.
    Forget,
}

impl CordonChange {
    fn call(&self) -> &'static str {
        match self {
            Self::Cordon(_) => CORDON,
            Self::Uncordon | Self::Forget => UNCORDON,
        }
    }

    /// Returns the merge patch for a node of this version.
    fn patch(&self, version: &str) -> Value {
        let annotation = match self {
            // A structure of strings has no map whose keys are none.
            Self::Cordon(record) => json!(json!(record).to_string()),
            Self::Uncordon | Self::Forget => Value::Null,
        };
        let annotations = json!({ names::CORDONED: annotation });
        let metadata = json!({ "annotations": annotations, "resourceVersion": version });
        match self {
            Self::Cordon(_) => json!({ "metadata": metadata, "spec": { "unschedulable": true } }),
            Self::Uncordon => json!({ "metadata": metadata, "spec": { "unschedulable": null } }),
            Self::Forget => json!({ "metadata": metadata }),
        }
    }
}

impl NodeCordon {
    /// Takes an answer; none about another node, or without a version.
    fn from_node(call: &'static str, name: &str, node: &Node) -> Result<Self, Error> {
        let version = node.metadata.resource_version.as_deref().filter(|text| is_version(text));
        let version = version.filter(|_| node.metadata.name.as_deref() == Some(name));
        let Some(version) = version else {
            let why = "an answer about another node, or without a version";
            return Err(Error::new(call, ApiErrorKind::Garbled, why));
        };
        let annotations = node.metadata.annotations.as_ref();
        let record = annotations.and_then(|all| all.get(names::CORDONED));
        Ok(Self {
            is_unschedulable: node.spec.unschedulable,
            has_record: record.is_some(),
            record: record.and_then(|text| CordonRecord::of_annotation(text)),
            version: version.to_owned(),
        })
    }

    /// Returns the time since longshore cordoned the node for a change of this reason; zero where it did not.
    pub(crate) fn cordoned_for(&self, reason: &str, now: Timestamp) -> Duration {
        let record = self.record.as_ref().filter(|_| self.is_unschedulable);
        let record = record.filter(|record| record.reason == reason);
        record.map_or(Duration::ZERO, |record| record.age(now))
    }

    #[cfg(test)]
    pub(crate) fn new(is_unschedulable: bool, has_record: bool) -> Self {
        Self { is_unschedulable, has_record, record: None, version: "1".to_owned() }
    }

    /// Returns a node that longshore cordoned at this time for a change of this reason.
    #[cfg(test)]
    pub(crate) fn since(since: &str, reason: &str) -> Self {
        let (pod, since) = ("gpu/driver-a".to_owned(), since.to_owned());
        let record = CordonRecord { pod, since, reason: reason.to_owned() };
        Self { record: Some(record), ..Self::new(true, true) }
    }
}

impl Cluster {
    /// Reads the node.
    pub(crate) async fn node_cordon(&self, name: &str) -> Result<NodeCordon, Error> {
        let kind = ApiResource::erase::<CoreNode>(&());
        let read = self.call(READ, |client| {
            let nodes: Api<Node> = Api::all_with(client, &kind);
            async move { nodes.get(name).await }
        });
        NodeCordon::from_node(READ, name, &read.await?)
    }

    /// Changes the cordon of a node that was read: after any other change of the node the server answers
    /// 409, and the decision is made anew.
    pub(crate) async fn change_cordon(
        &self,
        name: &str,
        node: &NodeCordon,
        change: &CordonChange,
    ) -> Result<NodeCordon, Error> {
        let (kind, call) = (ApiResource::erase::<CoreNode>(&()), change.call());
        let patch = &Patch::Merge(change.patch(&node.version));
        let changed = self.call(call, |client| {
            let nodes: Api<Node> = Api::all_with(client, &kind);
            async move { nodes.patch(name, &PatchParams::default(), patch).await }
        });
        NodeCordon::from_node(call, name, &changed.await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_and_cordon_are_one_patch_with_the_version_that_was_read() {
        let record = CordonRecord {
            pod: "gpu/driver-x7k2p".to_owned(),
            since: "2026-11-23T03:00:00Z".to_owned(),
            reason: "driver 535.261.03 to 550.163.01".to_owned(),
        };
        let patch = CordonChange::Cordon(record.clone()).patch("7");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["unschedulable"], true);
        let text = patch["metadata"]["annotations"]["longshore.dev/cordoned"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<CordonRecord>(text).unwrap(), record);
        let none =
            json!({ "annotations": { "longshore.dev/cordoned": null }, "resourceVersion": "7" });
        let uncordon = json!({ "metadata": none, "spec": { "unschedulable": null } });
        assert_eq!(CordonChange::Uncordon.patch("7"), uncordon);
        assert_eq!(CordonChange::Forget.patch("7"), json!({ "metadata": none }));
    }
}
