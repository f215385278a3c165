//! Pods of the node that use the driver, and the treatment of each.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::client::Cluster;
use crate::error::Error;
use crate::names;
use crate::pods::{MIRROR, NodePod, PodRef};

/// Reason that a pod is still there.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Hindrance {
    /// Its label exempts it.
    #[display("its label {}=false exempts it", names::EVICT)]
    OptedOut,
    /// It is a static pod, which the kubelet alone ends.
    #[display("a static pod cannot be evicted")]
    Static,
    /// It has no controller that would make it again.
    #[display("no controller makes it again, and its label is not {}=true", names::EVICT)]
    NoController,
    /// A PodDisruptionBudget, or a busy server, does not allow it now: the server's answer.
    Budget(String),
    /// The cluster refuses the eviction: its answer.
    Forbidden(String),
    /// The eviction failed: the cause.
    Failed(String),
    /// It was evicted, and has not ended yet.
    #[display("it has not ended yet")]
    Ending,
}

impl Hindrance {
    /// True if both are of the same kind, whatever the server's text.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Treatment of a pod that uses the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Treatment {
    Evict,
    /// A DaemonSet makes it again at once, cordon or not: it is evicted when no other user is left.
    EvictLast,
    /// Nothing is done: it is there for this reason.
    Leave(Hindrance),
}

/// A pod that uses the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UserPod {
    pub(super) id: PodRef,
    pub(super) treatment: Treatment,
}

impl UserPod {
    /// Takes a pod of the node; None where it uses no driver by `users`, the uids that the users' cgroups
    /// have.
    fn from_pod(pod: &NodePod, users: &BTreeSet<String>) -> Option<Self> {
        let is_user = users.contains(&pod.id.uid)
            || pod.static_uid.as_ref().is_some_and(|uid| users.contains(uid));
        is_user.then(|| Self { id: pod.id.clone(), treatment: treatment(&pod.meta) })
    }
}

fn treatment(pod: &ObjectMeta) -> Treatment {
    let annotated = |name| pod.annotations.as_ref().is_some_and(|all| all.contains_key(name));
    let consent = pod.labels.as_ref().and_then(|all| all.get(names::EVICT)).map(String::as_str);
    let owners = pod.owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    let controller = controller.map(|owner| owner.kind.as_str());
    match (controller, consent) {
        (Some("Node"), _) => Treatment::Leave(Hindrance::Static),
        _ if annotated(MIRROR) => Treatment::Leave(Hindrance::Static),
        (_, Some("false")) => Treatment::Leave(Hindrance::OptedOut),
        _ if pod.deletion_timestamp.is_some() => Treatment::Leave(Hindrance::Ending),
        (None, Some("true")) => Treatment::Evict,
        (None, _) => Treatment::Leave(Hindrance::NoController),
        (Some("DaemonSet"), _) => Treatment::EvictLast,
        (Some(_), _) => Treatment::Evict,
    }
}

impl Cluster {
    /// Lists the pods of this node that use the driver; those of the names `NAMESPACE/NAME` in `spared` are left out.
    pub(super) async fn user_pods(
        &self,
        node: &str,
        spared: &[&str],
        users: &BTreeSet<String>,
    ) -> Result<Vec<UserPod>, Error> {
        let pods = self.node_pods(node).await?;
        let used = pods.iter().filter_map(|pod| UserPod::from_pod(pod, users));
        Ok(used.filter(|pod| !spared.contains(&&*pod.id.to_string())).collect())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::pods::STATIC_UID;

    const UID: &str = "8f3b2c1d-1111-2222-3333-444455556666";

    fn pod(more: &Value) -> Option<NodePod> {
        let mut pod = json!({ "namespace": "ml", "name": "train", "uid": UID });
        let more = more.as_object().unwrap().clone();
        pod.as_object_mut().unwrap().extend(more);
        NodePod::from_meta(serde_json::from_value(pod).unwrap())
    }

    fn owned(kind: &str, label: Option<&str>) -> Value {
        let owner = json!([{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u",
                             "controller": true }]);
        match label {
            Some(value) => json!({ "ownerReferences": owner, "labels": { names::EVICT: value } }),
            None => json!({ "ownerReferences": owner }),
        }
    }

    fn labelled(value: &str) -> Value {
        json!({ "labels": { names::EVICT: value } })
    }

    const LEAVE: fn(Hindrance) -> Treatment = Treatment::Leave;

    #[rstest]
    #[case::of_a_set(owned("ReplicaSet", None), Treatment::Evict)]
    #[case::of_a_job(owned("Job", Some("yes")), Treatment::Evict)]
    #[case::of_a_daemon_set(owned("DaemonSet", None), Treatment::EvictLast)]
    #[case::opted_out(owned("Job", Some("false")), LEAVE(Hindrance::OptedOut))]
    #[case::daemon_set_opted_out(owned("DaemonSet", Some("false")), LEAVE(Hindrance::OptedOut))]
    #[case::of_nobody(json!({}), LEAVE(Hindrance::NoController))]
    #[case::of_nobody_opted_in(labelled("true"), Treatment::Evict)]
    #[case::of_a_node(owned("Node", Some("true")), LEAVE(Hindrance::Static))]
    #[case::mirror(json!({ "annotations": { MIRROR: "h" } }), LEAVE(Hindrance::Static))]
    #[case::ending(
        json!({ "deletionTimestamp": "2026-11-23T03:00:00Z", "labels": { names::EVICT: "true" } }),
        LEAVE(Hindrance::Ending)
    )]
    fn a_pod_is_treated_by_its_controller_and_label(
        #[case] more: Value,
        #[case] wanted: Treatment,
    ) {
        let users = BTreeSet::from([UID.to_owned()]);
        assert_eq!(UserPod::from_pod(&pod(&more).unwrap(), &users).unwrap().treatment, wanted);
    }

    #[rstest]
    #[case::uid(json!({}), UID, true)]
    #[case::another(json!({}), "0b7ec6a1de0a5b14e1ad2c1b6b0d3c55", false)]
    #[case::hash(json!({ "annotations": { MIRROR: "0b7e", STATIC_UID: "0b7e" } }), "0b7e", true)]
    #[case::hash_alone(json!({ "annotations": { STATIC_UID: "0b7e" } }), "0b7e", false)]
    #[case::no_name(json!({ "name": "../x" }), UID, false)]
    #[case::no_uid(json!({ "uid": null }), UID, false)]
    fn a_pod_is_found_by_the_uid_of_its_cgroups(
        #[case] more: Value,
        #[case] user: &str,
        #[case] wanted: bool,
    ) {
        let users = BTreeSet::from([user.to_owned()]);
        let found = pod(&more).and_then(|pod| UserPod::from_pod(&pod, &users));
        assert_eq!(found.is_some(), wanted);
    }
}
