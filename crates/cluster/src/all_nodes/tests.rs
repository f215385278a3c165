//! Lists, patches and deletions against a stand-in API server.

use std::sync::atomic::{AtomicU32, Ordering};

use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::Limits;
use crate::testing::{Api, Request as Asked, SHORT, ScriptedAnswer, refused, status};

#[derive(Deserialize)]
struct Items {
    items: Vec<Value>,
}

fn names(json: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    let list: Items = serde_json::from_slice(json)?;
    let name = |node: Value| node["metadata"]["name"].as_str().map(str::to_owned);
    Ok(list.items.into_iter().filter_map(name).collect())
}

fn fleet(api: &Api) -> Fleet {
    Fleet::new(api.cluster(SHORT), Duration::ZERO)
}

/// A page with the nodes of these numbers; the next one begins behind the last.
fn page(numbers: std::ops::Range<u32>, is_last: bool) -> ScriptedAnswer {
    let next = if is_last { String::new() } else { format!("after {}&x=1", numbers.end) };
    let node = |number| json!({"metadata": {"name": format!("n{number}")}});
    let items: Vec<Value> = numbers.map(node).collect();
    ScriptedAnswer::Body(200, json!({"metadata": {"continue": next}, "items": items}).to_string())
}

#[tokio::test]
async fn nodes_are_listed_in_pages() {
    let api = Api::with([page(0..50, false), page(50..100, false), page(100..120, true)]);
    let found = fleet(&api).nodes(names).await.unwrap();
    let wanted: Vec<String> = (0..120).map(|number| format!("n{number}")).collect();
    assert_eq!(found, wanted);
    let lines: Vec<String> = api.requests().into_iter().map(|request| request.line).collect();
    let asked = |rest: &str| format!("GET /api/v1/nodes?&limit=50{rest}");
    let next = |number| asked(&format!("&continue=after+{number}%26x%3D1"));
    assert_eq!(lines, [asked(""), next(50), next(100)]);
}

#[tokio::test]
async fn a_list_whose_next_page_is_forgotten_begins_anew() {
    let api = Api::with([page(0..50, false), refused(410), page(1..51, false), page(51..52, true)]);
    let found = fleet(&api).nodes(names).await.unwrap();
    assert_eq!((found.len(), found[0].as_str()), (51, "n1"));
    let forgetful = Api::by(|asked: &Asked| match asked.line.contains("continue") {
        true => refused(410),
        false => page(0..50, false),
    });
    let error = fleet(&forgetful).nodes(names).await.unwrap_err();
    assert_eq!((error.kind, forgetful.requests().len()), (ApiErrorKind::Gone, 6));
}

#[tokio::test]
async fn a_list_without_an_end_is_left() {
    let api = Api::by(|_| page(0..1, false));
    let error = fleet(&api).nodes(names).await.unwrap_err();
    assert_eq!((error.kind, api.requests().len()), (ApiErrorKind::Garbled, 200));
    assert!(error.to_string().contains("has not ended after 10000 objects"), "{error}");
}

/// Sizes of the objects of a list beside one of ten bytes, the limits of the pages that are asked for, and the outcome.
#[rstest]
#[case::small(&[10; 60], &[50, 50], Ok(61))]
#[case::halved(&[1000; 10], &[50, 25, 12, 6, 3, 3, 3, 3], Ok(11))]
#[case::large(&[3000; 3], &[50, 25, 12, 6, 3, 1, 1, 1, 1], Ok(4))]
#[case::too_large(&[10, 9000], &[50, 25, 12, 6, 3, 1, 1, 1], Err(ApiErrorKind::TooLarge))]
#[tokio::test]
async fn a_page_that_is_too_large_is_halved(
    #[case] sizes: &[usize],
    #[case] limits: &[usize],
    #[case] wanted: Result<usize, ApiErrorKind>,
) {
    let sizes = [&[10], sizes].concat();
    let number = |line: &str, name: &str| {
        let value = line.split(name).nth(1)?.split('&').next()?;
        value.parse::<usize>().ok()
    };
    let api = Api::by(move |asked: &Asked| {
        let limit = number(&asked.line, "limit=").unwrap();
        let from = number(&asked.line, "continue=").unwrap_or(0);
        let end = sizes.len().min(from + limit);
        let node = |size: &usize| json!({"metadata": {"name": "n".repeat(*size)}});
        let items: Vec<Value> = sizes[from..end].iter().map(node).collect();
        let next = if end < sizes.len() { end.to_string() } else { String::new() };
        ScriptedAnswer::Body(
            200,
            json!({"items": items, "metadata": {"continue": next}}).to_string(),
        )
    });
    let few = Limits { answer: 4000, ..SHORT };
    let fleet = Fleet::new(api.cluster(few), Duration::from_secs(600));
    let found = fleet.nodes(names).await.map(|found| found.len()).map_err(|error| error.kind);
    assert_eq!(found, wanted);
    let asked: Vec<usize> =
        api.requests().iter().filter_map(|asked| number(&asked.line, "limit=")).collect();
    assert_eq!(asked, limits);
}

#[tokio::test]
async fn pods_are_those_of_a_node_or_namespace() {
    let api = Api::by(|_| page(0..1, true));
    let fleet = fleet(&api);
    fleet.pods(PodsOf::Node("gpu-1"), names).await.unwrap();
    fleet.pods(PodsOf::Namespace("gpu"), names).await.unwrap();
    let lines: Vec<String> = api.requests().into_iter().map(|request| request.line).collect();
    let of_node = "GET /api/v1/pods?&fieldSelector=spec.nodeName%3Dgpu-1&limit=50";
    assert_eq!(lines, [of_node, "GET /api/v1/namespaces/gpu/pods?&limit=50"]);
}

/// Calls by their number, with the right of each.
async fn call(fleet: &Fleet, number: usize) -> Result<(), Error> {
    let patch = json!({"metadata": {"labels": {"a": null}}});
    match number {
        0 => fleet.nodes(names).await.map(drop),
        1 => fleet.node("n").await.map(drop),
        2 => fleet.patch_node("n", NodePatch::Merge(&patch)).await.map(drop),
        3 => fleet.patch_node("n", NodePatch::Status(&patch)).await.map(drop),
        4 => fleet.pods(PodsOf::Node("n"), names).await.map(drop),
        5 => fleet.daemon_set("gpu", "driver").await.map(drop),
        _ => fleet.delete_daemon_set("gpu", "driver", "7").await,
    }
}

/// Verb and resource, as RBAC counts a request (kubernetes.io/docs/reference/access-authn-authz/authorization).
fn right_of(request: &Asked) -> (String, &'static str) {
    let (method, path) = request.line.split_once(' ').unwrap();
    let path = path.split('?').next().unwrap();
    let resource = match path {
        "/api/v1/nodes" | "/api/v1/nodes/n" => "nodes",
        "/api/v1/nodes/n/status" => "nodes/status",
        "/api/v1/pods" => "pods",
        "/apis/apps/v1/namespaces/gpu/daemonsets/driver" => "daemonsets",
        other => panic!("{other}"),
    };
    let verb = match (method, path.ends_with("s") && !path.ends_with("/status")) {
        ("GET", true) => "list".to_owned(),
        (method, _) => method.to_lowercase(),
    };
    (verb, resource)
}

#[tokio::test]
async fn a_refusal_has_the_right_that_is_missing() {
    for number in 0..7 {
        let api = Api::with([refused(403)]);
        let error = call(&fleet(&api), number).await.unwrap_err();
        let right = Fleet::missing_right(&error).unwrap();
        let requests = api.requests();
        // Not asked again.
        assert_eq!(requests.len(), 1);
        assert_eq!((right.verb.to_owned(), right.resource), right_of(&requests[0]));
        let named = format!("({} {}): the API server answered 403", right.verb, right.resource);
        assert!(error.to_string().contains(&named), "{error}");
        let api = Api::by(|_| refused(401));
        let error = call(&fleet(&api), number).await.unwrap_err();
        assert_eq!((error.kind, api.requests().len()), (ApiErrorKind::Unauthorized, 3));
        assert!(error.to_string().contains(&format!("({} {})", right.verb, right.resource)));
        assert_eq!(Fleet::missing_right(&error), None);
    }
    let right = Right { group: "apps", resource: "daemonsets", verb: "get" };
    assert_eq!(right.to_string(), "apiGroups: [\"apps\"], resources: [daemonsets], verbs: [get]");
}

#[tokio::test]
async fn a_patch_has_its_type_and_a_conflict_is_no_failure() {
    let api = Api::with([
        ScriptedAnswer::Body(200, "{}".into()),
        refused(409),
        ScriptedAnswer::Body(200, "{}".into()),
    ]);
    let (fleet, patch) = (fleet(&api), json!({"metadata": {"resourceVersion": "7"}}));
    assert!(fleet.patch_node("n", NodePatch::Merge(&patch)).await.unwrap().is_some());
    assert!(fleet.patch_node("n", NodePatch::Merge(&patch)).await.unwrap().is_none());
    assert!(fleet.patch_node("n", NodePatch::Status(&patch)).await.unwrap().is_some());
    assert_eq!(
        api.lines(),
        ["PATCH /api/v1/nodes/n", "PATCH /api/v1/nodes/n", "PATCH /api/v1/nodes/n/status"]
    );
    let is_sent = |asked: &Asked| serde_json::from_str::<Value>(&asked.body).unwrap() == patch;
    assert!(api.requests().iter().all(is_sent));
}

/// Answers to a deletion, and its outcome.
#[rstest]
#[case::accepted(ScriptedAnswer::Body(200, "{}".into()), None)]
#[case::gone(refused(404), None)]
#[case::made_anew(refused(409), None)]
#[case::refused(refused(403), Some(ApiErrorKind::Forbidden))]
#[tokio::test]
async fn a_deletion_is_of_one_uid_and_waits_for_pods(
    #[case] answer: ScriptedAnswer,
    #[case] wanted: Option<ApiErrorKind>,
) {
    let api = Api::with([answer]);
    let deleted = fleet(&api).delete_daemon_set("gpu", "driver", "7").await;
    assert_eq!(deleted.err().map(|error| error.kind), wanted);
    let asked = api.requests().remove(0);
    assert_eq!(asked.line, "DELETE /apis/apps/v1/namespaces/gpu/daemonsets/driver?");
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body["propagationPolicy"], "Foreground");
    assert_eq!(body["preconditions"]["uid"], "7");
}

#[tokio::test]
async fn a_daemon_set_that_there_is_not_is_none() {
    let api = Api::with([refused(404), ScriptedAnswer::Body(200, "{\"a\": 1}".into())]);
    let fleet = fleet(&api);
    assert_eq!(fleet.daemon_set("gpu", "driver").await.unwrap(), None);
    assert_eq!(fleet.daemon_set("gpu", "driver").await.unwrap().as_deref(), Some("{\"a\": 1}"));
}

/// More failures than a call has tries.
#[tokio::test]
async fn a_server_that_is_away_is_asked_until_the_time_limit() {
    let failures = AtomicU32::new(0);
    let api = Api::by(move |_| match failures.fetch_add(1, Ordering::Relaxed) {
        number if number < 3 * SHORT.tries => ScriptedAnswer::Body(503, status(503, "starting")),
        _ => page(0..2, true),
    });
    let patient = Fleet::new(api.cluster(SHORT), Duration::from_secs(600));
    assert_eq!(patient.nodes(names).await.unwrap().len(), 2);
    let away = Api::by(|_| ScriptedAnswer::Body(503, status(503, "starting")));
    let error = fleet(&away).nodes(names).await.unwrap_err();
    assert_eq!((error.kind, away.requests().len()), (ApiErrorKind::Status(503), 3));
}

#[tokio::test]
async fn a_name_that_is_none_is_not_sent() {
    let api = Api::with([]);
    let (fleet, patch) = (fleet(&api), json!({}));
    let kinds = [
        fleet.node("a/b").await.unwrap_err().kind,
        fleet.patch_node("../x", NodePatch::Status(&patch)).await.unwrap_err().kind,
        fleet.pods(PodsOf::Node("a,b=c"), names).await.unwrap_err().kind,
        fleet.pods(PodsOf::Namespace(""), names).await.unwrap_err().kind,
        fleet.daemon_set("a", "b?c").await.unwrap_err().kind,
        fleet.delete_daemon_set("a/b", "c", "7").await.unwrap_err().kind,
    ];
    assert_eq!(kinds, [ApiErrorKind::Name; 6]);
    assert!(api.requests().is_empty());
}

#[tokio::test]
async fn an_answer_that_is_no_list_is_told() {
    let api = Api::by(|_| ScriptedAnswer::Body(200, "{\"kind\": \"Node\"}".into()));
    let error = fleet(&api).nodes(names).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Garbled);
    assert!(error.to_string().contains("not the list: missing field `items`"), "{error}");
}
