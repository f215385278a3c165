use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::testing::{Api, SHORT, ScriptedAnswer, pass, refused, status};
use crate::{ApiErrorKind, Limits};

const GET: &str = "GET /api/v1/nodes/node-1";
const PATCH: &str = "PATCH /api/v1/nodes/node-1";
const LIST: &str = "GET /api/v1/nodes";

const LONG: Duration = Duration::from_secs(60);
/// Pauses that no test waits for.
const PACE: Pace = Pace { change: LONG, again: LONG, refused: LONG };

/// A node's metadata, with these annotations and labels.
fn node(version: &str, annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> Value {
    let map = |pairs: &[(&str, &str)]| -> Value {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value)));
        pairs.collect::<serde_json::Map<_, _>>().into()
    };
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": { "name": "node-1", "resourceVersion": version,
                      "annotations": map(annotations), "labels": map(labels) },
    })
}

const ON: (&str, &str) = (UPGRADES_ENABLED, "true");
const VALUE: &str = "longshore: driver in use by train of pod abc";
const REQUEST: (&str, &str) = (SAFE_LOAD, VALUE);
/// The request of another program.
const FOREIGN: (&str, &str) = (SAFE_LOAD, "true");

/// A node without a request.
fn free(version: &str) -> ScriptedAnswer {
    body(&node(version, &[ON], &[]))
}

fn open(version: &str) -> Value {
    node(version, &[ON, REQUEST], &[(UPGRADE_STATE, "drain-required")])
}

fn granted(version: &str) -> Value {
    node(version, &[ON], &[(UPGRADE_STATE, "pod-restart-required")])
}

fn body(node: &Value) -> ScriptedAnswer {
    ScriptedAnswer::Body(200, node.to_string())
}

fn event(kind: &str, object: &Value) -> String {
    json!({ "type": kind, "object": object }).to_string()
}

fn modified(node: &Value) -> String {
    event("MODIFIED", node)
}

fn of_another(node: Value) -> Value {
    let mut node = node;
    node["metadata"]["name"] = json!("node-2");
    node
}

fn bookmark(version: &str) -> String {
    let mark =
        json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "resourceVersion": version } });
    event("BOOKMARK", &mark)
}

/// Watch without an event.
fn quiet() -> ScriptedAnswer {
    ScriptedAnswer::Open(vec![])
}

/// A server with these answers, and requests by it.
struct Scene {
    api: Api,
    requests: Requests,
    reported: UnboundedReceiver<Standing>,
}

impl Scene {
    fn new(answers: Vec<ScriptedAnswer>, pace: Pace) -> Self {
        Self::within(answers, pace, SHORT)
    }

    fn within(answers: Vec<ScriptedAnswer>, pace: Pace, limits: Limits) -> Self {
        let (api, (sender, reported)) = (Api::with(answers), unbounded_channel());
        let tell = move |standing| {
            let _ = sender.send(standing);
        };
        let requests = Requests::begin(api.cluster(limits), "node-1".to_owned(), pace, tell);
        Self { requests: requests.unwrap(), api, reported }
    }

    fn wanting(answers: Vec<ScriptedAnswer>) -> Self {
        let scene = Self::new(answers, PACE);
        scene.requests.want(&["train of pod abc".to_owned()]);
        scene
    }

    /// Waits for this state; returns those before it.
    async fn until(&mut self, wanted: Standing) -> Vec<Standing> {
        let mut before = Vec::new();
        loop {
            match tokio::time::timeout(LONG, self.reported.recv()).await.unwrap().unwrap() {
                found if found == wanted => return before,
                found => before.push(found),
            }
        }
    }

    /// Waits until the server has got this many requests.
    async fn asked(&self, number: usize) -> Vec<String> {
        while self.api.lines().len() < number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.api.lines()
    }

    /// Values that were written, in order.
    fn written(&self) -> Vec<Value> {
        let bodies = self.api.requests().into_iter().filter(|r| r.line.starts_with("PATCH"));
        let value = |body: &str| -> Value {
            serde_json::from_str::<Value>(body).unwrap()["metadata"]["annotations"][SAFE_LOAD]
                .clone()
        };
        bodies.map(|request| value(&request.body)).collect()
    }

    /// Versions that the watches began from.
    fn versions(&self) -> Vec<String> {
        let of = |line: &str| {
            let rest = line.split_once("resourceVersion=")?.1;
            Some(rest.split('&').next().unwrap_or_default().to_owned())
        };
        self.api.requests().iter().filter_map(|request| of(&request.line)).collect()
    }
}

#[tokio::test]
async fn a_request_names_the_users_is_granted_and_not_made_again_at_once() {
    let events = vec![modified(&open("12")), modified(&granted("13"))];
    let answers = vec![free("10"), body(&open("11")), ScriptedAnswer::Open(events), quiet()];
    let mut scene = Scene::wanting(answers);
    assert_eq!(scene.until(Standing::Granted).await, [Standing::Asked]);
    assert_eq!(scene.asked(4).await, [GET, PATCH, LIST, LIST]);
    assert_eq!(scene.written(), [VALUE]);
    let requests = scene.api.requests();
    let patch: Value = serde_json::from_str(&requests[1].body).unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], "10");
    let watch = &requests[2].line;
    for part in
        ["watch=true", "metadata.name%3Dnode-1", "resourceVersion=11", "allowWatchBookmarks=true"]
    {
        assert!(watch.contains(part), "{watch}");
    }
}

#[tokio::test]
async fn a_request_that_was_granted_is_made_again_for_users_that_stay() {
    let answers = vec![
        free("10"),
        body(&open("11")),
        ScriptedAnswer::Open(vec![modified(&granted("12"))]),
        quiet(),
        body(&open("13")),
        quiet(),
    ];
    let short = Duration::from_millis(100);
    let mut scene = Scene::new(answers, Pace { change: short, again: short, refused: LONG });
    scene.requests.want(&["train of pod abc".to_owned()]);
    scene.until(Standing::Granted).await;
    scene.until(Standing::Asked).await;
    assert_eq!(scene.written(), [VALUE, VALUE]);
}

/// Nodes that are not asked: they are read and watched, and not changed.
#[rstest]
#[case(node("1", &[], &[]), Standing::NoController)]
#[case(node("1", &[(UPGRADES_ENABLED, "false")], &[]), Standing::NoController)]
#[case(node("1", &[ON], &[(SKIPPED, "true")]), Standing::NodeSkipped)]
#[case(node("1", &[ON], &[(UPGRADE_STATE, "upgrade-failed")]), Standing::UpgradeFailed)]
#[case(node("1", &[ON, FOREIGN], &[]), Standing::AskedByAnother)]
#[tokio::test]
async fn a_node_that_is_not_to_be_asked_is_asked_once_that_changes(
    #[case] node: Value,
    #[case] wanted: Standing,
) {
    let freed = modified(&granted("2"));
    let answers = vec![body(&node), ScriptedAnswer::Open(vec![freed]), body(&open("3")), quiet()];
    let mut scene = Scene::wanting(answers);
    assert_eq!(scene.until(wanted).await, []);
    assert_eq!(scene.until(Standing::Asked).await, []);
    assert_eq!(scene.asked(4).await, [GET, LIST, PATCH, LIST]);
}

#[tokio::test]
async fn an_upgrade_that_failed_withdraws_the_request() {
    let failed = |request: &[_]| {
        node("12", &[&[ON], request].concat(), &[(UPGRADE_STATE, "upgrade-failed")])
    };
    let answers = vec![
        free("10"),
        body(&open("11")),
        ScriptedAnswer::Open(vec![modified(&failed(&[REQUEST]))]),
        body(&failed(&[])),
        quiet(),
    ];
    let mut scene = Scene::wanting(answers);
    assert_eq!(scene.until(Standing::UpgradeFailed).await, [Standing::Asked]);
    assert_eq!(scene.written(), [json!(VALUE), Value::Null]);
}

/// Failures of the first two calls, the state that is told, and the requests until it is asked.
#[rstest]
#[case::broken(vec![refused(500), refused(502), refused(504), refused(500), free("1")], Some(Standing::Unreachable), &[GET, GET, GET, GET, GET, PATCH])]
#[case::broken_write(vec![free("1"), refused(500), refused(500), refused(500), free("2")], Some(Standing::Unreachable), &[GET, PATCH, PATCH, PATCH, GET, PATCH])]
#[case::changed_meanwhile(vec![free("1"), refused(409), free("2")], None, &[GET, PATCH, GET, PATCH])]
#[case::another_node(vec![body(&of_another(granted("1"))), free("1")], Some(Standing::Unreachable), &[GET, GET, PATCH])]
#[case::no_version(vec![free(""), free("1")], Some(Standing::Unreachable), &[GET, GET, PATCH])]
#[case::long_version(vec![free(&"1".repeat(65)), free("1")], Some(Standing::Unreachable), &[GET, GET, PATCH])]
#[case::token(vec![refused(401), free("1")], None, &[GET, GET, PATCH])]
#[tokio::test]
async fn a_failed_request_is_made_again(
    #[case] answers: Vec<ScriptedAnswer>,
    #[case] reported: Option<Standing>,
    #[case] lines: &[&str],
) {
    let after = [body(&open("11")), quiet()];
    let mut scene = Scene::wanting(answers.into_iter().chain(after).collect());
    assert_eq!(scene.until(Standing::Asked).await, Vec::from_iter(reported));
    let found = scene.asked(lines.len()).await;
    assert_eq!(found[..lines.len()], *lines);
}

/// A cluster that does not answer, or refuses, is of no account where no change waits.
#[rstest]
#[case(vec![refused(500), refused(500), refused(500), free("1")])]
#[case(vec![refused(409), free("1")])]
#[tokio::test]
async fn failures_are_not_reported_while_nothing_is_wanted(#[case] answers: Vec<ScriptedAnswer>) {
    let mut scene = Scene::new(answers, PACE);
    scene.requests.withdraw();
    assert_eq!(scene.until(Standing::NoRequest).await, []);
}

/// A server that takes each removal and keeps the request, as a webhook may.
#[tokio::test]
async fn a_request_that_cannot_be_removed_is_removed_again_after_growing_pauses() {
    let first = Duration::from_millis(50);
    let limits = Limits { first_pause: first, longest_pause: first * 8, ..SHORT };
    let answers = (1..200).map(|version| body(&open(&version.to_string()))).collect();
    let scene = Scene::within(answers, PACE, limits);
    scene.requests.withdraw();
    scene.asked(3).await;
    let began = std::time::Instant::now();
    scene.asked(6).await;
    assert!(began.elapsed() > first, "{:?}", began.elapsed());
}

/// Calls of a server that is too slow: each is given up, and made again.
#[tokio::test]
async fn a_slow_server_is_asked_again() {
    let answers = vec![
        ScriptedAnswer::Silence,
        free("1"),
        ScriptedAnswer::Silence,
        body(&open("2")),
        quiet(),
    ];
    let limits = Limits { call: Duration::from_millis(500), tries: 1, ..SHORT };
    let mut scene = Scene::within(answers, PACE, limits);
    scene.requests.want(&["train of pod abc".to_owned()]);
    assert_eq!(scene.until(Standing::Asked).await, [Standing::Unreachable]);
    assert_eq!(scene.asked(4).await[..4], [GET, GET, PATCH, GET]);
}

#[tokio::test]
async fn a_rotated_token_is_read_again_for_a_watch() {
    let node = body(&open("12"));
    let answers = vec![body(&open("11")), refused(401), node, ScriptedAnswer::Open(vec![])];
    let scene = Scene::wanting(answers);
    std::fs::write(scene.api.files.path().join("token"), "second").unwrap();
    scene.asked(4).await;
    let tokens: Vec<String> = scene.api.requests().into_iter().map(|r| r.authorization).collect();
    assert_eq!(tokens[2..], ["Bearer second", "Bearer second"]);
}

#[tokio::test]
async fn a_huge_annotation_is_neither_kept_nor_taken_for_an_own_one() {
    let huge = format!("{VALUE}{}", "x".repeat(1 << 20));
    let answer = body(&node("1", &[ON, (SAFE_LOAD, &huge)], &[]));
    let mut scene = Scene::wanting(vec![answer, quiet()]);
    assert_eq!(scene.until(Standing::AskedByAnother).await, []);
    let larger = body(&node("1", &[ON, (SAFE_LOAD, &"x".repeat(4 << 20))], &[]));
    let mut scene = Scene::wanting(vec![larger, free("1"), body(&open("2")), quiet()]);
    scene.until(Standing::Asked).await;
}

#[rstest]
#[case(vec![refused(403)], &[GET])]
#[case(vec![refused(404)], &[GET])]
#[case(vec![free("1"), refused(403)], &[GET, PATCH])]
#[tokio::test]
async fn a_refused_call_is_not_made_again_soon(
    #[case] answers: Vec<ScriptedAnswer>,
    #[case] lines: &[&str],
) {
    let later = (2..20).map(|version| free(&version.to_string()));
    let mut scene = Scene::wanting(answers.into_iter().chain(later).collect());
    assert_eq!(scene.until(Standing::Refused).await, []);
    pass(PACE.refused - Duration::from_secs(1)).await;
    assert!(scene.requests.withdrawn(LONG).await);
    assert_eq!(scene.api.lines(), [lines, &[GET]].concat(), "and that of the withdrawal");
}

/// Watches that end before the request is granted, and the versions that they begin from.
#[rstest]
#[case::closed(vec![ScriptedAnswer::Lines(vec![modified(&open("12"))])], &["11", "12"])]
#[case::closed_at_once(vec![ScriptedAnswer::Lines(vec![]), ScriptedAnswer::Lines(vec![])], &["11", "11", "11"])]
#[case::bookmark(vec![ScriptedAnswer::Lines(vec![bookmark("40")])], &["11", "40"])]
#[case::cut(vec![ScriptedAnswer::Cut(vec![modified(&open("12"))]), body(&open("50"))], &["11", "50"])]
#[case::busy(vec![refused(503), body(&open("50"))], &["11", "50"])]
#[case::token(vec![refused(401), body(&open("50"))], &["11", "50"])]
#[case::gone_at_once(vec![refused(410), body(&open("50"))], &["11", "50"])]
#[case::gone_later(
    vec![
        ScriptedAnswer::Lines(vec![modified(&open("12")), event("ERROR", &serde_json::from_str(&status(410, "too old")).unwrap())]),
        body(&open("50")),
    ],
    &["11", "50"]
)]
#[case::garbage(vec![ScriptedAnswer::Lines(vec!["<html>".into()]), body(&open("50"))], &["11", "50"])]
#[case::unknown_event(vec![ScriptedAnswer::Lines(vec![event("NEWS", &open("12"))]), body(&open("50"))], &["11", "50"])]
#[case::another_node(vec![ScriptedAnswer::Open(vec![modified(&of_another(granted("12")))]), body(&open("50"))], &["11", "50"])]
#[case::long_bookmark(vec![ScriptedAnswer::Open(vec![bookmark(&"4".repeat(65))]), body(&open("50"))], &["11", "50"])]
#[case::too_large(vec![ScriptedAnswer::Lines(vec!["x".repeat(4 << 20)]), body(&open("50"))], &["11", "50"])]
#[tokio::test]
async fn a_watch_is_resumed(#[case] first: Vec<ScriptedAnswer>, #[case] from: &[&str]) {
    let mut answers = vec![free("10"), body(&open("11"))];
    answers.extend(first);
    answers.push(ScriptedAnswer::Open(vec![modified(&granted("60"))]));
    answers.push(quiet());
    let mut scene = Scene::wanting(answers);
    assert_eq!(scene.until(Standing::Granted).await, [Standing::Asked]);
    assert_eq!(scene.versions()[..from.len()], *from);
}

#[tokio::test]
async fn a_removal_between_two_watches_is_noticed() {
    let answers = vec![free("10"), body(&open("11")), refused(410), body(&granted("50")), quiet()];
    let mut scene = Scene::wanting(answers);
    assert_eq!(scene.until(Standing::Granted).await, [Standing::Asked]);
}

/// Watches that a server closes after one event: their pauses grow, be the node changed or not.
#[rstest]
#[case::same(&[open("12"), open("13")])]
#[case::other(&[granted("12"), node("13", &[], &[])])]
#[tokio::test]
async fn a_server_that_ends_each_watch_at_once_is_asked_with_pauses(#[case] nodes: &[Value]) {
    let watches = (0..200).map(|n| ScriptedAnswer::Lines(vec![modified(&nodes[n % 2])]));
    let answers = [body(&open("10"))].into_iter().chain(watches);
    let (api, pause) = (Api::with(answers), Duration::from_millis(20));
    let limits = Limits { first_pause: pause, longest_pause: LONG, ..SHORT };
    let begun = Requests::begin(api.cluster(limits), "node-1".to_owned(), PACE, |_| {});
    let requests = begun.unwrap();
    let began = std::time::Instant::now();
    requests.want(&["train of pod abc".to_owned()]);
    while api.lines().iter().filter(|line| *line == LIST).count() < 6 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The five pauses are 10 ms, 20 ms, 40 ms and so on at least.
    assert!(began.elapsed() >= pause / 2 * 31, "{:?}", began.elapsed());
}

#[tokio::test]
async fn the_same_users_write_once_and_others_not_too_soon() {
    let answers = vec![free("10"), body(&open("11")), quiet(), quiet(), quiet()];
    let mut scene = Scene::wanting(answers);
    scene.until(Standing::Asked).await;
    scene.requests.want(&["train of pod abc".to_owned()]);
    let names = ["another of pod abc", "train of pod abc"];
    for (name, watches) in names.into_iter().zip(1..) {
        scene.asked(2 + watches).await;
        scene.requests.want(&[name.to_owned()]);
    }
    // Each of the others interrupts a watch, which is begun anew.
    assert_eq!(scene.asked(5).await, [GET, PATCH, LIST, LIST, LIST]);
    assert_eq!(scene.written(), [VALUE]);
}

#[tokio::test]
async fn other_users_replace_the_names_of_an_earlier_agent() {
    let earlier = node("10", &[ON, (SAFE_LOAD, "longshore: driver in use by a")], &[]);
    let mut scene = Scene::wanting(vec![body(&earlier), body(&open("11")), quiet()]);
    scene.until(Standing::Asked).await;
    assert_eq!(scene.written(), [VALUE]);
}

#[tokio::test]
async fn nothing_is_called_before_anything_is_desired() {
    let scene = Scene::new(vec![free("1")], PACE);
    pass(10 * LONG).await;
    assert!(!scene.requests.are_begun());
    assert!(scene.requests.withdrawn(LONG).await);
    assert_eq!(scene.api.lines(), [GET], "of the withdrawal alone");
}

/// Nodes on which no request is wanted, and the values that are written.
#[rstest]
#[case::leftover(open("10"), &[Value::Null])]
#[case::leftover_without_a_controller(node("10", &[REQUEST], &[]), &[Value::Null])]
#[case::foreign(node("10", &[ON, FOREIGN], &[]), &[])]
#[case::looks_alike(node("10", &[ON, (SAFE_LOAD, "longshore: driver in useless")], &[]), &[])]
#[case::none(node("10", &[ON], &[]), &[])]
#[tokio::test]
async fn only_an_own_request_is_withdrawn(#[case] node: Value, #[case] wanted: &[Value]) {
    let scene = Scene::new(vec![body(&node), free("11")], PACE);
    assert!(scene.requests.withdrawn(LONG).await);
    assert_eq!(scene.written(), wanted);
    let patch = scene.api.requests().into_iter().find(|r| r.line.starts_with("PATCH"));
    assert!(patch.is_none_or(|patch| patch.body.contains(r#""resourceVersion":"10""#)));
}

#[tokio::test]
async fn a_withdrawal_outlasts_failures_and_another_s_change() {
    let answers = vec![
        free("10"),
        body(&open("11")),
        quiet(),
        refused(409),
        refused(500),
        body(&open("12")),
        free("13"),
    ];
    let mut scene = Scene::wanting(answers);
    scene.until(Standing::Asked).await;
    scene.asked(3).await;
    assert!(scene.requests.withdrawn(LONG).await);
    assert_eq!(scene.asked(7).await, [GET, PATCH, LIST, PATCH, GET, GET, PATCH]);
    assert_eq!(scene.written(), [json!(VALUE), Value::Null, Value::Null]);
}

#[tokio::test]
async fn a_withdrawal_waits_for_a_silent_server_no_longer_than_its_limit() {
    let mut scene =
        Scene::wanting(vec![free("10"), body(&open("11")), quiet(), ScriptedAnswer::Silence]);
    scene.until(Standing::Asked).await;
    let began = std::time::Instant::now();
    assert!(!scene.requests.withdrawn(Duration::from_millis(100)).await);
    assert!(began.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn a_node_name_that_is_none_is_never_sent() {
    let api = Api::with([]);
    for name in ["", "a/b", "node-1,metadata.name=x"] {
        let begun = Requests::begin(api.cluster(SHORT), name.to_owned(), PACE, |_| {});
        assert_eq!(begun.unwrap_err().kind, ApiErrorKind::Name);
    }
    assert!(api.requests().is_empty());
}

#[test]
fn users_are_bounded_each_once_and_of_harmless_characters() {
    let names = |n: usize| (0..n).map(|n| format!("{n}{}", "p".repeat(500))).collect::<Vec<_>>();
    assert_eq!(holders_value(&[]), "longshore: driver in use");
    let odd = ["b\n\"b\"\x1b{é}".to_owned(), "a".to_owned(), "a".to_owned()];
    assert_eq!(holders_value(&odd), "longshore: driver in use by a, b__b_____");
    let many = holders_value(&names(1000));
    assert!(many.len() <= LONGEST_VALUE, "{}", many.len());
    assert!(many.ends_with("and 980 more") && is_own_request(&many));
}
