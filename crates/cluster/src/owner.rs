//! DaemonSet that the own pod belongs to: as long as it exists, another pod follows this one.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Namespace, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource};
use kube::core::{NotUsed, Object};
use serde::{Deserialize, Serialize};

use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error, check_names};
use crate::text::is_name;

const POD: &str = "reading the own pod (get pods)";
const OWNER: &str = "reading the own pod's DaemonSet (get daemonsets)";
const NODE: &str = "reading the own node (get nodes)";
const NAMESPACE: &str = "reading the own pod's namespace (get namespaces)";

type Labels = BTreeMap<String, String>;

/// The part of a DaemonSet that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Spec {
    #[serde(default)]
    template: Template,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Template {
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_selector: Option<Labels>,
    #[serde(default)]
    affinity: Option<Affinity>,
}

impl PodSpec {
    /// Terms of which a node has to fulfil one; None where each node does.
    fn terms(&self) -> Option<&[NodeSelectorTerm]> {
        let affinity = self.affinity.as_ref()?.node_affinity.as_ref()?;
        let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
        Some(&required.node_selector_terms)
    }

    fn selects_all(&self) -> bool {
        self.node_selector.as_ref().is_none_or(Labels::is_empty) && self.terms().is_none()
    }

    /// True if pods are made on a node with these labels.
    fn selects(&self, labels: &Labels) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.node_selector.iter().flatten().all(has)
            && self.terms().is_none_or(|terms| terms.iter().any(|term| fulfils(labels, term)))
    }
}

/// True if labels fulfil a term; one without any condition is never fulfilled, and one about other fields
/// than labels counts as fulfilled.
fn fulfils(labels: &Labels, term: &NodeSelectorTerm) -> bool {
    let conditions = term.match_expressions.as_deref().unwrap_or_default();
    let has_fields = term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty());
    (has_fields || !conditions.is_empty())
        && conditions.iter().all(|condition| holds(labels, condition))
}

/// True if labels meet a condition (k8s.io/api/core/v1, NodeSelectorOperator); one with an unknown operator
/// counts as met.
fn holds(labels: &Labels, condition: &NodeSelectorRequirement) -> bool {
    let label = labels.get(&condition.key);
    let values = condition.values.as_deref().unwrap_or_default();
    let is_in = label.is_some_and(|label| values.contains(label));
    let numbers = || Some((label?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match condition.operator.as_str() {
        "In" => is_in,
        "NotIn" => !is_in,
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => numbers().is_some_and(|(label, value)| label > value),
        "Lt" => numbers().is_some_and(|(label, value)| label < value),
        _ => true,
    }
}

type Set = Object<Spec, NotUsed>;

/// DaemonSet of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The pod belongs to none.
    None,
    /// It exists, and makes another pod when this one is gone.
    Exists(String),
    /// It exists, and its node selector or node affinity leaves this node out.
    Elsewhere(String),
    /// It is being deleted.
    Ending(String),
    /// Its namespace is being deleted, in which no pod is made any more.
    EndingNamespace(String),
    /// It was deleted.
    Gone(String),
}

impl Cluster {
    /// Reads the DaemonSet that a pod belongs to, the labels of its node where that DaemonSet selects
    /// by them, and the namespace: four calls at most, each tried once. A node that cannot be read counts
    /// as selected, a namespace as one that stays.
    ///
    /// # Errors
    /// A name that is none; a refusal; no such pod; no answer, or none of the API.
    pub async fn owner(
        &self,
        namespace: &str,
        pod: &str,
        node: Option<&str>,
    ) -> Result<Owner, Error> {
        check_names(POD, &[namespace, pod])?;
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let found = self.once(POD, pods.get_metadata(pod)).await?;
        let Some(name) = daemon_set(&found.metadata) else { return Ok(Owner::None) };
        if !is_name(&name) {
            return Err(Error::new(OWNER, ApiErrorKind::Garbled, format!("`{name}` is no name")));
        }
        let kind = ApiResource::erase::<DaemonSet>(&());
        let sets: Api<Set> = Api::namespaced_with(self.client(), namespace, &kind);
        match self.once(OWNER, sets.get(&name)).await {
            Ok(set) if set.metadata.deletion_timestamp.is_some() => Ok(Owner::Ending(name)),
            Ok(set) => {
                if self.is_left_out(node, &set.spec.template.spec).await {
                    return Ok(Owner::Elsewhere(name));
                }
                Ok(match self.is_ending(namespace).await {
                    true => Owner::EndingNamespace(name),
                    // Also one that was deleted and made again under its name.
                    false => Owner::Exists(name),
                })
            }
            Err(error) if error.kind == ApiErrorKind::Missing => Ok(Owner::Gone(name)),
            Err(error) => Err(error),
        }
    }

    /// True if the namespace is being deleted: since Kubernetes 1.33 its pods are deleted before the
    /// DaemonSets that they belong to.
    async fn is_ending(&self, namespace: &str) -> bool {
        let namespaces: Api<Namespace> = Api::all(self.client());
        match self.once(NAMESPACE, namespaces.get_metadata(namespace)).await {
            Ok(found) => found.metadata.deletion_timestamp.is_some(),
            Err(error) => {
                tracing::debug!("{error}; the namespace counts as one that stays");
                false
            }
        }
    }

    /// True if the node has not the labels that these pods need.
    async fn is_left_out(&self, node: Option<&str>, pods: &PodSpec) -> bool {
        let Some(name) = node.filter(|name| is_name(name) && !pods.selects_all()) else {
            return false;
        };
        let nodes: Api<Node> = Api::all(self.client());
        match self.once(NODE, nodes.get_metadata(name)).await {
            Ok(node) => !pods.selects(&node.metadata.labels.unwrap_or_default()),
            Err(error) => {
                tracing::debug!("{error}; the node counts as one of the DaemonSet's");
                false
            }
        }
    }
}

/// Returns the name of the DaemonSet that controls a pod.
fn daemon_set(pod: &ObjectMeta) -> Option<String> {
    let owners = pod.owner_references.as_deref().unwrap_or_default();
    let is_it = |kind: &str, version: &str| kind == "DaemonSet" && version.starts_with("apps/");
    let found = owners
        .iter()
        .find(|owner| owner.controller == Some(true) && is_it(&owner.kind, &owner.api_version))?;
    Some(found.name.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Api as Server, SHORT, ScriptedAnswer, refused};
    use crate::{ApiErrorKind, Limits};

    const GET_POD: &str = "GET /api/v1/namespaces/gpu/pods/driver-x7k2p";
    const GET_SET: &str = "GET /apis/apps/v1/namespaces/gpu/daemonsets/driver";

    const GET_NODE: &str = "GET /api/v1/nodes/node-1";
    const GET_NAMESPACE: &str = "GET /api/v1/namespaces/gpu";

    fn object(metadata: &Value) -> ScriptedAnswer {
        let body = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        });
        ScriptedAnswer::Body(200, body.to_string())
    }

    fn pod_of(kind: &str, version: &str, controller: bool) -> ScriptedAnswer {
        let owner = json!([{ "apiVersion": version, "kind": kind, "name": "driver", "uid": "u",
                             "controller": controller }]);
        object(&json!({ "name": "driver-x7k2p", "ownerReferences": owner }))
    }

    fn pod() -> ScriptedAnswer {
        pod_of("DaemonSet", "apps/v1", true)
    }

    fn set_of(more: &Value, selector: &Value) -> ScriptedAnswer {
        let mut metadata = json!({ "name": "driver" });
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let template = json!({ "spec": { "nodeSelector": selector, "containers": [] } });
        let spec = json!({ "selector": {}, "template": template });
        let body = json!({ "kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": metadata,
                           "spec": spec, "status": { "numberReady": 1 } });
        ScriptedAnswer::Body(200, body.to_string())
    }

    fn set() -> ScriptedAnswer {
        set_of(&json!({}), &Value::Null)
    }

    fn ending() -> ScriptedAnswer {
        set_of(&json!({ "deletionTimestamp": "2026-11-23T03:00:00Z" }), &Value::Null)
    }

    /// A DaemonSet of the nodes with GPUs.
    fn selecting() -> ScriptedAnswer {
        set_of(&json!({}), &json!({ "gpu": "true" }))
    }

    fn node(gpu: &str) -> ScriptedAnswer {
        object(&json!({ "name": "node-1", "labels": { "gpu": gpu, "zone": "a" } }))
    }

    fn namespace(more: &Value) -> ScriptedAnswer {
        let mut metadata = json!({ "name": "gpu" });
        metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object(&metadata)
    }

    fn stays() -> ScriptedAnswer {
        namespace(&json!({}))
    }

    fn ends() -> ScriptedAnswer {
        namespace(&json!({ "deletionTimestamp": "2026-11-23T03:00:00Z" }))
    }

    fn driver(of: fn(String) -> Owner) -> Result<Owner, ApiErrorKind> {
        Ok(of("driver".to_owned()))
    }

    #[rstest]
    #[case::exists(vec![pod(), set(), stays()], driver(Owner::Exists), &[GET_POD, GET_SET, GET_NAMESPACE])]
    #[case::namespace_ends(vec![pod(), set(), ends()], driver(Owner::EndingNamespace), &[GET_POD, GET_SET, GET_NAMESPACE])]
    #[case::namespace_unread(vec![pod(), set(), refused(403)], driver(Owner::Exists), &[GET_POD, GET_SET, GET_NAMESPACE])]
    #[case::ending(vec![pod(), ending()], driver(Owner::Ending), &[GET_POD, GET_SET])]
    #[case::selected(vec![pod(), selecting(), node("true"), stays()], driver(Owner::Exists), &[GET_POD, GET_SET, GET_NODE, GET_NAMESPACE])]
    #[case::left_out(vec![pod(), selecting(), node("no")], driver(Owner::Elsewhere), &[GET_POD, GET_SET, GET_NODE])]
    #[case::node_unread(vec![pod(), selecting(), refused(403), stays()], driver(Owner::Exists), &[GET_POD, GET_SET, GET_NODE, GET_NAMESPACE])]
    #[case::gone(vec![pod(), refused(404)], driver(Owner::Gone), &[GET_POD, GET_SET])]
    #[case::of_a_job(vec![pod_of("Job", "batch/v1", true)], Ok(Owner::None), &[GET_POD])]
    #[case::not_its_controller(vec![pod_of("DaemonSet", "apps/v1", false)], Ok(Owner::None), &[GET_POD])]
    #[case::another_kind(vec![pod_of("DaemonSet", "apps.kruise.io/v1alpha1", true)], Ok(Owner::None), &[GET_POD])]
    #[case::no_owner(vec![object(&json!({ "name": "driver-x7k2p" }))], Ok(Owner::None), &[GET_POD])]
    #[case::no_pod(vec![refused(404)], Err(ApiErrorKind::Missing), &[GET_POD])]
    #[case::forbidden(vec![pod(), refused(403)], Err(ApiErrorKind::Forbidden), &[GET_POD, GET_SET])]
    #[case::unauthorized(vec![refused(401)], Err(ApiErrorKind::Unauthorized), &[GET_POD])]
    #[case::broken(vec![pod(), refused(503)], Err(ApiErrorKind::Status(503)), &[GET_POD, GET_SET])]
    #[case::garbled(vec![ScriptedAnswer::Body(200, "<html>".into())], Err(ApiErrorKind::Garbled), &[GET_POD])]
    #[tokio::test]
    async fn an_answer_tells_of_the_daemon_set(
        #[case] answers: Vec<ScriptedAnswer>,
        #[case] wanted: Result<Owner, ApiErrorKind>,
        #[case] lines: &[&str],
    ) {
        let server = Server::with(answers);
        let found = server.cluster(SHORT).owner("gpu", "driver-x7k2p", Some("node-1")).await;
        assert_eq!(found.map_err(|error| error.kind), wanted);
        assert_eq!(server.lines(), lines);
    }

    /// Labels gpu=true, count=8; conditions of terms, with key, operator and values.
    #[rstest]
    #[case::no_term(json!([]), false)]
    #[case::empty_term(json!([[]]), false)]
    #[case::is_in(json!([[["gpu", "In", ["yes", "true"]]]]), true)]
    #[case::is_not_in(json!([[["gpu", "In", ["yes"]]]]), false)]
    #[case::not_in(json!([[["gpu", "NotIn", ["yes"]]]]), true)]
    #[case::not_in_without_the_label(json!([[["zone", "NotIn", ["a"]]]]), true)]
    #[case::in_after_all(json!([[["gpu", "NotIn", ["true"]]]]), false)]
    #[case::exists(json!([[["gpu", "Exists", []]]]), true)]
    #[case::exists_not(json!([[["zone", "Exists", []]]]), false)]
    #[case::no_such(json!([[["gpu", "DoesNotExist", []]]]), false)]
    #[case::more(json!([[["count", "Gt", ["7"]]]]), true)]
    #[case::not_more(json!([[["count", "Gt", ["8"]]]]), false)]
    #[case::less(json!([[["count", "Lt", ["9"]]]]), true)]
    #[case::no_number(json!([[["gpu", "Lt", ["9"]]]]), false)]
    #[case::later_operator(json!([[["gpu", "Like", ["t"]]]]), true)]
    #[case::all_of_a_term(json!([[["gpu", "Exists", []], ["zone", "Exists", []]]]), false)]
    #[case::one_term(json!([[["zone", "Exists", []]], [["gpu", "Exists", []]]]), true)]
    fn an_affinity_selects_by_its_terms(#[case] terms: Value, #[case] wanted: bool) {
        let condition =
            |parts: &Value| json!({ "key": parts[0], "operator": parts[1], "values": parts[2] });
        let term = |conditions: &Value| {
            let conditions = conditions.as_array().unwrap().iter().map(condition);
            json!({ "matchExpressions": conditions.collect::<Vec<_>>() })
        };
        let terms: Vec<Value> = terms.as_array().unwrap().iter().map(term).collect();
        let required = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
        });
        let spec = json!({ "affinity": { "nodeAffinity": required } });
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let labels = Labels::from([("gpu", "true"), ("count", "8")].map(text));
        assert_eq!(spec.selects(&labels), wanted);
        assert!(!spec.selects_all());
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_given_up_after_one_try() {
        let server = Server::with([ScriptedAnswer::Silence]);
        let limits = Limits { call: Duration::from_millis(100), ..SHORT };
        let found = server.cluster(limits).owner("gpu", "driver-x7k2p", Some("node-1")).await;
        assert_eq!(found.unwrap_err().kind, ApiErrorKind::Late);
        assert_eq!(server.lines(), [GET_POD]);
    }

    #[tokio::test]
    async fn a_name_that_is_none_is_never_sent() {
        let server = Server::with([]);
        let found = server.cluster(SHORT).owner("gpu", "../x", None).await;
        assert_eq!(found.unwrap_err().kind, ApiErrorKind::Name);
        assert!(server.requests().is_empty());
    }
}
