use rstest::rstest;
use serde_json::Value;

use super::*;
use crate::testing::{Answer, Api, SHORT, refused, status};

const GET: &str = "GET /api/v1/nodes/node-1";
const PATCH: &str = "PATCH /api/v1/nodes/node-1";
const LIST: &str = "GET /api/v1/nodes";

/// A node's metadata, with these annotations and labels.
fn node(version: &str, annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> Value {
    let map = |pairs: &[(&str, &str)]| -> Value {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": { "name": "node-1", "resourceVersion": version,
                      "annotations": map(annotations), "labels": map(labels) },
    })
}

const ON: (&str, &str) = (UPGRADES_ENABLED, "true");
const REQUEST: (&str, &str) = (SAFE_LOAD, "driver in use");

fn open(version: &str) -> Value {
    node(version, &[ON, REQUEST], &[(UPGRADE_STATE, "drain-required")])
}

fn granted(version: &str) -> Value {
    node(version, &[ON], &[(UPGRADE_STATE, "pod-restart-required")])
}

fn body(node: &Value) -> Answer {
    Answer::Body(200, node.to_string())
}

fn event(kind: &str, object: &Value) -> String {
    json!({ "type": kind, "object": object }).to_string()
}

fn modified(node: &Value) -> String {
    event("MODIFIED", node)
}

fn bookmark(version: &str) -> String {
    let mark =
        json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "resourceVersion": version } });
    event("BOOKMARK", &mark)
}

/// Answers before the watch: the node, and the patched node.
fn asked() -> Vec<Answer> {
    vec![body(&node("10", &[ON], &[])), body(&open("11"))]
}

/// Makes the request against these answers; returns the outcome, and the server.
async fn safe_load(before: Vec<Answer>, then: Vec<Answer>, limit: Duration) -> (SafeLoad, Api) {
    let api = Api::with(before.into_iter().chain(then));
    let holders = ["ml/train-0 (python3)".to_owned()];
    let outcome = api.cluster(SHORT).safe_load("node-1", &holders, limit).await.unwrap();
    (outcome, api)
}

const LONG: Duration = Duration::from_secs(60);

/// Versions that the watches began from.
fn versions(api: &Api) -> Vec<String> {
    let of = |line: &str| {
        let rest = line.split_once("resourceVersion=")?.1;
        Some(rest.split('&').next().unwrap_or_default().to_owned())
    };
    api.requests().iter().filter_map(|request| of(&request.line)).collect()
}

#[tokio::test]
async fn the_request_names_the_holders_and_ends_when_it_is_removed() {
    let events = vec![modified(&open("12")), modified(&granted("13"))];
    let (outcome, api) = safe_load(asked(), vec![Answer::Open(events)], LONG).await;
    assert_eq!(outcome, SafeLoad::Granted);
    assert_eq!(api.lines(), [GET, PATCH, LIST]);
    let requests = api.requests();
    let patch: Value = serde_json::from_str(&requests[1].body).unwrap();
    let value = &patch["metadata"]["annotations"][SAFE_LOAD];
    assert_eq!(value, "driver in use by ml/train-0 (python3)");
    let watch = &requests[2].line;
    for part in
        ["watch=true", "metadata.name%3Dnode-1", "resourceVersion=11", "allowWatchBookmarks=true"]
    {
        assert!(watch.contains(part), "{watch}");
    }
}

/// Nodes that are not asked: only read.
#[rstest]
#[case(node("1", &[], &[]), SafeLoad::NoController)]
#[case(node("1", &[(UPGRADES_ENABLED, "false")], &[]), SafeLoad::NoController)]
#[case(node("1", &[ON], &[("nvidia.com/gpu-driver-upgrade.skip", "true")]), SafeLoad::NodeSkipped)]
#[tokio::test]
async fn without_a_controller_nothing_is_changed(#[case] node: Value, #[case] wanted: SafeLoad) {
    let (outcome, api) = safe_load(vec![body(&node)], vec![], LONG).await;
    assert_eq!(outcome, wanted);
    assert_eq!(api.lines(), [GET]);
}

/// Refusals of each call, and the requests that were made.
#[rstest]
#[case(vec![refused(403)], &[GET])]
#[case(vec![refused(404)], &[GET])]
#[case(vec![body(&node("1", &[ON], &[])), refused(403)], &[GET, PATCH])]
#[case(vec![body(&node("1", &[ON], &[])), body(&open("2")), refused(403)], &[GET, PATCH, LIST])]
#[case(vec![body(&node("1", &[ON], &[])), body(&open("2")), Answer::Lines(vec![event("DELETED", &open("3"))])], &[GET, PATCH, LIST])]
#[tokio::test]
async fn a_refusal_is_an_outcome(#[case] answers: Vec<Answer>, #[case] lines: &[&str]) {
    let (outcome, api) = safe_load(answers, vec![], LONG).await;
    assert_eq!(outcome, SafeLoad::Refused);
    assert_eq!(api.lines(), lines);
}

/// Watches that end before the request is granted, and the versions that they begin from.
#[rstest]
#[case::closed(vec![Answer::Lines(vec![modified(&open("12"))])], &["11", "12"])]
#[case::closed_at_once(vec![Answer::Lines(vec![]), Answer::Lines(vec![])], &["11", "11", "11"])]
#[case::bookmark(vec![Answer::Lines(vec![bookmark("40")])], &["11", "40"])]
#[case::cut(vec![Answer::Cut(vec![modified(&open("12"))])], &["11", "12"])]
#[case::busy(vec![refused(503)], &["11", "11"])]
#[case::token(vec![refused(401)], &["11", "11"])]
#[case::gone_at_once(vec![refused(410), body(&open("50"))], &["11", "50"])]
#[case::gone_later(
    vec![
        Answer::Lines(vec![modified(&open("12")), event("ERROR", &serde_json::from_str(&status(410, "too old")).unwrap())]),
        body(&open("50")),
    ],
    &["11", "50"]
)]
#[case::garbage(vec![Answer::Lines(vec!["<html>".into()]), body(&open("50"))], &["11", "50"])]
#[case::unknown_event(vec![Answer::Lines(vec![event("NEWS", &open("12"))]), body(&open("50"))], &["11", "50"])]
#[tokio::test]
async fn a_watch_is_resumed(#[case] first: Vec<Answer>, #[case] from: &[&str]) {
    let mut then = first;
    then.push(Answer::Open(vec![modified(&granted("60"))]));
    let (outcome, api) = safe_load(asked(), then, LONG).await;
    assert_eq!(outcome, SafeLoad::Granted);
    assert_eq!(versions(&api), from);
}

#[tokio::test]
async fn a_removal_between_two_watches_is_noticed() {
    let then = vec![refused(410), body(&granted("50"))];
    let (outcome, api) = safe_load(asked(), then, LONG).await;
    assert_eq!(outcome, SafeLoad::Granted);
    assert_eq!(api.lines(), [GET, PATCH, LIST, GET]);
}

/// Requests that are withdrawn again.
#[rstest]
#[case(Answer::Open(vec![modified(&node("12", &[ON, REQUEST], &[(UPGRADE_STATE, "upgrade-failed")]))]), LONG, SafeLoad::UpgradeFailed)]
#[case(Answer::Open(vec![modified(&open("12"))]), Duration::from_millis(500), SafeLoad::TimedOut)]
#[tokio::test]
async fn a_request_that_is_not_granted_is_withdrawn(
    #[case] watch: Answer,
    #[case] limit: Duration,
    #[case] wanted: SafeLoad,
) {
    let (outcome, api) = safe_load(asked(), vec![watch, body(&granted("13"))], limit).await;
    assert_eq!(outcome, wanted);
    assert_eq!(api.lines(), [GET, PATCH, LIST, PATCH]);
    let patch: Value = serde_json::from_str(&api.requests()[3].body).unwrap();
    assert_eq!(patch["metadata"]["annotations"], json!({ SAFE_LOAD: null }));
}

#[tokio::test]
async fn a_node_name_that_is_none_is_never_sent() {
    let api = Api::with([]);
    let cluster = api.cluster(SHORT);
    for name in ["", "a/b", "node-1,metadata.name=x"] {
        let error = cluster.safe_load(name, &[], LONG).await.unwrap_err();
        assert_eq!(error.kind, Kind::Name);
        assert_eq!(cluster.withdraw_safe_load(name).await.unwrap_err().kind, Kind::Name);
    }
    assert!(api.requests().is_empty());
}

#[test]
fn holders_are_bounded_and_of_harmless_characters() {
    let names = |n: usize| vec!["p".repeat(500); n];
    assert_eq!(holders_value(&[]), "driver in use");
    let odd = ["a\n\"b\"\x1b{é}".to_owned(), "ns/pod-0 (python3)".to_owned()];
    assert_eq!(
        holders_value(&odd),
        "driver in use by a__b______, ns/pod-0 (python3)".replace("a__b______", "a__b_____")
    );
    let many = holders_value(&names(1000));
    assert!(many.len() < 3000, "{}", many.len());
    assert!(many.ends_with("and 980 more"));
}
