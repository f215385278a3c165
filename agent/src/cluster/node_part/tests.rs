use longshore_cluster::testing::{AnnotatedNode, Api, SHORT, ScriptedAnswer, refused};
use longshore_cluster::{Hindrance, NodeStatus, Options, PodRef, Report, STATUS_FORMAT};
use rstest::rstest;
use serde_json::{Value, json};

use super::super::tests::pod;
use super::*;

const LONG: Duration = Duration::from_secs(60);
const NODE: &str = "PATCH /api/v1/nodes/n";
const OF_NODE: &str = "POST /apis/events.k8s.io/v1/namespaces/default/events";
const OF_POD: &str = "POST /apis/events.k8s.io/v1/namespaces/ml/events";

#[tokio::test]
async fn a_pod_that_does_not_know_its_node_evicts_nothing() {
    let api = Api::with([]);
    let pod = pod(&api).unwrap().unwrap();
    assert!(pod.evictions(Duration::ZERO, true, None, &Telemetry::default()).unwrap().is_none());
}

/// The node, cordoned by longshore or by nobody.
fn node(version: u32, is_cordoned: bool) -> ScriptedAnswer {
    let mut metadata = json!({ "name": "n", "resourceVersion": version.to_string() });
    if is_cordoned {
        metadata["annotations"] = json!({ longshore_cluster::names::CORDONED: "{}" });
    }
    let spec = json!({ "unschedulable": is_cordoned });
    let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec });
    ScriptedAnswer::Body(200, node.to_string())
}

fn event() -> ScriptedAnswer {
    let event = json!({
        "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": { "name": "e" },
    });
    ScriptedAnswer::Body(201, event.to_string())
}

fn in_use() -> Report {
    Report {
        status: NodeStatus { format: STATUS_FORMAT, ..NodeStatus::default() },
        ready: false,
        reason: Reason::DriverInUse,
        message: "it waits".to_owned(),
        holders: Vec::new(),
    }
}

/// A reporter that has reported a driver in use, with four calls.
async fn reporter(api: &Api) -> Arc<Reporter> {
    let begun = Reporter::begin(api.cluster(SHORT), "n".to_owned(), Options::default());
    let reporter = Arc::new(begun.unwrap());
    assert!(reporter.finish(Some(in_use()), LONG).await);
    reporter
}

/// Calls from the fourth on, each with the reason of its event.
fn written(api: &Api) -> Vec<(String, String)> {
    let requests = api.requests().into_iter().skip(4);
    let reason = |body: &str| {
        let body: Value = serde_json::from_str(body).unwrap();
        body["reason"].as_str().unwrap_or_default().to_owned()
    };
    let line = |line: String| line.trim_end_matches('?').to_owned();
    requests.map(|request| (line(request.line), reason(&request.body))).collect()
}

async fn until(api: &Api, requests: usize) {
    while api.requests().len() < requests {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The request with one server, its report with another.
#[tokio::test]
async fn a_drain_has_its_events_on_the_node_and_its_pods_and_the_status_follows_at_once() {
    let reports = [node(1, false), node(1, false), node(1, false), event()];
    // The patch of the status, whose answer has the cordon, and the corrected one.
    let cordon = [node(2, true), node(2, true), event()];
    let evictions = [event(), event(), event(), event()];
    let uncordon = [node(3, false), node(3, false), event()];
    let to = Api::with(reports.into_iter().chain(cordon).chain(evictions).chain(uncordon));
    let reporter = reporter(&to).await;
    let own = AnnotatedNode::default();
    let env = |name: &str| match name {
        "POD_NAME" => Some("driver-x7k2p".to_owned()),
        "POD_NAMESPACE" => Some("gpu".to_owned()),
        "NODE_NAME" => Some("n".to_owned()),
        name => own.api.variable(name),
    };
    let pod = Pod::from_env(&env, own.api.files.path(), SHORT).unwrap().unwrap();
    let telemetry = Telemetry::default();
    let reports_to = Some(Arc::clone(&reporter));
    let evictions = pod.evictions(LONG, true, reports_to, &telemetry).unwrap().unwrap();
    evictions.want("driver 1 to 2", ["a".to_owned(), "b".to_owned()]);
    let request = own.request().await;
    assert_eq!(
        (&request["pod"], &request["pods"]),
        (&json!("gpu/driver-x7k2p"), &json!(["a", "b"]))
    );
    let of = |name: &str| json!({ "namespace": "ml", "name": name, "uid": name });
    let blocked = json!({ "namespace": "ml", "name": "b", "uid": "b", "why": "opted-out" });
    let cordoned = json!({ "state": "draining", "cordoned": "by-longshore" });
    own.answer(cordoned.clone()).await;
    until(&to, 7).await;
    let mut evicts = cordoned;
    (evicts["evicted"], evicts["blocked"]) = (json!([of("a")]), json!([blocked]));
    own.answer(evicts).await;
    until(&to, 11).await;
    let drain = telemetry.live().node.expect("a part");
    assert_eq!((drain.cordoned, drain.evicted, drain.blocked), (true, 1, 1));
    own.annotate(longshore_cluster::names::CORDONED, Some("{}"));
    assert!(!evictions.withdrawn(Duration::from_secs(2)).await, "it is cordoned");
    assert_eq!(own.annotation(longshore_cluster::names::EVICT_REQUEST), None);
    own.annotate(longshore_cluster::names::CORDONED, None);
    assert!(evictions.withdrawn(LONG).await);
    until(&to, 14).await;
    assert!(!telemetry.live().node.expect("a part").cordoned);
    assert!(reporter.finish(None, LONG).await);
    let wanted = [
        (NODE, ""),
        (NODE, ""),
        (OF_NODE, "Cordoned"),
        (OF_NODE, "Evicted"),
        (OF_POD, "Evicted"),
        (OF_NODE, "EvictionBlocked"),
        (OF_POD, "EvictionBlocked"),
        (NODE, ""),
        (NODE, ""),
        (OF_NODE, "Uncordoned"),
    ];
    let wanted = wanted.map(|(line, reason)| (line.to_owned(), reason.to_owned()));
    assert_eq!(written(&to), wanted);
    let is_cordoned = |at: usize| to.requests()[at].body.contains(r#"\"cordoned\":true"#);
    assert_eq!([4, 5, 11, 12].map(is_cordoned), [false, true, true, false]);
}

fn train() -> PodRef {
    PodRef { namespace: "ml".to_owned(), name: "train".to_owned(), uid: "u".to_owned() }
}

/// Events without a cordon, and the reason and a part of the note that the node gets.
#[rstest]
#[case::blocked(
    EvictEvent::Blocked(train(), Hindrance::Static),
    Some("EvictionBlocked"),
    "pod ml/train uses the driver and is not evicted: a static pod"
)]
#[case::expired(
    EvictEvent::Expired(vec![(train(), Hindrance::OptedOut)]),
    Some("EvictionBlocked"),
    "after 60 s of evictions (ml/train: its label"
)]
#[case::overruled(EvictEvent::Overruled, Some("EvictionBlocked"), "another program uncordoned")]
#[case::refused(EvictEvent::Refused("403".into()), Some("EvictionBlocked"), "403; the change waits")]
#[case::unreachable(EvictEvent::Unreachable("late".into()), None, "late; it is asked again")]
#[case::unanswered(
    EvictEvent::Unanswered(LONG),
    Some("EvictionBlocked"),
    "no controller drains this node: none (`longshore evictor`) has answered the request for evictions within 60 s"
)]
#[case::waits(EvictEvent::Waits, None, "other nodes first")]
#[case::by_another(EvictEvent::CordonedByAnother, None, "not by longshore")]
#[tokio::test]
async fn an_event_that_a_person_has_to_see_is_one_of_the_node(
    #[case] event_reported: EvictEvent,
    #[case] reason: Option<&str>,
    #[case] note: &str,
) {
    let api =
        Api::with([node(1, false), node(1, false), node(1, false), event(), event(), event()]);
    let reporter = reporter(&api).await;
    let text = described(&event_reported, LONG);
    assert!(text.contains(note), "{text}");
    report(&event_reported, text, &reporter);
    assert!(reporter.finish(None, LONG).await);
    let written = written(&api);
    assert_eq!(written.first().map(|(_, reason)| reason.as_str()), reason);
    let is_of_pod = matches!(event_reported, EvictEvent::Blocked(..));
    assert_eq!(written.iter().any(|(line, _)| line == OF_POD), is_of_pod);
    if reason.is_some() {
        let body: Value = serde_json::from_str(&api.requests()[4].body).unwrap();
        assert_eq!(body["type"], "Warning");
        assert!(body["note"].as_str().unwrap().contains(note), "{body}");
    }
}

#[tokio::test]
async fn a_cluster_that_refuses_events_stops_no_drain() {
    let reports = [node(1, false), node(1, false), node(1, false), refused(403)];
    let api = Api::with(reports.into_iter().chain([refused(403)]));
    let reporter = reporter(&api).await;
    for reported in [EvictEvent::Evicted(train()), EvictEvent::Evicted(train())] {
        report(&reported, "note".to_owned(), &reporter);
    }
    assert!(reporter.finish(None, LONG).await);
    assert_eq!(api.lines()[3..], [OF_NODE, OF_POD]);
}

/// A cordon that an earlier agent made for the same change has no event of its own.
#[rstest]
#[case::own(&[EvictEvent::Cordoned(String::new())], true)]
#[case::of_an_earlier_agent(&[EvictEvent::Evicted(train())], true)]
#[case::of_an_earlier_agent_with_a_pod_that_stays(&[EvictEvent::Blocked(train(), Hindrance::Static)], true)]
#[case::of_another_program(&[EvictEvent::CordonedByAnother, EvictEvent::Evicted(train())], false)]
#[case::undone(&[EvictEvent::Cordoned(String::new()), EvictEvent::Uncordoned], false)]
#[case::overruled(&[EvictEvent::Cordoned(String::new()), EvictEvent::Overruled], false)]
#[case::silent_server(&[EvictEvent::Cordoned(String::new()), EvictEvent::Unreachable(String::new())], true)]
fn a_cordon_is_counted_as_longshores_own(#[case] events: &[EvictEvent], #[case] cordoned: bool) {
    let mut drain = NodeDrain::default();
    events.iter().for_each(|event| count(event, &mut drain));
    assert_eq!(drain.cordoned, cordoned, "{drain:?}");
}

#[test]
fn a_controller_that_does_not_answer_is_told_until_it_does() {
    let mut drain = NodeDrain::default();
    for (event, wanted) in [
        (EvictEvent::Unanswered(LONG), true),
        (EvictEvent::Unreachable(String::new()), true),
        (EvictEvent::Waits, false),
        (EvictEvent::Unanswered(LONG), true),
        (EvictEvent::Cordoned(String::new()), false),
    ] {
        count(&event, &mut drain);
        assert_eq!(drain.unanswered, wanted, "{event:?}");
    }
}
