//! Drains of a node of a stand-in cluster that keeps its state.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::decision::Change;
use super::rate::Rate;
use super::reconciler::{Drain, DrainReconciler};
use super::*;
use crate::pods::ActingPod;
use crate::testing::{Api, Request, SHORT, ScriptedAnswer, pass, refused};
use crate::{Limits, names};

const LONG: Duration = Duration::from_secs(60);
const PACE: EvictPace = EvictPace {
    deadline: LONG,
    first: Duration::from_millis(1),
    longest: Duration::from_millis(4),
    refused: LONG,
};
const GET: &str = "GET /api/v1/nodes/node-1";
const PATCH: &str = "PATCH /api/v1/nodes/node-1";
const WHY: &str = "driver 535.261.03 to 550.163.01";
const OWN_POD: &str = "driver-x7k2p";

/// Consequence of an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obeys {
    /// The pod is gone at once.
    AtOnce,
    /// It stays, and is marked as ending.
    Never,
    /// Its budget allows no eviction.
    Budget,
}

/// A pod of the stand-in cluster.
#[derive(Debug, Clone)]
struct FakePod {
    name: &'static str,
    owner: Option<&'static str>,
    label: Option<&'static str>,
    obeys: Obeys,
    ending: bool,
}

fn pod(name: &'static str) -> FakePod {
    FakePod { name, owner: Some("Job"), label: None, obeys: Obeys::AtOnce, ending: false }
}

/// Uid of a pod, which its name gives.
fn uid(name: &str) -> String {
    format!("uid-of-{name}")
}

#[derive(Debug, Default)]
struct State {
    unschedulable: bool,
    record: Option<String>,
    version: u32,
    pods: Vec<FakePod>,
    /// Names of evicted pods, in order.
    evicted: Vec<String>,
    /// Number of requests so far.
    asked: usize,
    /// Request, counted from 0, that takes effect and is not answered.
    dies_at: Option<usize>,
    /// Changes of the node by other programs that come before each write.
    conflicts: u32,
    /// Version of the Eviction API that the server knows alone.
    only: Option<&'static str>,
    /// Its answer to the other one.
    unknown: u16,
    forbids: Option<&'static str>,
}

impl State {
    fn node(&self) -> ScriptedAnswer {
        let mut metadata = json!({ "name": "node-1", "resourceVersion": self.version.to_string() });
        if let Some(record) = &self.record {
            metadata["annotations"] = json!({ names::CORDONED: record });
        }
        let spec = match self.unschedulable {
            true => json!({ "unschedulable": true, "podCIDR": "10.0.0.0/24" }),
            false => json!({ "podCIDR": "10.0.0.0/24" }),
        };
        let node =
            json!({ "kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec });
        ScriptedAnswer::Body(200, node.to_string())
    }

    fn patch(&mut self, body: &Value) -> ScriptedAnswer {
        if self.conflicts > 0 {
            (self.conflicts, self.version) = (self.conflicts - 1, self.version + 1);
        }
        if body["metadata"]["resourceVersion"] != json!(self.version.to_string()) {
            return refused(409);
        }
        if let Some(unschedulable) = body["spec"].get("unschedulable") {
            self.unschedulable = unschedulable.as_bool().unwrap_or(false);
        }
        if let Some(record) = body["metadata"]["annotations"].get(names::CORDONED) {
            self.record = record.as_str().map(str::to_owned);
        }
        self.version += 1;
        assert!(self.record.is_none() || self.unschedulable, "a record of no cordon");
        self.node()
    }

    fn list(&self) -> ScriptedAnswer {
        let items = self.pods.iter().map(|pod| {
            let mut metadata = json!({
                "name": pod.name, "namespace": "ml", "uid": uid(pod.name), "labels": {},
            });
            if let Some(kind) = pod.owner {
                metadata["ownerReferences"] = json!([
                    { "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true }
                ]);
            }
            if let Some(value) = pod.label {
                metadata["labels"] = json!({ names::EVICT: value });
            }
            if pod.ending {
                metadata["deletionTimestamp"] = json!("2026-11-23T03:00:00Z");
            }
            json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata })
        });
        let list = json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": "1" }, "items": items.collect::<Vec<_>>(),
        });
        ScriptedAnswer::Body(200, list.to_string())
    }

    fn evict(&mut self, name: &str, body: &Value) -> ScriptedAnswer {
        let version = body["apiVersion"].as_str().unwrap();
        if self.only.is_some_and(|only| only != version) {
            return refused(self.unknown);
        }
        assert_eq!(body["deleteOptions"]["preconditions"]["uid"], json!(uid(name)));
        let Some(at) = self.pods.iter().position(|pod| pod.name == name) else {
            return refused(404);
        };
        match self.pods[at].obeys {
            Obeys::Budget => {
                let cause =
                    json!({ "reason": "DisruptionBudget", "message": "budget-1 needs 1 pod" });
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "Cannot evict pod.", "reason": "TooManyRequests", "code": 429,
                    "details": { "causes": [cause] },
                });
                return ScriptedAnswer::Body(429, status.to_string());
            }
            Obeys::AtOnce => drop(self.pods.remove(at)),
            Obeys::Never => self.pods[at].ending = true,
        }
        self.evicted.push(name.to_owned());
        let done =
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201 });
        ScriptedAnswer::Body(201, done.to_string())
    }

    fn answer(&mut self, request: &Request) -> ScriptedAnswer {
        let (method, path) = request.line.split_once(' ').unwrap();
        let path = path.split('?').next().unwrap();
        let body = serde_json::from_str(&request.body).unwrap_or_default();
        let number = self.asked;
        self.asked += 1;
        let name = path.strip_prefix("/api/v1/namespaces/ml/pods/");
        let evicted = name.and_then(|rest| rest.strip_suffix("/eviction"));
        if self.forbids.is_some_and(|part| request.line.contains(part)) {
            return refused(403);
        }
        let answer = match (method, path, evicted) {
            ("GET", "/api/v1/nodes/node-1", _) => self.node(),
            ("PATCH", "/api/v1/nodes/node-1", _) => self.patch(&body),
            ("GET", "/api/v1/pods", _) => self.list(),
            ("POST", _, Some(name)) => self.evict(name, &body),
            _ => panic!("{}", request.line),
        };
        if self.dies_at == Some(number) { ScriptedAnswer::Silence } else { answer }
    }
}

/// A stand-in cluster.
struct Scene {
    api: Api,
    state: Arc<Mutex<State>>,
}

impl Scene {
    fn with(pods: Vec<FakePod>) -> Self {
        let state = Arc::new(Mutex::new(State { version: 1, pods, ..State::default() }));
        let answering = Arc::clone(&state);
        let api = Api::by(move |request| answering.lock().unwrap().answer(request));
        Self { api, state }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// True if pods are scheduled to the node; and its record.
    fn node(&self) -> (bool, bool) {
        self.change(|state| (state.unschedulable, state.record.is_some()))
    }

    fn evicted(&self) -> Vec<String> {
        self.change(|state| state.evicted.clone())
    }

    /// Begins the part of an agent in this pod.
    fn agent(&self, own: &str, pace: EvictPace, limits: Limits) -> Agent {
        let (sender, reported) = unbounded_channel();
        let tell = move |event: &EvictEvent| {
            let _ = sender.send(event.clone());
        };
        let place =
            ActingPod { node: "node-1".into(), namespace: "gpu".into(), pod: "evictor".into() };
        let (cluster, rate) = (Arc::new(self.api.cluster(limits)), Arc::new(Rate::new(10_000)));
        let evictions = DrainReconciler::begin(cluster, place, pace, rate, tell);
        Agent { evictions, reported, own: own.to_owned() }
    }

    /// Begins one whose change waits for these pods.
    fn waiting(&self, pods: &[&str], pace: EvictPace) -> Agent {
        let agent = self.agent(OWN_POD, pace, SHORT);
        agent.waits_for(pods);
        agent
    }

    /// Waits until this many requests were made.
    async fn asked(&self, number: usize) {
        while self.change(|state| state.asked) < number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        while !self.change(|state| holds(state)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Agent {
    evictions: Drain,
    own: String,
    reported: UnboundedReceiver<EvictEvent>,
}

impl Agent {
    fn waits_for(&self, pods: &[&str]) {
        self.waits(WHY, pods);
    }

    /// Waits with a change of this reason, which is its id as well.
    fn waits(&self, why: &str, pods: &[&str]) {
        self.evictions.want(Change {
            id: why.to_owned(),
            reason: why.to_owned(),
            agent: format!("ml/{}", self.own),
            pods: pods.iter().map(|name| uid(name)).collect(),
            deadline: LONG,
        });
    }

    async fn next(&mut self) -> EvictEvent {
        tokio::time::timeout(LONG, self.reported.recv()).await.unwrap().unwrap()
    }

    /// Waits for the next events; returns their names.
    async fn reported(&mut self, number: usize) -> Vec<String> {
        let mut names = Vec::new();
        for _ in 0..number {
            names.push(short(&self.next().await));
        }
        names
    }
}

/// Name of an event, with the pod's.
fn short(event: &EvictEvent) -> String {
    let why = |why: &Hindrance| match why {
        Hindrance::OptedOut => "opted out",
        Hindrance::Static => "static",
        Hindrance::NoController => "no controller",
        Hindrance::Budget(_) => "budget",
        Hindrance::Forbidden(_) => "forbidden",
        Hindrance::Failed(_) => "failed",
        Hindrance::Ending => "ending",
    };
    match event {
        EvictEvent::Cordoned(reason) => format!("cordoned: {reason}"),
        EvictEvent::CordonedByAnother => "cordoned by another".into(),
        EvictEvent::Evicted(pod) => format!("evicted {pod}"),
        EvictEvent::Blocked(pod, reason) => format!("{pod}: {}", why(reason)),
        EvictEvent::Overruled => "overruled".into(),
        EvictEvent::Expired(left) => {
            let left = left.iter().map(|(pod, reason)| format!(" {pod}: {}", why(reason)));
            format!("expired:{}", left.collect::<String>())
        }
        EvictEvent::Uncordoned => "uncordoned".into(),
        EvictEvent::Forgotten => "forgotten".into(),
        EvictEvent::Refused(_) => "refused".into(),
        EvictEvent::Unreachable(_) => "unreachable".into(),
        EvictEvent::Waits | EvictEvent::Unanswered(_) => panic!("{event:?} is one of an agent"),
    }
}

const CORDONED: &str = "cordoned: driver 535.261.03 to 550.163.01";

#[tokio::test]
async fn the_node_is_cordoned_only_the_users_are_evicted_and_the_end_uncordons() {
    let scene = Scene::with(vec![pod("train"), pod("idle"), pod(OWN_POD)]);
    let mut agent = scene.waiting(&["train", OWN_POD], PACE);
    assert_eq!(agent.reported(2).await, [CORDONED, "evicted ml/train"]);
    assert_eq!(scene.node(), (true, true));
    let record = scene.change(|state| state.record.clone()).unwrap();
    let record: crate::CordonRecord = serde_json::from_str(&record).unwrap();
    assert_eq!((record.pod.as_str(), record.reason.as_str()), ("ml/driver-x7k2p", WHY));
    assert!(record.since.ends_with('Z') && record.since.len() == 20, "{}", record.since);
    let lines = scene.api.requests();
    assert!(lines[2].line.contains("fieldSelector=spec.nodeName%3Dnode-1"), "{}", lines[2].line);
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(agent.reported(1).await, ["uncordoned"]);
    assert_eq!(scene.node(), (false, false));
    assert_eq!(scene.evicted(), ["train"]);
}

#[tokio::test]
async fn users_that_come_later_are_evicted_too() {
    let scene = Scene::with(vec![pod("a"), pod("b")]);
    let mut agent = scene.waiting(&["a"], PACE);
    assert_eq!(agent.reported(2).await, [CORDONED, "evicted ml/a"]);
    agent.waits_for(&["b"]);
    assert_eq!(agent.reported(1).await, ["evicted ml/b"]);
    assert_eq!(scene.change(|state| state.version), 2, "cordoned once");
}

#[tokio::test]
async fn a_pod_of_a_daemon_set_is_evicted_when_no_other_user_is_left() {
    let exporter = FakePod { owner: Some("DaemonSet"), ..pod("exporter") };
    let slow = FakePod { obeys: Obeys::Never, ..pod("slow") };
    let scene = Scene::with(vec![exporter, slow, pod("train")]);
    let mut agent = scene.waiting(&["exporter", "slow", "train"], PACE);
    assert_eq!(agent.reported(3).await, [CORDONED, "evicted ml/slow", "evicted ml/train"]);
    scene.asked(scene.change(|state| state.asked) + 6).await;
    assert_eq!(scene.evicted(), ["slow", "train"]);
    scene.change(|state| state.pods.retain(|pod| pod.name != "slow"));
    assert_eq!(agent.reported(1).await, ["evicted ml/exporter"]);
}

#[tokio::test]
async fn pods_that_are_not_to_be_evicted_are_named_and_left() {
    let opted = FakePod { label: Some("false"), ..pod("opted") };
    let bare = FakePod { owner: None, ..pod("bare") };
    let fixed = FakePod { owner: Some("Node"), ..pod("fixed") };
    let scene = Scene::with(vec![opted, bare, fixed]);
    let mut agent = scene.waiting(&["opted", "bare", "fixed"], PACE);
    let mut reported = agent.reported(4).await;
    reported.sort();
    assert_eq!(
        reported,
        [CORDONED, "ml/bare: no controller", "ml/fixed: static", "ml/opted: opted out"]
    );
    scene.asked(scene.change(|state| state.asked) + 4).await;
    assert!(scene.evicted().is_empty());
    assert!(agent.reported.is_empty(), "each is named once");
}

/// Pods that stay until the time limit, and the events.
#[rstest]
#[case::budget(Obeys::Budget, &[CORDONED, "ml/train: budget", "uncordoned", "expired: ml/train: budget"])]
#[case::ignores(Obeys::Never, &[CORDONED, "evicted ml/train", "uncordoned", "expired: ml/train: ending"])]
#[tokio::test]
async fn after_the_time_limit_the_node_is_uncordoned_and_nothing_more_is_asked(
    #[case] obeys: Obeys,
    #[case] events: &[&str],
) {
    let scene = Scene::with(vec![FakePod { obeys, ..pod("train") }]);
    let pace = EvictPace { deadline: Duration::from_millis(100), ..PACE };
    let mut agent = scene.waiting(&["train"], pace);
    assert_eq!(agent.reported(4).await, events);
    assert_eq!(scene.node(), (false, false));
    let asked = scene.api.lines().len();
    agent.waits_for(&["train", "another"]);
    pass(10 * LONG).await;
    agent.waits("driver 535.261.03 to 570.1", &["train"]);
    assert_eq!(agent.reported(1).await, ["cordoned: driver 535.261.03 to 570.1"]);
    assert_eq!(scene.api.lines()[asked..][..2], [GET, PATCH], "the same change waits without");
}

#[tokio::test]
async fn a_budget_that_allows_it_later_is_asked_again_with_growing_pauses() {
    let scene = Scene::with(vec![FakePod { obeys: Obeys::Budget, ..pod("train") }]);
    let pause = Duration::from_millis(20);
    let pace = EvictPace { first: pause, longest: LONG, ..PACE };
    let began = std::time::Instant::now();
    let mut agent = scene.waiting(&["train"], pace);
    let posts = |lines: &[String]| lines.iter().filter(|line| line.starts_with("POST")).count();
    while posts(&scene.api.lines()) < 6 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The five pauses are 10 ms, 20 ms, 40 ms and so on at least.
    assert!(began.elapsed() >= pause / 2 * 31, "{:?}", began.elapsed());
    scene.change(|state| state.pods[0].obeys = Obeys::AtOnce);
    assert_eq!(agent.reported(1).await, [CORDONED]);
    let EvictEvent::Blocked(_, why) = agent.next().await else { panic!("no budget") };
    assert!(why.to_string().ends_with("429: Cannot evict pod. budget-1 needs 1 pod"), "{why}");
    assert_eq!(agent.reported(1).await, ["evicted ml/train"]);
}

#[tokio::test]
async fn a_node_that_another_program_cordoned_before_stays_so() {
    let scene = Scene::with(vec![pod("train")]);
    scene.change(|state| state.unschedulable = true);
    let mut agent = scene.waiting(&["train"], PACE);
    assert_eq!(agent.reported(2).await, ["cordoned by another", "evicted ml/train"]);
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(scene.node(), (true, false));
    assert_eq!(scene.change(|state| state.version), 1, "nothing was written");
}

#[tokio::test]
async fn a_cordon_of_another_program_that_comes_first_is_not_taken_for_an_own_one() {
    let scene = Scene::with(vec![pod("train")]);
    // It cordons between the reading and the write.
    scene.change(|state| state.conflicts = 1);
    let state = Arc::clone(&scene.state);
    let other = Api::by(move |request| {
        let mut state = state.lock().unwrap();
        if state.conflicts > 0 && request.line.starts_with("PATCH") {
            state.unschedulable = true;
        }
        state.answer(request)
    });
    let scene = Scene { api: other, ..scene };
    let mut agent = scene.waiting(&["train"], PACE);
    assert_eq!(agent.reported(2).await, ["cordoned by another", "evicted ml/train"]);
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(scene.node(), (true, false));
}

/// An administrator takes the cordon over by removing the annotation.
#[tokio::test]
async fn a_cordon_without_its_record_is_no_longer_an_own_one() {
    let scene = Scene::with(vec![FakePod { obeys: Obeys::Budget, ..pod("train") }]);
    let mut agent = scene.waiting(&["train"], PACE);
    assert_eq!(agent.reported(2).await, [CORDONED, "ml/train: budget"]);
    scene.change(|state| (state.record, state.version) = (None, 9));
    scene.asked(scene.change(|state| state.asked) + 6).await;
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(scene.node(), (true, false));
}

/// Other programs that uncordon the node: kubectl alone, and one that removes the annotation, too.
#[rstest]
#[case::kubectl(false, &["forgotten", "overruled"])]
#[case::all(true, &["overruled"])]
#[tokio::test]
async fn a_node_that_another_program_uncordons_is_not_cordoned_again(
    #[case] all: bool,
    #[case] reported: &[&str],
) {
    let scene = Scene::with(vec![FakePod { obeys: Obeys::Budget, ..pod("train") }]);
    let mut agent = scene.waiting(&["train"], PACE);
    assert_eq!(agent.reported(2).await, [CORDONED, "ml/train: budget"]);
    scene.change(|state| {
        state.unschedulable = false;
        if all {
            state.record = None;
        }
        state.version += 1;
    });
    assert_eq!(agent.reported(reported.len()).await, reported);
    assert_eq!(scene.node(), (false, false));
    let asked = scene.api.lines().len();
    agent.waits_for(&["train", "b"]);
    pass(10 * LONG).await;
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(scene.api.lines()[asked..], [GET], "of the withdrawal alone");
    assert_eq!(scene.node(), (false, false));
    assert!(agent.reported.is_empty());
}

/// Servers that know one version of the Eviction API, and their answer to the other one; the calls for two
/// pods of which the first is gone.
#[rstest]
#[case::new_alone("policy/v1", 400, &["v1", "v1beta1", "v1"])]
#[case::old_alone("policy/v1beta1", 400, &["v1", "v1beta1", "v1beta1"])]
#[case::old_alone_without_the_path("policy/v1beta1", 404, &["v1", "v1beta1", "v1", "v1beta1"])]
#[tokio::test]
async fn the_version_of_the_eviction_api_is_found_out(
    #[case] only: &'static str,
    #[case] unknown: u16,
    #[case] wanted: &[&str],
) {
    let scene = Scene::with(vec![pod("gone"), pod("train")]);
    scene.change(|state| (state.only, state.unknown) = (Some(only), unknown));
    let state = Arc::clone(&scene.state);
    let api = Api::by(move |request| {
        let mut state = state.lock().unwrap();
        let answer = state.answer(request);
        // It ends by itself after it was listed.
        if request.line.contains("/api/v1/pods?") {
            state.pods.retain(|pod| pod.name != "gone");
        }
        answer
    });
    let scene = Scene { api, ..scene };
    let mut agent = scene.waiting(&["gone", "train"], PACE);
    assert_eq!(agent.reported(2).await, [CORDONED, "evicted ml/train"]);
    let posts = scene.api.requests().into_iter().filter(|request| request.line.starts_with("POST"));
    let version = |body: &str| serde_json::from_str::<Value>(body).unwrap()["apiVersion"].clone();
    let versions: Vec<Value> = posts.map(|request| version(&request.body)).collect();
    let wanted: Vec<Value> = wanted.iter().map(|name| json!(format!("policy/{name}"))).collect();
    assert_eq!(versions, wanted);
}

/// Refused calls, and the events: evictions are named for each pod, the others end the try.
#[rstest]
#[case::eviction("/eviction", &[CORDONED, "ml/train: forbidden"])]
#[case::patch("PATCH", &["refused"])]
#[case::node("GET /api/v1/nodes", &["refused"])]
#[case::pods("/api/v1/pods?", &[CORDONED, "refused"])]
#[tokio::test]
async fn a_refused_call_is_told_once(#[case] forbids: &'static str, #[case] events: &[&str]) {
    let scene = Scene::with(vec![pod("train")]);
    scene.change(|state| state.forbids = Some(forbids));
    let pace = EvictPace { refused: Duration::from_millis(1), ..PACE };
    let mut agent = scene.waiting(&["train"], pace);
    assert_eq!(agent.reported(events.len()).await, events);
    // It is refused several times more.
    scene.asked(scene.change(|state| state.asked) + 12).await;
    let is_cordoned = scene.node().0;
    scene.change(|state| state.forbids = None);
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(scene.node(), (false, false));
    // The call may succeed once before the withdrawal.
    let mut later = Vec::new();
    while let Ok(event) = agent.reported.try_recv() {
        later.push(short(&event));
    }
    assert!(!later.iter().any(|event| events.contains(&event.as_str())), "{later:?}");
    assert!(!is_cordoned || later.contains(&"uncordoned".to_owned()), "{later:?}");
}

#[tokio::test]
async fn pods_that_cannot_be_listed_keep_the_node_cordoned_no_longer_than_the_limit() {
    let scene = Scene::with(vec![pod("train")]);
    scene.change(|state| state.forbids = Some("/api/v1/pods?"));
    let pace = EvictPace { deadline: Duration::from_millis(50), ..PACE };
    let mut agent = scene.waiting(&["train"], pace);
    assert_eq!(agent.reported(4).await, [CORDONED, "refused", "uncordoned", "expired:"]);
}

/// As after the removal of the release that the agent's role belongs to.
#[tokio::test]
async fn a_cordon_that_the_cluster_refuses_to_undo_is_not_said_to_be_undone() {
    for forbids in ["PATCH", "GET /api/v1/nodes"] {
        let scene = Scene::with(vec![pod("train")]);
        let slow = EvictPace { first: LONG, longest: LONG, ..PACE };
        let mut agent = scene.waiting(&["train"], slow);
        assert_eq!(agent.reported(2).await, [CORDONED, "evicted ml/train"]);
        scene.change(|state| state.forbids = Some(forbids));
        assert!(!agent.evictions.withdrawn(LONG).await, "{forbids}");
    }
    let scene = Scene::with(vec![]);
    scene.change(|state| state.forbids = Some("GET /api/v1/nodes"));
    assert!(scene.agent(OWN_POD, PACE, SHORT).evictions.withdrawn(LONG).await, "none was made");
}

/// An agent that takes long to get its driver ready desires nothing yet.
#[tokio::test]
async fn without_a_desired_drain_an_earlier_cordon_lasts_no_longer_than_the_time_limit() {
    let scene = Scene::with(vec![]);
    scene.change(|state| (state.unschedulable, state.record) = (true, Some("{}".to_owned())));
    let limit = Duration::from_millis(40);
    let agent = scene.agent(OWN_POD, EvictPace { deadline: limit, ..PACE }, SHORT);
    let begun = std::time::Instant::now();
    scene.until(|state| !state.unschedulable).await;
    assert!(begun.elapsed() >= limit);
    assert_eq!(scene.node(), (false, false));
    agent.waits_for(&["train"]);
    scene.until(|state| state.unschedulable).await;
}

/// A restarted agent, whose change waits as that of the agent before.
#[rstest]
#[case::over("2026-01-01T00:00:00Z", &["uncordoned", "expired:"], &[])]
#[case::in_the_future("2999-01-01T00:00:00Z", &["evicted ml/train"], &["train"])]
#[tokio::test]
async fn the_time_limit_goes_on_from_the_record_of_an_earlier_agent(
    #[case] since: &str,
    #[case] events: &[&str],
    #[case] evicted: &[&str],
) {
    let scene = Scene::with(vec![pod("train")]);
    let record = json!({ "pod": "ml/before", "since": since, "reason": WHY }).to_string();
    scene.change(|state| (state.unschedulable, state.record) = (true, Some(record)));
    let mut agent = scene.waiting(&["train"], PACE);
    assert_eq!(agent.reported(events.len()).await, events);
    assert_eq!(scene.evicted(), evicted);
}

#[tokio::test]
async fn a_storm_of_conflicts_is_outlasted() {
    let scene = Scene::with(vec![pod("train")]);
    scene.change(|state| state.conflicts = 8);
    let mut agent = scene.waiting(&["train"], PACE);
    assert_eq!(agent.reported(2).await, [CORDONED, "evicted ml/train"]);
    scene.change(|state| state.conflicts = 8);
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(scene.node(), (false, false));
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_and_asked_again() {
    for hangs in 0..4 {
        let scene = Scene::with(vec![pod("train")]);
        scene.change(|state| state.dies_at = Some(hangs));
        let limits = Limits { call: Duration::from_millis(200), tries: 1, ..SHORT };
        let mut agent = scene.agent(OWN_POD, PACE, limits);
        agent.waits_for(&["train"]);
        while short(&agent.next().await) != "unreachable" {}
        scene.until(|state| state.evicted == ["train"]).await;
        assert!(agent.evictions.withdrawn(LONG).await, "{hangs}");
        assert_eq!(scene.node(), (false, false), "{hangs}");
    }
}

#[tokio::test]
async fn the_end_of_an_agent_does_not_wait_for_a_server_that_hangs() {
    let scene = Scene::with(vec![pod("train")]);
    let mut agent = scene.waiting(&["train"], PACE);
    agent.reported(2).await;
    scene.change(|state| state.dies_at = Some(state.asked + 1));
    let began = std::time::Instant::now();
    assert!(!agent.evictions.withdrawn(Duration::from_millis(100)).await);
    assert!(began.elapsed() < Duration::from_secs(4));
}

/// Number of calls of a drain's first two rounds, at each of which an agent is killed.
const CALLS: usize = 7;

impl Scene {
    /// Runs the agent after a killed one, whose change waits or does not, until its driver is ready.
    async fn is_put_right_by_the_next(&self, waits: bool, cordoned_before: bool) {
        let next = self.agent("driver-next", PACE, SHORT);
        if waits {
            next.waits_for(&["train"]);
            self.until(|state| !state.evicted.is_empty()).await;
        }
        assert!(next.evictions.withdrawn(LONG).await);
        assert_eq!(self.node(), (cordoned_before, false));
    }
}

/// An agent is killed at each of its calls, which takes effect and whose answer it does not see: the next one
/// leaves no cordon of longshore's, and every one of others.
#[rstest]
#[tokio::test]
async fn an_agent_that_is_killed_at_any_call_leaves_nothing_to_the_one_after_the_next(
    #[values(false, true)] cordoned_before: bool,
    #[values(false, true)] waits_again: bool,
) {
    for killed_at in 0..CALLS {
        let scene = Scene::with(vec![FakePod { obeys: Obeys::Never, ..pod("train") }]);
        scene.change(|state| {
            (state.unschedulable, state.dies_at) = (cordoned_before, Some(killed_at));
        });
        let first = scene.waiting(&["train"], PACE);
        scene.asked(killed_at + 1).await;
        drop(first);
        scene.is_put_right_by_the_next(waits_again, cordoned_before).await;
    }
}

/// The same while it undoes its cordon: before the reading, after it, and after the write.
#[rstest]
#[tokio::test]
async fn an_agent_that_is_killed_while_it_uncordons_leaves_nothing(
    #[values(0, 1, 2)] calls: usize,
    #[values(false, true)] waits_again: bool,
) {
    let scene = Scene::with(vec![FakePod { obeys: Obeys::Never, ..pod("train") }]);
    let slow = EvictPace { first: LONG, longest: LONG, ..PACE };
    let mut first = scene.waiting(&["train"], slow);
    assert_eq!(first.reported(2).await, [CORDONED, "evicted ml/train"]);
    let asked = scene.change(|state| {
        state.dies_at = calls.checked_sub(1).map(|last| state.asked + last);
        state.asked
    });
    if calls > 0 {
        first.evictions.withdraw();
    }
    scene.asked(asked + calls).await;
    drop(first);
    scene.is_put_right_by_the_next(waits_again, false).await;
}

/// The old pod ends while the new one begins.
#[tokio::test]
async fn two_agents_at_once_leave_no_cordon() {
    let scene = Scene::with(vec![FakePod { obeys: Obeys::Budget, ..pod("train") }]);
    let (old, new) = (scene.waiting(&["train"], PACE), scene.agent("driver-next", PACE, SHORT));
    scene.until(|state| state.record.is_some()).await;
    new.waits_for(&["train"]);
    assert!(old.evictions.withdrawn(LONG).await);
    drop(old);
    assert!(new.evictions.withdrawn(LONG).await);
    assert_eq!(scene.node(), (false, false));
}

#[tokio::test]
async fn nothing_is_called_before_anything_is_desired() {
    let scene = Scene::with(vec![]);
    let agent = scene.agent(OWN_POD, PACE, SHORT);
    // Then begins the search for an earlier cordon.
    pass(LONG - Duration::from_secs(1)).await;
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(scene.api.lines(), [GET], "of the withdrawal alone");
}
