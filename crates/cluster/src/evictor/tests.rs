//! The controller, and the agents of the nodes, with a stand-in cluster that keeps its state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;
use crate::evict::{AskPace, DrainState, DrainStatus, EvictEvent, Evictions};
use crate::names::{CORDONED, EVICT_REQUEST, EVICTIONS, STATUS};
use crate::pods::ActingPod;
use crate::testing::{Api, Request, SHORT, ScriptedAnswer, refused, status};

const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(1);
const WHY: &str = "driver 535.261.03 to 550.163.01";

const OPTIONS: EvictorOptions = EvictorOptions {
    most_nodes: Share::Nodes(10),
    most_evictions: 10_000,
    pace: EvictPace { deadline: LONG, first: SOON, longest: SOON, refused: LONG },
    of_node: NodePace { request: SOON, write: SOON, again: SOON },
};
const ASKS: AskPace =
    AskPace { deadline: LONG, answer: LONG, first: SOON, longest: SOON, refused: LONG };

#[derive(Debug, Clone, Default)]
struct FakeNode {
    annotations: BTreeMap<String, String>,
    unschedulable: bool,
    version: u64,
}

#[derive(Debug, Clone)]
struct FakePod {
    node: &'static str,
    name: &'static str,
    /// A budget allows no eviction.
    is_blocked: bool,
}

fn pod(node: &'static str, name: &'static str) -> FakePod {
    FakePod { node, name, is_blocked: false }
}

fn blocked(node: &'static str, name: &'static str) -> FakePod {
    FakePod { is_blocked: true, ..pod(node, name) }
}

fn uid(name: &str) -> String {
    format!("uid-of-{name}")
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<String, FakeNode>,
    gone: Vec<(String, u64)>,
    pods: Vec<FakePod>,
    version: u64,
    evicted: Vec<String>,
    /// Names of the nodes that were cordoned, in order.
    cordoned: Vec<String>,
    /// Most nodes that were cordoned at a time.
    most_cordoned: usize,
    /// Watches that are answered with 410.
    forgets: usize,
    /// Part of the requests that are refused.
    forbids: Option<&'static str>,
}

impl State {
    fn object(&self, name: &str) -> Value {
        let node = &self.nodes[name];
        let mut spec = json!({ "podCIDR": "10.0.0.0/24" });
        if node.unschedulable {
            spec["unschedulable"] = json!(true);
        }
        let version = node.version.to_string();
        let metadata =
            json!({ "name": name, "resourceVersion": version, "annotations": node.annotations });
        json!({ "kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec })
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut FakeNode)) {
        self.version += 1;
        let node = self.nodes.get_mut(name).unwrap();
        change(node);
        node.version = self.version;
    }

    fn list(&self, kind: &str, items: &[Value]) -> ScriptedAnswer {
        let list = json!({
            "kind": kind, "apiVersion": "meta.k8s.io/v1", "items": items,
            "metadata": { "resourceVersion": self.version.to_string() },
        });
        ScriptedAnswer::Body(200, list.to_string())
    }

    fn watch(&mut self, query: &str) -> ScriptedAnswer {
        let from = query.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap();
        let from: u64 = from.parse().unwrap();
        if self.forgets > 0 {
            self.forgets -= 1;
            let gone: Value = serde_json::from_str(&status(410, "too old")).unwrap();
            return ScriptedAnswer::Lines(vec![
                json!({ "type": "ERROR", "object": gone }).to_string(),
            ]);
        }
        let mut events: Vec<(u64, Value)> = Vec::new();
        for (name, node) in self.nodes.iter().filter(|(_, node)| node.version > from) {
            let event = json!({ "type": "MODIFIED", "object": self.object(name) });
            events.push((node.version, event));
        }
        for (name, version) in self.gone.iter().filter(|(_, version)| *version > from) {
            let metadata = json!({ "name": name, "resourceVersion": version.to_string() });
            let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": metadata });
            events.push((*version, json!({ "type": "DELETED", "object": node })));
        }
        events.sort_by_key(|(version, _)| *version);
        ScriptedAnswer::Lines(events.into_iter().map(|(_, event)| event.to_string()).collect())
    }

    fn patch(&mut self, name: &str, body: &Value) -> ScriptedAnswer {
        let Some(node) = self.nodes.get(name) else { return refused(404) };
        let version = &body["metadata"]["resourceVersion"];
        if !version.is_null() && *version != json!(node.version.to_string()) {
            return refused(409);
        }
        let was = node.unschedulable;
        self.change(name, |node| {
            for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
                match value.as_str() {
                    Some(text) => drop(node.annotations.insert(key.clone(), text.to_owned())),
                    None => drop(node.annotations.remove(key)),
                }
            }
            if let Some(unschedulable) = body["spec"].get("unschedulable") {
                node.unschedulable = unschedulable.as_bool().unwrap_or(false);
            }
        });
        if !was && self.nodes[name].unschedulable {
            self.cordoned.push(name.to_owned());
            let all = self.nodes.values().filter(|node| node.unschedulable).count();
            self.most_cordoned = self.most_cordoned.max(all);
        }
        ScriptedAnswer::Body(200, self.object(name).to_string())
    }

    fn pods_of(&self, query: &str) -> ScriptedAnswer {
        let node = query.split("spec.nodeName%3D").nth(1).expect("of one node alone");
        let node = node.split('&').next().unwrap();
        let owner = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u",
                             "controller": true }]);
        let items = self.pods.iter().filter(|pod| pod.node == node).map(|pod| {
            json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": { "name": pod.name, "namespace": "ml", "uid": uid(pod.name),
                                  "ownerReferences": owner } })
        });
        self.list("PartialObjectMetadataList", &items.collect::<Vec<_>>())
    }

    fn evict(&mut self, name: &str) -> ScriptedAnswer {
        let Some(at) = self.pods.iter().position(|pod| pod.name == name) else {
            return refused(404);
        };
        if self.pods[at].is_blocked {
            return refused(429);
        }
        self.pods.remove(at);
        self.evicted.push(name.to_owned());
        ScriptedAnswer::Body(
            201,
            json!({ "kind": "Status", "status": "Success", "code": 201 }).to_string(),
        )
    }

    fn answer(&mut self, request: &Request) -> ScriptedAnswer {
        let (method, line) = request.line.split_once(' ').unwrap();
        let (path, query) = line.split_once('?').unwrap_or((line, ""));
        if self.forbids.is_some_and(|part| request.line.contains(part)) {
            return refused(403);
        }
        let body = serde_json::from_str(&request.body).unwrap_or_default();
        let node = path.strip_prefix("/api/v1/nodes/");
        let evicted = path.strip_prefix("/api/v1/namespaces/ml/pods/");
        let evicted = evicted.and_then(|rest| rest.strip_suffix("/eviction"));
        match (method, path, node, evicted) {
            ("GET", "/api/v1/nodes", ..) if query.contains("watch=") => self.watch(query),
            ("GET", "/api/v1/nodes", ..) => {
                let items: Vec<Value> = self.nodes.keys().map(|name| self.object(name)).collect();
                self.list("PartialObjectMetadataList", &items)
            }
            ("GET", _, Some(name), _) => match self.nodes.contains_key(name) {
                true => ScriptedAnswer::Body(200, self.object(name).to_string()),
                false => refused(404),
            },
            ("PATCH", _, Some(name), _) => self.patch(name, &body),
            ("GET", "/api/v1/pods", ..) => self.pods_of(query),
            ("POST", _, _, Some(name)) => self.evict(name),
            _ => panic!("{}", request.line),
        }
    }
}

struct Scene {
    api: Api,
    state: Arc<Mutex<State>>,
}

/// A controller that runs until it is dropped.
struct Running {
    task: JoinHandle<()>,
    health: Arc<Health>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scene {
    fn with(nodes: &[&str], pods: Vec<FakePod>) -> Self {
        let mut state = State { version: 1, pods, ..State::default() };
        for name in nodes {
            let annotations = BTreeMap::from([(STATUS.to_owned(), "{}".to_owned())]);
            let node = FakeNode { annotations, unschedulable: false, version: 1 };
            state.nodes.insert((*name).to_owned(), node);
        }
        let state = Arc::new(Mutex::new(state));
        let answering = Arc::clone(&state);
        let api = Api::by(move |request| answering.lock().unwrap().answer(request));
        Self { api, state }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    fn annotate(&self, node: &str, key: &str, value: &str) {
        self.change(|state| {
            state.change(node, |node| {
                drop(node.annotations.insert(key.to_owned(), value.to_owned()))
            });
        });
    }

    fn evictor(&self) -> Running {
        self.evictor_with(OPTIONS)
    }

    fn evictor_with(&self, options: EvictorOptions) -> Running {
        let (health, pod) = (Arc::new(Health::default()), ("gpu".to_owned(), "evictor".to_owned()));
        let evictor = Evictor::new(self.api.cluster(SHORT), pod, options, Arc::clone(&health));
        let run = async move { match evictor.run().await {} };
        Running { task: tokio::spawn(run), health }
    }

    /// The agent of a node.
    fn agent(&self, node: &str) -> Agent {
        self.agent_with(node, ASKS)
    }

    fn agent_with(&self, node: &str, pace: AskPace) -> Agent {
        let (sender, reported) = unbounded_channel();
        let tell = move |event: &EvictEvent| {
            let _ = sender.send(event.clone());
        };
        let place =
            ActingPod { node: node.into(), namespace: "gpu".into(), pod: format!("of-{node}") };
        let cluster = self.api.cluster(SHORT);
        let evictions = Evictions::begin(cluster, place, pace, true, tell).unwrap();
        Agent { evictions, reported }
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        let wait = async {
            while !self.change(|state| holds(state)) {
                tokio::time::sleep(SOON).await;
            }
        };
        let ended = tokio::time::timeout(LONG, wait).await;
        assert!(ended.is_ok(), "{:?}", self.change(|state| format!("{state:?}")));
    }

    /// Number of requests with this text.
    fn asked(&self, text: &str) -> usize {
        self.api.requests().iter().filter(|request| request.line.contains(text)).count()
    }

    /// Waits until the controller has looked at the nodes some times more.
    async fn watched(&self, times: usize) {
        let watches = || self.asked("watch=");
        let before = watches();
        while watches() < before + times {
            tokio::time::sleep(SOON).await;
        }
    }

    fn status(&self, node: &str) -> Option<DrainStatus> {
        let text = self.change(|state| state.nodes[node].annotations.get(EVICTIONS).cloned());
        DrainStatus::of_annotation(&text?)
    }

    /// True if no pod is scheduled to the node; and the keys of its annotations about drains.
    fn node(&self, name: &str) -> (bool, Vec<String>) {
        self.change(|state| {
            let node = &state.nodes[name];
            let keys = node.annotations.keys().filter(|key| *key != STATUS).cloned();
            (node.unschedulable, keys.collect())
        })
    }

    fn is_clean(&self, name: &str) -> bool {
        self.node(name) == (false, vec![])
    }
}

struct Agent {
    evictions: Evictions,
    reported: UnboundedReceiver<EvictEvent>,
}

impl Agent {
    fn waits_for(&self, pods: &[&str]) {
        self.evictions.want(WHY, pods.iter().map(|name| uid(name)));
    }

    /// Waits for the next events; returns their names.
    async fn reported(&mut self, number: usize) -> Vec<String> {
        let mut names = Vec::new();
        for _ in 0..number {
            let next = tokio::time::timeout(LONG, self.reported.recv()).await;
            names.push(short(&next.unwrap_or_else(|_| panic!("after {names:?}")).unwrap()));
        }
        names
    }
}

fn short(event: &EvictEvent) -> String {
    match event {
        EvictEvent::Waits => "waits".into(),
        EvictEvent::Unanswered(_) => "unanswered".into(),
        EvictEvent::Cordoned(reason) => {
            assert_eq!(reason, WHY);
            "cordoned".into()
        }
        EvictEvent::CordonedByAnother => "cordoned by another".into(),
        EvictEvent::Evicted(pod) => format!("evicted {pod}"),
        EvictEvent::Blocked(pod, _) => format!("blocked {pod}"),
        EvictEvent::Overruled => "overruled".into(),
        EvictEvent::Expired(left) => format!("expired {}", left.len()),
        EvictEvent::Uncordoned => "uncordoned".into(),
        EvictEvent::Forgotten => "forgotten".into(),
        EvictEvent::Refused(_) => "refused".into(),
        EvictEvent::Unreachable(_) => "unreachable".into(),
    }
}

/// A request as an agent writes it, of a pod that is gone.
fn request(id: char, pods: &[&str], deadline: u64) -> String {
    let pods: Vec<String> = pods.iter().map(|name| uid(name)).collect();
    json!({ "format": 1, "id": id.to_string().repeat(16), "reason": WHY, "pods": pods,
            "since": "2026-11-23T03:00:00Z", "deadline": deadline, "pod": "gpu/of-a" })
    .to_string()
}

#[tokio::test]
async fn a_request_has_its_node_cordoned_and_its_pods_evicted_until_it_is_withdrawn() {
    let pods = vec![pod("a", "train"), pod("a", "idle"), pod("a", "evictor"), pod("b", "other")];
    let scene = Scene::with(&["a", "b"], pods);
    let (evictor, mut agent) = (scene.evictor(), scene.agent("a"));
    // A taken node may name pods of others.
    agent.waits_for(&["train", "other"]);
    assert_eq!(agent.reported(2).await, ["cordoned", "evicted ml/train"]);
    assert!(agent.evictions.are_active() && evictor.health.is_ready());
    scene.watched(5).await;
    assert_eq!(scene.change(|state| state.evicted.clone()), ["train"]);
    assert_eq!(
        scene.node("a"),
        (true, [CORDONED, EVICT_REQUEST, EVICTIONS].map(String::from).into())
    );
    assert!(scene.is_clean("b"), "{:?}", scene.node("b"));
    let record = scene.change(|state| state.nodes["a"].annotations[CORDONED].clone());
    let record = crate::CordonRecord::of_annotation(&record).unwrap();
    assert_eq!((record.pod.as_str(), record.reason.as_str()), ("gpu/of-a", WHY));
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(agent.reported(1).await, ["uncordoned"]);
    scene.until(|state| !state.nodes["a"].annotations.contains_key(EVICTIONS)).await;
    assert!(scene.is_clean("a"), "{:?}", scene.node("a"));
}

/// Calls of an agent: those of its own node alone.
#[tokio::test]
async fn an_agent_only_writes_its_request() {
    let scene = Scene::with(&["a"], vec![pod("a", "train")]);
    let state = Arc::clone(&scene.state);
    let own = Api::by(move |request| state.lock().unwrap().answer(request));
    let of_agent = Scene { api: own, state: Arc::clone(&scene.state) };
    let (_evictor, mut agent) = (scene.evictor(), of_agent.agent("a"));
    agent.waits_for(&["train"]);
    assert_eq!(agent.reported(2).await, ["cordoned", "evicted ml/train"]);
    assert!(agent.evictions.withdrawn(LONG).await);
    let requests = of_agent.api.requests();
    let is_own = |request: &Request| {
        request.line.ends_with(" /api/v1/nodes/a") || request.line.ends_with(" /api/v1/nodes/a?")
    };
    assert!(requests.iter().all(is_own), "{:?}", of_agent.api.lines());
    let patches = requests.iter().filter(|request| request.line.starts_with("PATCH"));
    for patch in patches {
        let body: Value = serde_json::from_str(&patch.body).unwrap();
        let keys: Vec<&String> =
            body["metadata"]["annotations"].as_object().unwrap().keys().collect();
        assert!(keys == [EVICT_REQUEST] && body["spec"].is_null(), "{body}");
    }
}

#[tokio::test]
async fn so_many_nodes_are_drained_at_a_time_and_the_others_wait_in_order() {
    let names = ["a", "b", "c"];
    let pods = vec![blocked("a", "p-a"), blocked("b", "p-b"), blocked("c", "p-c")];
    let scene = Scene::with(&names, pods);
    let third = EvictorOptions { most_nodes: Share::Percent(33), ..OPTIONS };
    let _evictor = scene.evictor_with(third);
    let mut first = scene.agent("c");
    first.waits_for(&["p-c"]);
    assert_eq!(first.reported(2).await, ["cordoned", "blocked ml/p-c"]);
    let mut second = scene.agent("a");
    second.waits_for(&["p-a"]);
    assert_eq!(second.reported(1).await, ["waits"]);
    let mut third = scene.agent("b");
    third.waits_for(&["p-b"]);
    assert_eq!(third.reported(1).await, ["waits"]);
    assert_eq!(scene.status("a").map(|status| status.state), Some(DrainState::Waiting));
    assert!(first.evictions.withdrawn(LONG).await);
    assert_eq!(second.reported(2).await, ["cordoned", "blocked ml/p-a"]);
    assert!(third.reported.is_empty());
    // One that gives up while it waits has no place.
    assert!(third.evictions.withdrawn(LONG).await);
    assert!(second.evictions.withdrawn(LONG).await);
    scene.until(|state| state.nodes.values().all(|node| node.annotations.len() == 1)).await;
    let seen = scene.change(|state| (state.cordoned.clone(), state.most_cordoned));
    assert_eq!(seen, (vec!["c".to_owned(), "a".to_owned()], 1));
}

/// A taken node that writes another request before the time limit of the one before, and a node that waits.
#[rstest]
#[case::once(false, false)]
#[case::again_and_again(true, false)]
#[case::once_and_alone_at_first(false, true)]
#[case::again_and_again_and_alone_at_first(true, true)]
#[tokio::test]
async fn a_node_with_other_requests_keeps_its_place_only_while_no_other_node_waits(
    #[case] renews: bool,
    #[case] is_alone: bool,
) {
    const FIRST: u64 = 2;
    let scene = Scene::with(&["a", "b"], vec![blocked("a", "held"), pod("b", "train")]);
    let _evictor = scene.evictor_with(EvictorOptions { most_nodes: Share::Nodes(1), ..OPTIONS });
    let begun = Instant::now();
    scene.annotate("a", EVICT_REQUEST, &request('0', &["held"], FIRST));
    scene.until(|state| state.nodes["a"].unschedulable).await;
    let mut ids = "123456789abcdef".chars().cycle();
    let mut renew = || {
        let text = request(ids.next().unwrap(), &["held"], 60);
        scene.annotate("a", EVICT_REQUEST, &text);
    };
    renew();
    let cordoned = || scene.change(|state| (state.cordoned.join(" "), state.most_cordoned));
    while is_alone && begun.elapsed() <= Duration::from_secs(FIRST) {
        scene.watched(3).await;
        if renews {
            renew();
        }
    }
    scene.watched(5).await;
    assert!(scene.node("a").0, "nobody waits");
    assert_eq!(cordoned(), ("a".to_owned(), 1));

    let other = scene.agent("b");
    other.waits_for(&["train"]);
    while scene.change(|state| state.evicted.is_empty()) {
        scene.watched(1).await;
        if renews {
            renew();
        }
    }
    assert_eq!(cordoned(), ("a b".to_owned(), 1), "the one was uncordoned before");
    // It waits for the next place, with its last request.
    renew();
    scene.watched(5).await;
    while scene.status("a").is_none_or(|status| status.state != DrainState::Waiting) {
        scene.watched(1).await;
    }
    assert!(other.evictions.withdrawn(LONG).await);
    scene.until(|state| state.nodes["a"].unschedulable).await;
    assert_eq!(cordoned(), ("a b a".to_owned(), 1));
}

#[tokio::test]
async fn a_controller_that_is_restarted_goes_on_from_the_nodes() {
    let scene = Scene::with(&["a"], vec![pod("a", "train"), blocked("a", "held")]);
    let (evictor, mut agent) = (scene.evictor(), scene.agent("a"));
    agent.waits_for(&["train", "held"]);
    let mut reported = agent.reported(3).await;
    reported.sort();
    assert_eq!(reported, ["blocked ml/held", "cordoned", "evicted ml/train"]);
    drop(evictor);
    let next = scene.evictor();
    scene.change(|state| state.pods[0].is_blocked = false);
    assert_eq!(agent.reported(1).await, ["evicted ml/held"], "nothing is told twice");
    drop(next);
    // The change is over while none runs.
    let withdrawn = agent.evictions.withdrawn(Duration::from_millis(50)).await;
    assert!(!withdrawn && scene.node("a").0);
    let _last = scene.evictor();
    assert!(agent.evictions.withdrawn(LONG).await);
    assert_eq!(agent.reported(1).await, ["uncordoned"]);
    scene.until(|state| !state.nodes["a"].annotations.contains_key(EVICTIONS)).await;
    assert_eq!(scene.change(|state| state.cordoned.len()), 1, "it was cordoned once");
}

/// The agent's pod, or its node, is gone: nothing withdraws the request.
#[tokio::test]
async fn a_request_that_stays_ends_by_its_time_limit_also_after_a_restart() {
    let scene = Scene::with(&["a"], vec![blocked("a", "held")]);
    scene.annotate("a", EVICT_REQUEST, &request('0', &["held"], 0));
    for times in 1..3 {
        let _evictor = scene.evictor();
        scene.until(|state| state.nodes["a"].annotations.contains_key(EVICTIONS)).await;
        scene.until(|state| !state.nodes["a"].annotations.contains_key(CORDONED)).await;
        while scene.status("a").is_none_or(|status| status.state != DrainState::Expired) {
            tokio::time::sleep(SOON).await;
        }
        scene.watched(3).await;
        assert_eq!(scene.change(|state| state.cordoned.len()), 1, "start {times}");
        assert!(!scene.node("a").0);
    }
    // Another change of this node begins anew.
    let _evictor = scene.evictor();
    scene.annotate("a", EVICT_REQUEST, &request('1', &["held"], 60));
    scene.until(|state| state.nodes["a"].unschedulable).await;
}

#[tokio::test]
async fn two_controllers_at_once_evict_once_and_leave_no_cordon() {
    let scene = Scene::with(&["a", "b"], vec![pod("a", "train"), pod("b", "other")]);
    scene.change(|state| state.change("b", |node| node.unschedulable = true));
    let (_first, _second) = (scene.evictor(), scene.evictor());
    let (agent, of_b) = (scene.agent("a"), scene.agent("b"));
    agent.waits_for(&["train"]);
    of_b.waits_for(&["other"]);
    scene.until(|state| state.evicted.len() == 2).await;
    assert!(agent.evictions.withdrawn(LONG).await && of_b.evictions.withdrawn(LONG).await);
    scene.watched(6).await;
    scene.until(|state| state.nodes.values().all(|node| node.annotations.len() == 1)).await;
    assert_eq!((scene.node("a").0, scene.node("b").0), (false, true), "that of a person stays");
}

#[tokio::test]
async fn a_person_who_uncordons_overrules_also_a_controller_that_starts_later() {
    let scene = Scene::with(&["a"], vec![blocked("a", "held")]);
    let (evictor, mut agent) = (scene.evictor(), scene.agent("a"));
    agent.waits_for(&["held"]);
    assert_eq!(agent.reported(2).await, ["cordoned", "blocked ml/held"]);
    scene.change(|state| state.change("a", |node| node.unschedulable = false));
    assert_eq!(agent.reported(2).await, ["forgotten", "overruled"]);
    drop(evictor);
    let _next = scene.evictor();
    scene.watched(5).await;
    agent.waits_for(&["held", "more"]);
    scene.watched(5).await;
    assert_eq!(scene.change(|state| state.cordoned.len()), 1);
    assert!(agent.reported.is_empty() && !agent.evictions.are_active());
}

#[rstest]
#[case::no_json("{".to_owned())]
#[case::another_format(request('0', &["train"], 60).replace("\"format\":1", "\"format\":2"))]
#[case::long_deadline(request('0', &["train"], 86_400))]
#[case::no_id(request('x', &["train"], 60))]
#[case::escapes(request('0', &["train"], 60).replace(WHY, "\\u001b[2J"))]
#[tokio::test]
async fn a_request_that_no_agent_writes_is_passed_over(#[case] text: String) {
    let scene = Scene::with(&["a", "b"], vec![pod("a", "train")]);
    scene.annotate("a", EVICT_REQUEST, &text);
    let _evictor = scene.evictor();
    scene.watched(5).await;
    assert_eq!(scene.node("a"), (false, vec![EVICT_REQUEST.to_owned()]));
    // Nor does it keep a cordon of before.
    scene.change(|state| {
        state.change("b", |node| {
            node.unschedulable = true;
            node.annotations.insert(CORDONED.to_owned(), "{}".to_owned());
            node.annotations.insert(EVICT_REQUEST.to_owned(), text.clone());
        });
    });
    scene.until(|state| !state.nodes["b"].unschedulable).await;
    assert!(scene.change(|state| state.evicted.is_empty()));
}

#[tokio::test]
async fn without_a_controller_the_agent_says_so_and_one_that_starts_later_serves_it() {
    let scene = Scene::with(&["a"], vec![pod("a", "train")]);
    let soon = AskPace { answer: Duration::from_millis(20), ..ASKS };
    let mut agent = scene.agent_with("a", soon);
    agent.waits_for(&["train"]);
    assert_eq!(agent.reported(1).await, ["unanswered"]);
    assert!(!agent.evictions.are_active());
    // The same change with other users is no other one.
    agent.waits_for(&["train", "other"]);
    scene.until(|state| state.nodes["a"].annotations[EVICT_REQUEST].contains("other")).await;
    let _evictor = scene.evictor();
    assert_eq!(agent.reported(2).await, ["cordoned", "evicted ml/train"]);
}

/// A killed agent, and the one after it.
#[tokio::test]
async fn the_next_agent_goes_on_with_the_request_of_the_same_change_or_withdraws_it() {
    let scene = Scene::with(&["a"], vec![blocked("a", "held")]);
    let _evictor = scene.evictor();
    let mut agent = scene.agent("a");
    agent.waits_for(&["held"]);
    assert_eq!(agent.reported(2).await, ["cordoned", "blocked ml/held"]);
    let id = scene.status("a").unwrap().request;
    drop(agent);
    let mut next = scene.agent("a");
    next.waits_for(&["held"]);
    assert_eq!(next.reported(2).await, ["cordoned", "blocked ml/held"], "it tells its own log");
    assert_eq!(scene.status("a").unwrap().request, id);
    assert_eq!(scene.change(|state| state.cordoned.len()), 1);
    drop(next);
    let last = scene.agent("a");
    assert!(last.evictions.withdrawn(LONG).await);
    scene.until(|state| state.nodes["a"].annotations.len() == 1).await;
}

#[tokio::test]
async fn an_agent_that_requests_nothing_withdraws_and_waits_for_no_controller() {
    let scene = Scene::with(&["a"], vec![]);
    scene.annotate("a", EVICT_REQUEST, "{}");
    scene.annotate("a", CORDONED, "{}");
    let place = ActingPod { node: "a".into(), namespace: "gpu".into(), pod: "p".into() };
    let begun = Evictions::begin(scene.api.cluster(SHORT), place, ASKS, false, |_| {});
    assert!(begun.unwrap().withdrawn(LONG).await);
    assert_eq!(scene.node("a").1, [CORDONED]);
}

#[tokio::test]
async fn a_node_that_is_gone_is_forgotten_and_an_old_version_is_listed_anew() {
    let scene = Scene::with(&["a", "b"], vec![blocked("a", "held"), pod("b", "train")]);
    let _evictor = scene.evictor_with(EvictorOptions { most_nodes: Share::Nodes(1), ..OPTIONS });
    scene.annotate("a", EVICT_REQUEST, &request('0', &["held"], 60));
    scene.until(|state| state.nodes["a"].unschedulable).await;
    scene.annotate("b", EVICT_REQUEST, &request('1', &["train"], 60));
    scene.watched(3).await;
    scene.change(|state| {
        state.version += 1;
        state.gone.push(("a".to_owned(), state.version));
        state.nodes.remove("a");
    });
    scene.until(|state| state.evicted == ["train"]).await;
    let lists = || {
        let is_list = |request: &Request| {
            request.line.starts_with("GET /api/v1/nodes?") && !request.line.contains("watch=")
        };
        scene.api.requests().iter().filter(|request| is_list(request)).count()
    };
    let before = lists();
    scene.change(|state| state.forgets = 1);
    while lists() == before {
        tokio::time::sleep(SOON).await;
    }
}

/// A node that writes its request again and again does not have the API server asked as often.
#[tokio::test]
async fn a_request_that_changes_all_the_time_is_followed_now_and_then() {
    let scene = Scene::with(&["a"], vec![]);
    let slow = Duration::from_secs(3600);
    let of_node = NodePace { request: slow, ..OPTIONS.of_node };
    let pace = EvictPace { first: slow, longest: slow, ..OPTIONS.pace };
    let _evictor = scene.evictor_with(EvictorOptions { of_node, pace, ..OPTIONS });
    for n in 0..20 {
        scene.annotate("a", EVICT_REQUEST, &request('0', &[&format!("p{n}")], 60));
        scene.watched(1).await;
        while scene.asked("/api/v1/pods") == 0 {
            tokio::time::sleep(SOON).await;
        }
    }
    assert_eq!(scene.asked("/api/v1/pods"), 1, "{:?}", scene.api.lines());
}

#[tokio::test]
async fn a_list_that_is_refused_is_asked_again_and_the_controller_is_not_ready_meanwhile() {
    let scene = Scene::with(&["a"], vec![pod("a", "train")]);
    scene.change(|state| state.forbids = Some("GET /api/v1/nodes?"));
    let evictor = scene.evictor();
    while scene.api.lines().len() < 3 {
        tokio::time::sleep(SOON).await;
    }
    assert!(!evictor.health.is_ready() && evictor.health.is_alive());
    scene.annotate("a", EVICT_REQUEST, &request('0', &["train"], 60));
    scene.change(|state| state.forbids = None);
    scene.until(|state| state.evicted == ["train"]).await;
    assert!(evictor.health.is_ready());
}

#[tokio::test]
async fn no_call_is_made_before_anything_is_desired_and_no_name_that_is_none_is_sent() {
    let scene = Scene::with(&["a"], vec![]);
    let _agent = scene.agent("a");
    crate::testing::pass(LONG - Duration::from_secs(1)).await;
    assert!(scene.api.lines().is_empty());
    for (node, name) in [("a/b", "c"), ("a", "../c")] {
        let place = ActingPod { node: node.into(), namespace: "ml".into(), pod: name.into() };
        let begun = Evictions::begin(scene.api.cluster(SHORT), place, ASKS, true, |_| {});
        assert_eq!(begun.unwrap_err().kind, ApiErrorKind::Name);
    }
}
