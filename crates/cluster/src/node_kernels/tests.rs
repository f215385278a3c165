use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Api, Request as Asked, SHORT, ScriptedAnswer, status};

/// A node that runs this kernel, with this annotation of the agent.
fn node(name: &str, kernel: &str, next: Option<&str>) -> Value {
    let next = next.map(|release| json!({ "release": release, "ready": false }));
    let status = json!({ "format": 1, "next_kernel": next }).to_string();
    json!({
        "metadata": { "name": name, "resourceVersion": "7", "annotations": { names::STATUS: status } },
        "status": { "nodeInfo": {
            "architecture": "amd64", "operatingSystem": "linux", "kernelVersion": kernel,
        } },
    })
}

fn parsed(value: Value) -> Option<(String, KernelsOfNode)> {
    serde_json::from_value::<Node>(value).expect("a node").kernels()
}

#[rstest]
#[case::running(node("a", "6.1.0-50-amd64", None), &["6.1.0-50-amd64"])]
#[case::next(node("a", "6.1.0-50-amd64", Some("6.1.0-51-amd64")), &["6.1.0-50-amd64", "6.1.0-51-amd64"])]
#[case::same(node("a", "6.1.0-50-amd64", Some("6.1.0-50-amd64")), &["6.1.0-50-amd64"])]
#[case::hostile(node("a", "../../etc", Some("\u{1b}[2J")), &["../../etc", "\\u{1b}[2J"])]
#[case::not_yet_known(node("a", "", None), &[])]
fn a_node_has_two_kernels_at_most_whose_texts_are_escaped_and_cut(
    #[case] node: Value,
    #[case] releases: &[&str],
) {
    assert_eq!(parsed(node).expect("a node").1.releases, releases);
    let long = parsed(self::node("a", &"6".repeat(9000), None)).expect("a node").1.releases;
    assert_eq!(long, ["6".repeat(80) + "..."]);
}

#[test]
fn an_annotation_that_is_none_hides_no_running_kernel() {
    let mut odd = node("a", "6.1.0-50-amd64", None);
    for text in ["", "{", "{\"format\":2}", &"[".repeat(100_000)] {
        odd["metadata"]["annotations"][names::STATUS] = json!(text);
        assert_eq!(parsed(odd.clone()).expect("a node").1.releases, ["6.1.0-50-amd64"]);
    }
    odd["status"]["nodeInfo"]["operatingSystem"] = json!("windows");
    assert_eq!(parsed(odd), None);
}

fn list(nodes: &[Value], next: Option<&str>) -> ScriptedAnswer {
    let list = json!({
        "kind": "NodeList", "apiVersion": "v1", "items": nodes,
        "metadata": { "resourceVersion": "7", "continue": next },
    });
    ScriptedAnswer::Body(200, list.to_string())
}

fn event(kind: &str, object: Value) -> String {
    json!({ "type": kind, "object": object }).to_string()
}

/// Waits until the nodes are told so.
async fn until(
    reported: &mut watch::Receiver<FollowedNodes>,
    wanted: impl FnMut(&FollowedNodes) -> bool,
) -> FollowedNodes {
    reported.wait_for(wanted).await.expect("it is followed").clone()
}

fn releases(reported: &FollowedNodes) -> Vec<String> {
    let nodes = reported.nodes.iter().flat_map(BTreeMap::values);
    nodes.flat_map(|node| node.releases.clone()).collect()
}

#[tokio::test]
async fn nodes_of_a_selector_are_listed_in_pages_and_followed() {
    let watches = AtomicUsize::default();
    let api = Api::by(move |asked: &Asked| {
        assert!(asked.line.contains("labelSelector=gpu%3Dtrue"), "{}", asked.line);
        if asked.line.contains("watch=true") {
            return match watches.fetch_add(1, Ordering::SeqCst) {
                0 => ScriptedAnswer::Lines(vec![
                    event("MODIFIED", node("b", "6.1.0-50-amd64", Some("6.1.0-51-amd64"))),
                    event("DELETED", node("a", "6.1.0-49-amd64", None)),
                ]),
                _ => ScriptedAnswer::Open(vec![event("ADDED", node("c", "6.12.1", None))]),
            };
        }
        match asked.line.contains("continue=second") {
            false => list(&[node("a", "6.1.0-49-amd64", None)], Some("second")),
            true => list(&[node("b", "6.1.0-50-amd64", None)], None),
        }
    });
    let following = NodeKernels::follow(api.cluster(SHORT), Some("gpu=true".to_owned()));
    let mut reported = following.reported();
    let last =
        until(&mut reported, |reported| releases(reported).contains(&"6.12.1".to_owned())).await;
    assert_eq!(releases(&last), ["6.1.0-50-amd64", "6.1.0-51-amd64", "6.12.1"]);
    assert_eq!(last.failure, None);
}

/// etcd forgets versions: then the nodes are listed anew. A server that refuses is asked again, and what was known stays.
#[tokio::test]
async fn a_version_that_is_too_old_is_listed_anew_and_a_failure_is_told() {
    let lists = AtomicUsize::default();
    let refuses = std::sync::Arc::new(Mutex::new(false));
    let switched = refuses.clone();
    let api = Api::by(move |asked: &Asked| {
        if *switched.lock().expect("a flag") {
            return ScriptedAnswer::Body(403, status(403, "no list for this account"));
        }
        if asked.line.contains("watch=true") {
            let gone = json!({ "kind": "Status", "code": 410, "message": "too old", "reason": "Expired",
                "status": "Failure", "metadata": {} });
            return match lists.load(Ordering::SeqCst) {
                1 => ScriptedAnswer::Lines(vec![event("ERROR", gone)]),
                _ => ScriptedAnswer::Lines(Vec::new()),
            };
        }
        match lists.fetch_add(1, Ordering::SeqCst) {
            0 => list(&[node("a", "6.1.0-50-amd64", None)], None),
            _ => list(&[node("a", "6.1.0-51-amd64", None)], None),
        }
    });
    let following = NodeKernels::follow(api.cluster(SHORT), None);
    let mut reported = following.reported();
    until(&mut reported, |reported| releases(reported) == ["6.1.0-51-amd64"]).await;
    *refuses.lock().expect("a flag") = true;
    let last = until(&mut reported, |reported| reported.failure.is_some()).await;
    assert_eq!(releases(&last), ["6.1.0-51-amd64"]);
    assert!(last.failure.expect("told").contains("nodes"));
}
