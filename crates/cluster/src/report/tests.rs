use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Api, SHORT, ScriptedAnswer, cluster_at, refused};
use crate::{ApiErrorKind, Limits};

const GET: &str = "GET /api/v1/nodes/node-1";
const PATCH: &str = "PATCH /api/v1/nodes/node-1";
const CONDITION: &str = "PATCH /api/v1/nodes/node-1/status";
const EVENT: &str = "POST /apis/events.k8s.io/v1/namespaces/default/events";

const LONG: Duration = Duration::from_secs(60);

fn options() -> Options {
    let pod = Some("driver-x7k2p".into());
    Options { heartbeat: LONG, refused: LONG, missing: LONG, pod, taint: false }
}

/// The node with these taints, and the condition if it has one.
fn node_with(version: u32, taints: &Value, ready: Option<&str>) -> Value {
    let mut conditions = vec![json!({ "type": "Ready", "status": "True" })];
    conditions.extend(ready.map(|status| json!({ "type": "GpuDriverReady", "status": status })));
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": "node-1", "uid": "u", "resourceVersion": version.to_string() },
        "spec": { "taints": taints, "podCIDR": "10.0.0.0/24" },
        "status": { "conditions": conditions, "images": [{ "names": ["a"] }] },
    })
}

fn body(object: &Value) -> ScriptedAnswer {
    ScriptedAnswer::Body(200, object.to_string())
}

fn node() -> ScriptedAnswer {
    body(&node_with(1, &Value::Null, None))
}

/// Answer to a patch of the node's metadata.
fn patched() -> ScriptedAnswer {
    body(&json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": { "name": "node-1", "resourceVersion": "2" },
    }))
}

fn event() -> ScriptedAnswer {
    ScriptedAnswer::Body(
        201,
        json!({ "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": { "name": "e" } })
            .to_string(),
    )
}

fn report(reason: Reason) -> Report {
    let ready = reason == Reason::DriverReady;
    Report {
        status: NodeStatus {
            format: STATUS_FORMAT,
            agent: "0.1.0".into(),
            kernel: "6.12.1".into(),
            phase: if ready { "ready".into() } else { "in-use".into() },
            wanted: Some("550.163.01".into()),
            live: Some("535.261.03".into()),
            flavour: Some("open".into()),
            ..NodeStatus::default()
        },
        ready,
        reason,
        message: format!("it is {reason}"),
        holders: Vec::new(),
    }
}

fn reporter(api: &Api, options: Options) -> Reporter {
    Reporter::begin(api.cluster(SHORT), "node-1".into(), options).unwrap()
}

fn bodies(api: &Api, line: &str) -> Vec<Value> {
    let requests = api.requests().into_iter();
    let of_line = requests.filter(|r| r.line.split('?').next() == Some(line));
    of_line.map(|r| serde_json::from_str(&r.body).unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_report_is_labels_annotation_condition_and_event() {
    let api = Api::with([node(), node(), patched(), event()]);
    let reporter = reporter(&api, options());
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    assert_eq!(api.lines(), [GET, CONDITION, PATCH, EVENT]);
    let condition = &bodies(&api, CONDITION)[0]["status"]["conditions"][0];
    assert_eq!(condition["type"], "GpuDriverReady");
    assert_eq!(condition["status"], "True");
    assert_eq!(condition["reason"], "DriverReady");
    assert_eq!(condition["message"], "it is DriverReady");
    assert!(condition["lastTransitionTime"].is_string(), "{condition}");
    let metadata = &bodies(&api, PATCH)[0];
    assert_eq!(
        metadata["metadata"]["labels"],
        json!({
            "longshore.dev/driver-version": "535.261.03", "longshore.dev/flavour": "open",
            "longshore.dev/state": "ready", "longshore.dev/next-kernel": null,
        })
    );
    let status = metadata["metadata"]["annotations"]["longshore.dev/status"].as_str().unwrap();
    assert_eq!(NodeStatus::of_annotation(status).unwrap(), report(Reason::DriverReady).status);
    assert!(metadata["metadata"].get("resourceVersion").is_none());
    let event = &bodies(&api, EVENT)[0];
    assert_eq!(event["reason"], "DriverReady");
    assert_eq!(event["reportingController"], "longshore.dev/agent");
    assert_eq!(event["reportingInstance"], "driver-x7k2p");
    assert_eq!(event["regarding"]["kind"], "Node");
    // `kubectl describe node` selects events whose object has no namespace, and the node's name as its uid.
    assert_eq!(
        event["regarding"],
        json!({ "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1" })
    );
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(event["type"], "Normal");
    assert!(event["eventTime"].is_string());
}

#[tokio::test]
async fn only_differences_are_written_and_the_same_report_makes_no_call() {
    let api = Api::with([node(), node(), patched(), event(), patched()]);
    let reporter = reporter(&api, options());
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    assert_eq!(api.requests().len(), 4);
    let mut next = report(Reason::DriverReady);
    next.status.wanted = None;
    assert!(reporter.finish(Some(next), LONG).await);
    assert_eq!(api.lines()[4..], [PATCH]);
}

#[tokio::test]
async fn the_time_of_a_transition_stays_where_the_condition_does() {
    let known = body(&node_with(1, &Value::Null, Some("True")));
    let api = Api::with([known, node(), patched(), event()]);
    let reporter = reporter(&api, options());
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    let condition = &bodies(&api, CONDITION)[0]["status"]["conditions"][0];
    assert!(condition.get("lastTransitionTime").is_none(), "{condition}");
}

#[tokio::test]
async fn refused_calls_are_made_once() {
    let api = Api::with([refused(403), refused(403), refused(403), refused(403)]);
    let reporter = reporter(&api, options());
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    assert!(reporter.finish(Some(report(Reason::DriverInUse)), LONG).await);
    assert_eq!(api.lines(), [GET, CONDITION, PATCH, EVENT]);
}

#[tokio::test]
async fn a_refusal_is_asked_again_after_a_while() {
    let answers = [node(), refused(403), patched(), event(), node()];
    let api = Api::with(answers);
    let options = Options { refused: Duration::from_millis(20), ..options() };
    let reporter = reporter(&api, options);
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    while api.requests().len() < 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(api.lines()[4], CONDITION);
}

/// As while an API server starts: the same calls are answered a moment later.
#[tokio::test]
async fn a_node_that_is_missing_for_a_moment_is_looked_for_again_soon() {
    let started = Arc::new(AtomicBool::new(false));
    let is_there = Arc::clone(&started);
    let api = Api::by(move |request| match request.line.split('?').next() {
        _ if !is_there.load(Ordering::Relaxed) => refused(404),
        Some(PATCH) => patched(),
        Some(EVENT) => event(),
        _ => body(&node_with(7, &with_own(), None)),
    });
    let options = Options { missing: Duration::from_millis(20), ..options() };
    let reporter = reporter(&api, options);
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    assert_eq!(api.lines()[..2], [GET, CONDITION]);
    started.store(true, Ordering::Relaxed);
    let has = |line: &str, wanted: &str| {
        bodies(&api, line).iter().skip(1).any(|body| body.to_string().contains(wanted))
    };
    let untainted = json!({ "taints": foreign() }).to_string();
    while !has(CONDITION, "DriverReady") || !has(PATCH, "535.261.03") || !has(PATCH, &untainted) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn everything_is_written_again_with_a_heartbeat() {
    let answers = [node(), node(), patched(), event(), node(), patched()];
    let api = Api::with(answers);
    let options = Options { heartbeat: Duration::from_millis(200), ..options() };
    let reporter = reporter(&api, options);
    reporter.report(report(Reason::DriverReady));
    while api.requests().len() < 6 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(api.lines()[4..6], [CONDITION, PATCH]);
    let condition = &bodies(&api, CONDITION)[1]["status"]["conditions"][0];
    assert!(condition.get("lastTransitionTime").is_none(), "{condition}");
}

fn foreign() -> Value {
    json!([{ "key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z", "new": 1 }])
}

fn with_own() -> Value {
    let mut taints = foreign();
    let own = json!({ "key": "longshore.dev/driver-not-ready", "effect": "NoSchedule" });
    taints.as_array_mut().unwrap().push(own);
    taints
}

/// Taints before, readiness, the setting, and the taints that are written.
#[rstest]
#[case::set(foreign(), Reason::DriverChanging, true, Some(with_own()))]
#[case::there(with_own(), Reason::DriverChanging, true, None)]
#[case::removed(with_own(), Reason::DriverReady, true, Some(foreign()))]
#[case::removed_when_not_wanted(with_own(), Reason::DriverChanging, false, Some(foreign()))]
#[case::none(foreign(), Reason::DriverReady, false, None)]
#[tokio::test]
async fn a_taint_is_set_while_the_driver_is_not_ready_and_others_stay(
    #[case] before: Value,
    #[case] reason: Reason,
    #[case] taint: bool,
    #[case] written: Option<Value>,
) {
    let found = || body(&node_with(7, &before, None));
    let mut answers = vec![found(), node()];
    // Another node change in between is read again.
    let reads = taint && reason != Reason::DriverReady || written.is_some();
    if reads {
        answers.push(found());
    }
    if written.is_some() {
        answers.extend([refused(409), found(), patched()]);
    }
    answers.extend([patched(), event()]);
    let api = Api::with(answers);
    let reporter = reporter(&api, Options { taint, ..options() });
    assert!(reporter.finish(Some(report(reason)), LONG).await);
    let patches = bodies(&api, PATCH);
    let taints: Vec<&Value> = patches.iter().filter(|p| p.get("spec").is_some()).collect();
    match &written {
        Some(written) => {
            assert_eq!(taints.len(), 2);
            for patch in taints {
                assert_eq!(&patch["spec"]["taints"], written);
                assert_eq!(patch["metadata"]["resourceVersion"], "7");
            }
        }
        None => assert!(taints.is_empty(), "{taints:?}"),
    }
}

#[tokio::test]
async fn conflicts_without_end_are_given_up_and_tried_again_later() {
    let found = || body(&node_with(7, &foreign(), None));
    let mut answers = vec![found(), node()];
    for _ in 0..6 {
        answers.extend([found(), refused(409)]);
    }
    answers.extend([found(), patched(), patched(), event()]);
    let api = Api::with(answers);
    let reporter = reporter(&api, Options { taint: true, ..options() });
    assert!(reporter.finish(Some(report(Reason::DriverFailed)), LONG).await);
    assert_eq!(api.requests().len(), 2 + 12 + 4);
}

#[tokio::test]
async fn an_expired_token_is_read_again() {
    let api = Api::with([refused(401), node(), node(), patched(), event()]);
    let reporter = reporter(&api, options());
    std::fs::write(api.files.path().join("token"), "second").unwrap();
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    assert_eq!(api.requests()[4].authorization, "Bearer second");
}

#[tokio::test]
async fn a_node_of_a_megabyte_is_read_and_a_larger_answer_is_given_up() {
    let mut large = node_with(1, &Value::Null, None);
    large["status"]["note"] = json!("x".repeat(1 << 20));
    let huge = || ScriptedAnswer::Body(200, " ".repeat(9 << 20));
    let answers = [huge(), body(&large), body(&large), patched(), event()];
    let api = Api::with(answers);
    let reporter = reporter(&api, options());
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    assert_eq!(api.lines(), [GET, GET, CONDITION, PATCH, EVENT]);
}

#[tokio::test]
async fn a_name_that_is_none_is_refused() {
    let api = Api::with([]);
    for name in ["", "a/b", "../x", "A"] {
        let begun = Reporter::begin(api.cluster(SHORT), name.into(), options());
        let error = begun.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Name);
    }
}

#[tokio::test]
async fn a_server_that_hangs_or_is_away_holds_the_end_up_no_longer_than_its_limit() {
    let api = Api::with([ScriptedAnswer::Silence, ScriptedAnswer::Silence]);
    let hangs = reporter(&api, options());
    let dir = tempfile::tempdir().unwrap();
    for name in ["token", "ca.crt"] {
        std::fs::copy(api.files.path().join(name), dir.path().join(name)).unwrap();
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port().to_string();
    drop(closed);
    let away = cluster_at(&port, dir.path(), SHORT);
    let away = Reporter::begin(away, "node-1".into(), options()).unwrap();
    for reporter in [hangs, away] {
        let limit = Duration::from_millis(100);
        assert!(!reporter.finish(Some(report(Reason::DriverFailed)), limit).await);
    }
}

#[tokio::test]
async fn the_last_report_does_not_wait_for_a_call_that_hangs() {
    let api = Api::with([ScriptedAnswer::Silence, node(), node(), patched(), event()]);
    let limits = Limits { call: LONG, ..SHORT };
    let reporter = Reporter::begin(api.cluster(limits), "node-1".into(), options()).unwrap();
    reporter.report(report(Reason::DriverChanging));
    while api.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(reporter.finish(Some(report(Reason::DriverRemoved)), LONG).await);
    assert_eq!(bodies(&api, EVENT)[0]["reason"], "DriverRemoved");
}

/// Namespace, name and uid of a pod.
type OfPod = (&'static str, &'static str, &'static str);

/// A report with these holders: programs, each with its pod.
fn held_by(holders: &[(&str, Option<OfPod>)]) -> Report {
    let since: Timestamp = "2026-11-23T03:00:00Z".parse().unwrap();
    let pod = |(namespace, name, uid): OfPod| PodRef {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    };
    let holder = |(program, of): &(&str, Option<OfPod>)| Holder {
        program: (*program).to_owned(),
        pod: of.map(pod),
        since: Some(since),
    };
    Report { holders: holders.iter().map(holder).collect(), ..report(Reason::DriverInUse) }
}

#[tokio::test]
async fn pods_of_holders_are_named_and_get_an_event_each() {
    let api = Api::with([node(), node(), patched(), event(), event(), event()]);
    let reporter = reporter(&api, options());
    let held = held_by(&[
        ("python3", Some(("ml", "train-0", "uid-1"))),
        ("smi", Some(("kube-system", "st", "hash-2"))),
        ("bash", None),
    ]);
    assert!(reporter.finish(Some(held.clone()), LONG).await);
    let ml = "POST /apis/events.k8s.io/v1/namespaces/ml/events";
    let system = "POST /apis/events.k8s.io/v1/namespaces/kube-system/events";
    assert_eq!(api.lines(), [GET, CONDITION, PATCH, EVENT, ml, system], "no pod is listed");
    let event = &bodies(&api, ml)[0];
    assert_eq!(event["reason"], "HoldsDriver");
    assert_eq!(event["type"], "Warning");
    assert_eq!(
        event["regarding"],
        json!({ "apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "train-0", "uid": "uid-1" })
    );
    assert_eq!(
        event["note"],
        "python3 holds driver 535.261.03 (found first at 2026-11-23T03:00:00Z), which blocks its \
         change to 550.163.01"
    );
    assert_eq!(bodies(&api, system)[0]["regarding"]["uid"], "hash-2");
    let annotation = &bodies(&api, PATCH)[0]["metadata"]["annotations"]["longshore.dev/status"];
    let status = NodeStatus::of_annotation(annotation.as_str().unwrap()).unwrap();
    let names: Vec<_> = status.holders.iter().map(|h| h.pod.as_deref()).collect();
    assert_eq!(names, [Some("ml/train-0"), Some("kube-system/st"), None]);
    // The same holders are not told again.
    assert!(reporter.finish(Some(held), LONG).await);
    assert_eq!(api.requests().len(), 6);
}

#[tokio::test]
async fn a_node_that_was_cordoned_is_reported_so() {
    let cordoned = body(&json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": { "name": "node-1", "annotations": { "longshore.dev/cordoned": "{}" } },
    }));
    let api = Api::with([node(), node(), patched(), event(), cordoned, patched(), patched()]);
    let reporter = reporter(&api, options());
    assert!(reporter.finish(Some(report(Reason::DriverReady)), LONG).await);
    reporter.again();
    assert!(reporter.finish(None, LONG).await);
    let patches = bodies(&api, PATCH);
    let cordoned = |patch: &Value| {
        let text = patch["metadata"]["annotations"]["longshore.dev/status"].as_str().unwrap();
        NodeStatus::of_annotation(text).unwrap().cordoned
    };
    assert_eq!(patches.iter().map(cordoned).collect::<Vec<_>>(), [false, false, true]);
}

#[tokio::test]
async fn a_repeated_event_is_counted_and_the_number_of_events_is_bounded() {
    let patch = body(&json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": { "name": "e" },
    }));
    let api = Api::with([event(), patch, refused(404), event(), refused(409)]);
    let cluster = api.cluster(SHORT);
    let mut events = Events::new("driver-x7k2p");
    let of = |note: &str| Event {
        regarding: Regarding::Node("node-1".into()),
        reason: Reason::DriverFailed,
        action: "Report",
        note: note.into(),
    };
    for _ in 0..3 {
        events.record(&cluster, of("a")).await.unwrap();
    }
    // A name that exists is a try whose answer was lost.
    events.record(&cluster, of("b")).await.unwrap();
    let lines = api.lines();
    assert_eq!(lines[0], EVENT);
    assert!(lines[1].starts_with("PATCH /apis/events.k8s.io/v1/namespaces/default/events/node-1."));
    assert_eq!(lines[3..], [EVENT, EVENT]);
    let body: Value = serde_json::from_str(&api.requests()[1].body).unwrap();
    assert_eq!(body["series"]["count"], 2);
    for _ in 0..100 {
        if events.record(&cluster, of("c")).await.is_err() {
            break;
        }
    }
    assert!(api.requests().len() < 40, "{}", api.requests().len());
    let before = api.requests().len();
    for _ in 0..20 {
        let _ = events.record(&cluster, of("d")).await;
    }
    events.record(&cluster, of("d")).await.unwrap();
    assert!(api.requests().len() <= before + 36);
}

#[tokio::test]
async fn an_api_server_of_1_20_gets_events_of_the_node_in_its_own_form_from_the_second_on() {
    // As it judges them: the object's namespace has to be the event's.
    let api = Api::by(|request| {
        let event: Value = serde_json::from_str(&request.body).unwrap();
        match event["regarding"]["namespace"] == event["metadata"]["namespace"] {
            true => super::tests::event(),
            false => refused(422),
        }
    });
    let cluster = api.cluster(SHORT);
    let mut events = Events::new("driver-x7k2p");
    for note in ["a", "b"] {
        events.record(&cluster, of_node(Reason::DriverReady, note)).await.unwrap();
    }
    events.record(&cluster, of_pod(Reason::Evicted, "train")).await.unwrap();
    assert_eq!(api.lines(), [EVENT, EVENT, EVENT, ML]);
    let namespaces: Vec<Value> =
        bodies(&api, EVENT).iter().map(|event| event["regarding"]["namespace"].clone()).collect();
    assert_eq!(namespaces, [Value::Null, json!("default"), json!("default")]);
}

/// A policy compares it with the pod of the token.
#[tokio::test]
async fn the_reporting_instance_is_the_whole_name_of_the_pod() {
    let name = format!("{}-x7k2p", "a".repeat(120));
    let (api, long) = (Api::with([event(), event()]), "b".repeat(200));
    for (instance, wanted) in [(&name, &name), (&long, &format!("{}...", "b".repeat(125)))] {
        let mut events = Events::new(instance);
        events.record(&api.cluster(SHORT), of_pod(Reason::Evicted, "train")).await.unwrap();
        let body = bodies(&api, ML).pop().unwrap();
        assert_eq!(body["reportingInstance"], json!(wanted));
        assert_eq!(body["reportingController"], "longshore.dev/agent");
    }
}

#[tokio::test]
async fn an_event_that_is_refused_in_both_forms_is_a_failure() {
    let api = Api::by(|_| refused(422));
    let mut events = Events::new("p");
    let cluster = api.cluster(SHORT);
    for _ in 0..2 {
        let error = events.record(&cluster, of_node(Reason::DriverReady, "a")).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Status(422));
    }
    // A pod's event has its namespace in any case.
    events.record(&cluster, of_pod(Reason::Evicted, "train")).await.unwrap_err();
    assert_eq!(api.lines(), [EVENT, EVENT, EVENT, EVENT, ML]);
}

#[tokio::test]
async fn an_event_about_a_name_that_is_none_is_not_sent() {
    let api = Api::with([]);
    let pod = PodRef { namespace: "../x".into(), name: "a".into(), uid: "u".into() };
    let event = Event {
        regarding: Regarding::Pod(pod),
        reason: Reason::Evicted,
        action: "Evict",
        note: String::new(),
    };
    let error = Events::new("p").record(&api.cluster(SHORT), event).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Name);
    assert!(api.requests().is_empty());
}

const ML: &str = "POST /apis/events.k8s.io/v1/namespaces/ml/events";

fn of_node(reason: Reason, note: &str) -> Event {
    let regarding = Regarding::Node("node-1".into());
    Event { regarding, reason, action: "Drain", note: note.into() }
}

fn of_pod(reason: Reason, name: &str) -> Event {
    of_pod_in("ml", reason, name)
}

fn of_pod_in(namespace: &str, reason: Reason, name: &str) -> Event {
    let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: "u".into() };
    Event { regarding: Regarding::Pod(pod), reason, action: "Drain", note: String::new() }
}

#[tokio::test]
async fn events_beside_a_report_are_written_in_their_order_and_once() {
    let api = Api::with([node(), node(), patched(), event(), event(), event()]);
    let reporter = reporter(&api, options());
    reporter.event(of_node(Reason::Cordoned, "a"));
    reporter.event(of_pod(Reason::Evicted, "train"));
    assert!(reporter.finish(Some(report(Reason::DriverInUse)), LONG).await);
    assert!(reporter.finish(Some(report(Reason::DriverInUse)), LONG).await);
    assert_eq!(api.lines(), [GET, CONDITION, PATCH, EVENT, EVENT, ML]);
    let reasons = |line| -> Vec<String> {
        let reason = |body: &Value| body["reason"].as_str().unwrap().to_owned();
        bodies(&api, line).iter().map(reason).collect()
    };
    assert_eq!(reasons(EVENT), ["DriverInUse", "Cordoned"]);
    assert_eq!(reasons(ML), ["Evicted"]);
}

#[tokio::test]
async fn an_event_whose_call_failed_is_written_later() {
    let broken = || (0..SHORT.tries).map(|_| refused(500));
    let answers = [node(), node(), patched(), event()].into_iter().chain(broken());
    let api = Api::with(answers.chain([event()]));
    let reporter = reporter(&api, options());
    assert!(reporter.finish(Some(report(Reason::DriverInUse)), LONG).await);
    reporter.event(of_node(Reason::Cordoned, "a"));
    assert!(reporter.finish(None, LONG).await);
    assert_eq!(bodies(&api, EVENT).last().unwrap()["reason"], "Cordoned");
}

#[tokio::test]
async fn refused_events_of_pods_leave_those_of_the_node() {
    let answers = [node(), node(), patched(), event(), refused(403), event()];
    let api = Api::with(answers);
    let reporter = reporter(&api, options());
    for event in [
        of_pod(Reason::Evicted, "a"),
        of_pod(Reason::Evicted, "b"),
        of_node(Reason::Uncordoned, "a"),
    ] {
        reporter.event(event);
    }
    assert!(reporter.finish(Some(report(Reason::DriverInUse)), LONG).await);
    assert_eq!(api.lines()[3..], [EVENT, ML, EVENT]);
}

#[tokio::test]
async fn refused_events_in_one_namespace_leave_those_in_others() {
    let answers = [node(), node(), patched(), event(), refused(403), event(), event()];
    let api = Api::with(answers);
    let reporter = reporter(&api, options());
    for (namespace, name) in [("closed", "a"), ("ml", "b"), ("closed", "c"), ("ml", "d")] {
        reporter.event(of_pod_in(namespace, Reason::Evicted, name));
    }
    assert!(reporter.finish(Some(report(Reason::DriverInUse)), LONG).await);
    let closed = "POST /apis/events.k8s.io/v1/namespaces/closed/events";
    assert_eq!(api.lines()[3..], [EVENT, closed, ML, ML]);
}

#[tokio::test]
async fn a_holder_in_a_namespace_that_refuses_events_leaves_those_of_other_holders() {
    let api = Api::with([node(), node(), patched(), event(), refused(403), event()]);
    let reporter = reporter(&api, options());
    let (a, b) = (Some(("closed", "a-0", "uid-1")), Some(("ml", "b-0", "uid-2")));
    let held = held_by(&[("a", a), ("b", b), ("c", a)]);
    assert!(reporter.finish(Some(held), LONG).await);
    let closed = "POST /apis/events.k8s.io/v1/namespaces/closed/events";
    assert_eq!(api.lines()[3..], [EVENT, closed, ML]);
}

#[tokio::test]
async fn events_of_pods_leave_room_for_those_of_the_node() {
    let api = Api::with((0..12).map(|_| event()));
    let cluster = api.cluster(SHORT);
    let mut events = Events::new("driver-x7k2p");
    for n in 0..40 {
        events.record(&cluster, of_pod(Reason::HoldsDriver, &n.to_string())).await.unwrap();
    }
    for n in 0..40 {
        events.record(&cluster, of_node(Reason::Cordoned, &n.to_string())).await.unwrap();
    }
    let count = |line| api.lines().iter().filter(|found| *found == line).count();
    assert_eq!((count(ML), count(EVENT)), (8, 4));
}
