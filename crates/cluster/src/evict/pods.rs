//! Pods of the own node that use the driver, and the treatment of each.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};

use crate::client::Cluster;
use crate::error::Error;
use crate::names;
use crate::report::PodRef;
use crate::text::is_name;

const LIST: &str = "listing the pods of the own node (list pods)";

/// Annotations of a static pod's mirror object; the second has the uid that its cgroups have.
const MIRROR: &str = "kubernetes.io/config.mirror";
const STATIC_UID: &str = "kubernetes.io/config.hash";
/// Number of pods in one answer, and of answers: a node has some hundreds at most.
const PAGE: u32 = 100;
const MOST_PAGES: usize = 20;
/// Length of the longest uid.
const LONGEST_UID: usize = 64;

/// Reason that a pod is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hindrance {
    /// Its label exempts it.
    OptedOut,
    /// It is a static pod, which the kubelet alone ends.
    Static,
    /// It has no controller that would make it again.
    NoController,
    /// A PodDisruptionBudget, or a busy server, does not allow it now: the server's answer.
    Budget(String),
    /// The cluster refuses the eviction: its answer.
    Forbidden(String),
    /// The eviction failed: the cause.
    Failed(String),
    /// It was evicted, and has not ended yet.
    Ending,
}

impl Hindrance {
    /// True if both are of the same kind, whatever the server's text.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OptedOut => write!(f, "its label {}=false exempts it", names::EVICT),
            Self::Static => f.write_str("a static pod cannot be evicted"),
            Self::NoController => {
                write!(
                    f,
                    "no controller makes it again, and its label is not {}=true",
                    names::EVICT
                )
            }
            Self::Budget(why) | Self::Forbidden(why) | Self::Failed(why) => f.write_str(why),
            Self::Ending => f.write_str("it has not ended yet"),
        }
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
    /// Takes a pod by its metadata; None where it uses no driver by `users`, the uids that the users'
    /// cgroups have.
    fn of(pod: &ObjectMeta, users: &BTreeSet<String>) -> Option<Self> {
        let (namespace, name, uid) =
            (pod.namespace.as_ref()?, pod.name.as_ref()?, pod.uid.as_ref()?);
        let annotation = |name| pod.annotations.as_ref()?.get(name);
        // Anybody who makes a pod may write the hash: without the mirror's annotation it says nothing, and
        // a pod with that one is never evicted.
        let hash = annotation(MIRROR).and(annotation(STATIC_UID));
        let is_user = users.contains(uid) || hash.is_some_and(|uid| users.contains(uid));
        if !is_user || !is_name(namespace) || !is_name(name) || uid.len() > LONGEST_UID {
            return None;
        }
        let id = PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() };
        Some(Self { id, treatment: treatment(pod) })
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
    /// Lists the pods of this node that use the driver; `own` is left out. Of each pod only the metadata
    /// is read.
    pub(super) async fn user_pods(
        &self,
        node: &str,
        own: (&str, &str),
        users: &BTreeSet<String>,
    ) -> Result<Vec<UserPod>, Error> {
        let mut found = Vec::new();
        let mut only = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
        for _ in 0..MOST_PAGES {
            let params = &only;
            let listed = self.call(LIST, |client| {
                let pods: Api<Pod> = Api::all(client);
                async move { pods.list_metadata(params).await }
            });
            let listed = listed.await?;
            let users = listed.items.iter().filter_map(|pod| UserPod::of(&pod.metadata, users));
            found.extend(users.filter(|pod| (&*pod.id.namespace, &*pod.id.name) != own));
            match listed.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => only = only.continue_token(&next),
                None => break,
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "8f3b2c1d-1111-2222-3333-444455556666";

    fn pod(more: &Value) -> ObjectMeta {
        let mut pod = json!({ "namespace": "ml", "name": "train", "uid": UID });
        let more = more.as_object().unwrap().clone();
        pod.as_object_mut().unwrap().extend(more);
        serde_json::from_value(pod).unwrap()
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
        assert_eq!(UserPod::of(&pod(&more), &users).unwrap().treatment, wanted);
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
        assert_eq!(UserPod::of(&pod(&more), &users).is_some(), wanted);
    }
}
