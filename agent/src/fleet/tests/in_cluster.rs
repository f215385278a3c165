//! The same cluster asked by both backends: a kubectl that is a script, and a stand-in API server. Both answer from the
//! same objects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use longshore_cluster::Limits;
use longshore_cluster::testing::{Api, Request, SHORT, ScriptedAnswer, status as failure};

use super::*;

const CORDON: &str = r#"{"pod":"gpu/driver-a","since":"2026-11-23T03:00:00Z","reason":"r"}"#;

/// Objects of a cluster by their paths, and what is done with them.
#[derive(Debug, Default)]
struct Objects {
    nodes: BTreeMap<String, Value>,
    pods: Vec<Value>,
    /// By `NAMESPACE/NAME`.
    sets: BTreeMap<String, Value>,
    /// Number of questions for a DaemonSet after its deletion that find it.
    ending: u32,
    is_deleted: bool,
    /// Calls that are refused, such as `patch nodes/status`.
    forbidden: Vec<&'static str>,
    calls: Vec<String>,
}

/// A status and a body.
type Reply = (u16, String);

impl Objects {
    /// Answers as an API server does: `path` with its query.
    fn answer(&mut self, method: &str, target: &str, body: &str) -> Reply {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let call = match (method, &parts[..]) {
            ("GET", ["api", "v1", resource] | ["api", "v1", "namespaces", _, resource]) => {
                format!("list {resource}")
            }
            (method, ["api", "v1", "nodes", _, "status"]) => format!("{method} nodes/status"),
            (method, ["api", "v1", "nodes", _]) => format!("{method} nodes"),
            (method, [.., "daemonsets", _]) => format!("{method} daemonsets"),
            _ => panic!("{method} {target}"),
        };
        let call = call.to_lowercase();
        self.calls.push(call.clone());
        if self.forbidden.contains(&call.as_str()) {
            let why = format!("User \"cleaner\" cannot {call}");
            return (403, failure(403, &why));
        }
        match (call.as_str(), &parts[..]) {
            ("list nodes", _) => self.page(query),
            ("list pods", ["api", _, "namespaces", namespace, _]) => {
                let is_there = |pod: &&Value| pod["metadata"]["namespace"] == *namespace;
                let items: Vec<&Value> = self.pods.iter().filter(is_there).collect();
                (200, json!({"metadata": {}, "items": items}).to_string())
            }
            ("list pods", _) => {
                let node = query.split("spec.nodeName%3D").nth(1).expect("a node");
                let node = node.split('&').next().expect("a name");
                let of_node = |pod: &&Value| pod["spec"]["nodeName"] == node;
                let items: Vec<&Value> = self.pods.iter().filter(of_node).collect();
                (200, json!({"metadata": {}, "items": items}).to_string())
            }
            ("get nodes", [.., name]) => (200, self.nodes[*name].to_string()),
            ("patch nodes", [.., name]) => self.patched(name, body),
            ("patch nodes/status", [.., name, _]) => self.patched(name, body),
            ("get daemonsets", [.., namespace, _, name]) => {
                if self.is_deleted {
                    match self.ending {
                        0 => self.sets.clear(),
                        _ => self.ending -= 1,
                    }
                }
                match self.sets.get(&format!("{namespace}/{name}")) {
                    Some(set) => (200, set.to_string()),
                    None => (404, failure(404, "not found")),
                }
            }
            ("delete daemonsets", _) => {
                self.is_deleted = true;
                (200, json!({}).to_string())
            }
            _ => unreachable!("{call}"),
        }
    }

    /// Lists two nodes a page, whatever the limit.
    fn page(&self, query: &str) -> Reply {
        let from = query.split("continue=").nth(1).map_or(0, |at| at.parse().expect("a number"));
        let items: Vec<&Value> = self.nodes.values().skip(from).take(2).collect();
        let next = if from + 2 < self.nodes.len() { (from + 2).to_string() } else { String::new() };
        (200, json!({"metadata": {"continue": next}, "items": items}).to_string())
    }

    /// Takes a patch where its version is the node's; what it removes is for other tests.
    fn patched(&mut self, name: &str, patch: &str) -> Reply {
        let patch: Value = serde_json::from_str(patch).expect("a patch");
        let node = self.nodes.get_mut(name).expect("a node");
        let version = &mut node["metadata"]["resourceVersion"];
        if patch["metadata"]["resourceVersion"] != *version {
            return (409, failure(409, "the object has been modified"));
        }
        let next = version.as_str().expect("a version").parse::<u32>().expect("a number") + 1;
        *version = json!(next.to_string());
        (200, node.to_string())
    }
}

type Shared = Arc<Mutex<Objects>>;

/// An API server with these objects, and a client of it in a pod.
fn in_pod(objects: Objects, patience: Duration) -> (Shared, Api, Backend) {
    let shared = Arc::new(Mutex::new(objects));
    let served = shared.clone();
    let api = Api::by(move |request: &Request| {
        let (method, target) = request.line.split_once(' ').expect("a request");
        let (status, body) = served.lock().expect("objects").answer(method, target, &request.body);
        ScriptedAnswer::Body(status, body)
    });
    let backend = backend_of(&api, patience);
    (shared, api, backend)
}

fn backend_of(api: &Api, patience: Duration) -> Backend {
    let env = |name: &str| api.variable(name);
    let found = InCluster::of_pod(&env, api.files.path(), SHORT, patience);
    Backend::InCluster(found.expect("a service account"))
}

/// A kubectl with the same objects: a script that hands each call to the answers of the API server, which are files
/// made beforehand.
fn by_script(objects: &mut Objects) -> (tempfile::TempDir, Backend) {
    let script = r#"
case "$1 $2" in
"get nodes") exec cat nodes ;;
"get pods") exec cat "pods-${4#--field-selector=spec.nodeName=}" ;;
"patch node")
    if grep -q "no-status" forbidden && test "$4" = --subresource=status; then
        echo 'Error from server (Forbidden): no' >&2; exit 1
    fi
    exec cat "node-$3" ;;
"get daemonset")
    name="${4#--namespace=}-$3"
    if test -e deleted; then
        if test -s ending; then sed -i 1d ending; else rm -f set-*; fi
    fi
    test -e "set-$name" || { echo 'Error from server (NotFound): not found' >&2; exit 1; }
    exec cat "set-$name" ;;
"delete daemonset") echo "$*" > deleted ;;
*) exit 9 ;;
esac"#;
    let (dir, kubectl) = scripted(script, Duration::from_secs(60));
    let write = |file: &str, text: &str| {
        fs::write(dir.path().join(file), text).expect("written");
    };
    let nodes: Vec<&Value> = objects.nodes.values().collect();
    write("nodes", &json!({"items": nodes}).to_string());
    for (name, node) in &objects.nodes {
        let of_node = |pod: &&Value| pod["spec"]["nodeName"] == name.as_str();
        let pods: Vec<&Value> = objects.pods.iter().filter(of_node).collect();
        write(&format!("pods-{name}"), &json!({"items": pods}).to_string());
        let mut patched = node.clone();
        patched["metadata"]["resourceVersion"] = json!("8");
        write(&format!("node-{name}"), &patched.to_string());
    }
    for (place, set) in &objects.sets {
        write(&format!("set-{}", place.replace('/', "-")), &set.to_string());
    }
    write("ending", &"x\n".repeat(objects.ending as usize));
    write("forbidden", if objects.forbidden.is_empty() { "" } else { "no-status" });
    (dir, Backend::Kubectl(kubectl))
}

/// A node that an agent left, with a change by its version.
fn left(name: &str, is_cordoned: bool) -> (String, Value) {
    let mut left = node(name, status(name, json!({})));
    left["metadata"]["resourceVersion"] = json!("7");
    left["metadata"]["labels"]["longshore.dev/state"] = json!("ready");
    let taints = json!([{"key": "longshore.dev/driver-not-ready", "effect": "NoSchedule"}]);
    left["spec"] = json!({"taints": taints, "unschedulable": is_cordoned});
    if is_cordoned {
        left["metadata"]["annotations"]["longshore.dev/cordoned"] = json!(CORDON);
    }
    let condition = condition("True", "DriverReady", "m");
    left["status"]["conditions"].as_array_mut().expect("a list").push(condition);
    (name.to_owned(), left)
}

/// Five nodes: more than two pages.
fn scene() -> Objects {
    let mut nodes = BTreeMap::from([left("a", false), left("b", true), left("c", false)]);
    nodes.insert("d".into(), node("d", None));
    nodes.extend([left("e", false)]);
    let pods = vec![pod("driver-c", "c", "longshore", "Running"), pod("x", "a", "x", "Running")];
    Objects { nodes, pods, ..Objects::default() }
}

#[rstest]
#[case::clean(false)]
#[case::dry_run(true)]
#[tokio::test]
async fn both_backends_clean_alike(#[case] dry_run: bool) {
    let cleaning = Cleaning { dry_run, ..Cleaning::default() };
    let (_dir, kubectl) = by_script(&mut scene());
    let (objects, api, in_pod) = in_pod(scene(), Duration::ZERO);
    let by_kubectl = clean(&kubectl, &cleaning).await.expect("cleaned");
    let by_pod = clean(&in_pod, &cleaning).await.expect("cleaned");
    assert_eq!(by_pod, by_kubectl);
    assert_eq!(by_pod.render(), by_kubectl.render());
    assert_eq!((by_pod.cleaned, by_pod.kept, by_pod.failed), (3, 1, 0));
    let calls = &objects.lock().expect("objects").calls;
    let count = |call: &str| calls.iter().filter(|made| *made == call).count();
    let patches = if dry_run { 0 } else { 3 };
    assert_eq!((count("list nodes"), count("list pods")), (3, 4));
    assert_eq!((count("patch nodes"), count("patch nodes/status")), (patches, patches));
    assert_eq!(calls.len(), api.requests().len());
}

#[tokio::test]
async fn a_missing_right_is_named_and_the_other_leftovers_are_gone() {
    let refused = || Objects { forbidden: vec!["patch nodes/status"], ..scene() };
    let (_dir, kubectl) = by_script(&mut refused());
    let (_objects, _api, in_pod) = in_pod(refused(), Duration::ZERO);
    let by_kubectl = clean(&kubectl, &Cleaning::default()).await.expect("cleaned");
    let by_pod = clean(&in_pod, &Cleaning::default()).await.expect("cleaned");
    assert_eq!((by_pod.cleaned, by_pod.kept, by_pod.failed), (0, 1, 3));
    for (ours, theirs) in by_pod.nodes.iter().zip(&by_kubectl.nodes) {
        assert_eq!((ours.outcome, &ours.removed), (theirs.outcome, &theirs.removed));
    }
    let reason = by_pod.nodes[0].reason.as_deref().unwrap_or_default();
    let wanted = "patching a node's status (patch nodes/status): the API server answered 403: User \"cleaner\" cannot";
    assert!(reason.contains(wanted), "{reason}");
}

#[tokio::test]
async fn another_programs_change_is_read_again() {
    let mut objects = scene();
    objects.nodes.retain(|name, _| name == "a");
    let shared = Arc::new(Mutex::new(objects));
    let served = shared.clone();
    let api = Api::by(move |request: &Request| {
        let (method, target) = request.line.split_once(' ').expect("a request");
        let mut objects = served.lock().expect("objects");
        // Between the look at the pods and the first patch.
        if method == "PATCH" && !objects.calls.contains(&"patch nodes".to_owned()) {
            objects.nodes.get_mut("a").expect("a node")["metadata"]["resourceVersion"] =
                json!("20");
        }
        let (status, body) = objects.answer(method, target, &request.body);
        ScriptedAnswer::Body(status, body)
    });
    let cleaned = clean(&backend_of(&api, Duration::ZERO), &Cleaning::default()).await;
    assert_eq!(cleaned.expect("cleaned").cleaned, 1);
    let calls = &shared.lock().expect("objects").calls;
    assert_eq!(
        calls[..],
        [
            "list nodes",
            "list pods",
            "patch nodes",
            "get nodes",
            "list pods",
            "patch nodes",
            "patch nodes/status",
        ]
    );
}

/// A DaemonSet with these numbers: generation, and the observed one; desired, updated, ready and available nodes.
fn set(numbers: [i64; 6]) -> Value {
    let [generation, observed, desired, updated, ready, available] = numbers;
    json!({
        "metadata": {"name": "driver", "uid": "1-2", "generation": generation},
        "status": {
            "observedGeneration": observed, "desiredNumberScheduled": desired, "updatedNumberScheduled": updated,
            "numberReady": ready, "numberAvailable": available,
        },
    })
}

fn with_set(numbers: [i64; 6]) -> Objects {
    Objects { sets: BTreeMap::from([("gpu/driver".into(), set(numbers))]), ..scene() }
}

fn sets(places: &[&str]) -> Vec<DaemonSetRef> {
    places.iter().map(|place| place.parse().expect("a place")).collect()
}

#[rstest]
#[case::ready([2, 2, 3, 3, 3, 3], None)]
#[case::unseen([3, 2, 3, 3, 3, 3], Some("its controller has not seen its generation 3 yet"))]
#[case::new([1, 0, 0, 0, 0, 0], Some("its controller has not seen its generation 1 yet"))]
#[case::older_pods([2, 2, 3, 1, 3, 3], Some("1 of 3 nodes have a pod of the present version"))]
#[case::not_ready([2, 2, 3, 3, 2, 2], Some("2 of 3 nodes have a Ready pod"))]
#[case::not_long([2, 2, 3, 3, 3, 0], Some("0 of 3 nodes have a pod that was Ready for minReadySeconds"))]
// As kubectl rollout status: the nodes of a pool may all be switched off.
#[case::no_node([1, 1, 0, 0, 0, 0], None)]
#[tokio::test]
async fn both_backends_judge_a_rollout_alike(
    #[case] numbers: [i64; 6],
    #[case] reason: Option<&str>,
) {
    let (_dir, kubectl) = by_script(&mut with_set(numbers));
    let (objects, _api, in_pod) = in_pod(with_set(numbers), Duration::ZERO);
    let mut shown = Vec::new();
    for backend in [kubectl, in_pod] {
        let found =
            rollouts(&backend, &sets(&["gpu/driver"]), Duration::ZERO).await.expect("found");
        assert_eq!(found.are_ready(), reason.is_none());
        shown.push(found.render());
    }
    assert_eq!(shown[0], shown[1]);
    let count = if reason.is_none() { "1 ready, 0 not ready" } else { "0 ready, 1 not ready" };
    let below = reason.unwrap_or(if numbers[2] == 0 { "it selects no node" } else { "gpu/driver" });
    assert!(shown[0].contains(count) && shown[0].contains(below), "{}", shown[0]);
    assert_eq!(objects.lock().expect("objects").calls, ["get daemonsets"]);
}

#[tokio::test]
async fn a_rollout_is_waited_for() {
    let (objects, _api, backend) = in_pod(with_set([1, 1, 1, 0, 0, 0]), Duration::ZERO);
    let becomes_ready = async {
        while objects.lock().expect("objects").calls.is_empty() {
            tokio::task::yield_now().await;
        }
        objects.lock().expect("objects").sets.insert("gpu/driver".into(), set([1; 6]));
    };
    let sets = sets(&["gpu/driver"]);
    let asked = rollouts(&backend, &sets, Duration::from_secs(600));
    let (found, ()) = tokio::join!(asked, becomes_ready);
    assert!(found.expect("found").are_ready());
    let page =
        "DAEMONSET   DESIRED  UPDATED  READY  AVAILABLE\ngpu/driver  1        1        1      1\n";
    let (_objects, _api, backend) = in_pod(with_set([1; 6]), Duration::ZERO);
    let found = rollouts(&backend, &sets, Duration::ZERO).await.expect("found");
    assert_eq!(found.render(), format!("{page}1 DaemonSet: 1 ready, 0 not ready\n"));
}

#[tokio::test]
async fn both_backends_refuse_a_rollout_of_nothing() {
    let (_dir, kubectl) = by_script(&mut with_set([1; 6]));
    let (_objects, _api, in_pod) = in_pod(with_set([1; 6]), Duration::ZERO);
    for backend in [kubectl, in_pod] {
        let asked = rollouts(&backend, &sets(&["gpu/driver", "gpu/other"]), Duration::ZERO).await;
        let failure = asked.expect_err("there is none");
        assert_eq!(failure.code(), ExitCode::Kubectl);
        assert_eq!(failure.one_line(), "there is no DaemonSet gpu/other");
    }
}

/// Questions after the deletion that still find the DaemonSet.
#[rstest]
#[case::at_once(0)]
#[case::later(2)]
#[tokio::test]
async fn both_backends_wait_for_the_end_of_pods(#[case] ending: u32) {
    let of = || Objects { ending, ..with_set([1; 6]) };
    let (dir, kubectl) = by_script(&mut of());
    let (objects, _api, in_pod) = in_pod(of(), Duration::ZERO);
    let sets = sets(&["gpu/never", "gpu/driver"]);
    for backend in [kubectl, in_pod] {
        let not_gone = end(&backend, &sets, Duration::from_secs(600)).await.expect("asked");
        assert!(not_gone.is_none());
    }
    let words = fs::read_to_string(dir.path().join("deleted")).expect("deleted");
    assert_eq!(
        words,
        "delete daemonset driver --namespace=gpu --cascade=foreground --wait=false --ignore-not-found\n"
    );
    let mut wanted = vec!["get daemonsets", "get daemonsets", "delete daemonsets"];
    wanted.extend(vec!["get daemonsets"; ending as usize + 1]);
    assert_eq!(objects.lock().expect("objects").calls, wanted);
}

/// A pod of a DaemonSet.
fn pod_of(set: &str, name: &str, node: &str) -> Value {
    let mut made = pod(name, node, "longshore", "Running");
    made["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet", "name": set}]);
    made
}

/// A node that the agent of this pod left.
fn left_by(name: &str, pod: &str) -> (String, Value) {
    let (name, mut node) = left(name, false);
    let status = json!({"format": 1, "pod": pod}).to_string();
    node["metadata"]["annotations"]["longshore.dev/status"] = json!(status);
    (name, node)
}

/// Pods that stay, as on a node whose kubelet is away, and the end of the failure's line.
#[rstest]
#[case::one(
    vec![pod_of("driver", "driver-aaaaa", "a"), pod_of("other", "other-aaaaa", "b")],
    ", with pods whose nodes were not cleaned: gpu/driver-aaaaa on node a"
)]
#[case::many(
    (1..=7).map(|at| pod_of("driver", &format!("driver-0000{at}"), "a")).collect(),
    "gpu/driver-00004 on node a, gpu/driver-00005 on node a, 2 more"
)]
#[case::none(vec![], "gpu/driver: still there 0ns after the deletion")]
#[tokio::test]
async fn nodes_without_pods_are_cleaned_where_others_do_not_end(
    #[case] pods: Vec<Value>,
    #[case] wanted: &str,
) {
    let is_kept = !pods.is_empty();
    let nodes = [left_by("a", "gpu/driver-aaaaa"), left_by("c", "gpu/driver-ccccc")];
    let of = || Objects {
        ending: u32::MAX,
        nodes: BTreeMap::from(nodes.clone()),
        pods: pods.clone(),
        ..with_set([1; 6])
    };
    let (objects, _api, backend) = in_pod(of(), Duration::ZERO);
    let sets = sets(&["gpu/driver"]);
    let ended = end(&backend, &sets, Duration::ZERO).await.expect("asked");
    let failure = ended.expect("it stays");
    assert_eq!(failure.code(), ExitCode::NodesNotReady);
    let line = failure.one_line();
    assert!(line.starts_with("gpu/driver: still there") && line.ends_with(wanted), "{line}");
    let cleaning = Cleaning { only: sets, ..Cleaning::default() };
    let cleaned = clean(&backend, &cleaning).await.expect("cleaned");
    let kept = usize::from(is_kept);
    assert_eq!((cleaned.cleaned, cleaned.kept, cleaned.failed), (2 - kept, kept, 0));
    let calls = objects.lock().expect("objects").calls.clone();
    assert_eq!(calls.iter().filter(|call| *call == "patch nodes").count(), 2 - kept);
}

/// The pod of a node's status and that of its cordon's record, the DaemonSets that ended, and the reason for which
/// it is kept.
#[rstest]
#[case::own(Some("gpu/driver-x7k2p"), None, &["gpu/driver"], None)]
#[case::of_the_second(Some("gpu/driver-x7k2p"), None, &["gpu/a", "gpu/driver"], None)]
#[case::other_namespace(Some("ops/driver-x7k2p"), None, &["gpu/driver"], Some("pod ops/driver-x7k2p, is of no"))]
#[case::other_release(Some("gpu/driver-b-x7k2p"), None, &["gpu/driver"], Some("is of no ended DaemonSet"))]
#[case::shorter(Some("gpu/driver-x7k2p"), None, &["gpu/driver-b"], Some("is of no ended DaemonSet"))]
#[case::of_the_record(None, Some("gpu/driver-x7k2p"), &["gpu/driver"], None)]
#[case::record_of_another(None, Some("ops/driver-x7k2p"), &["gpu/driver"], Some("is of no ended DaemonSet"))]
#[case::status_first(Some("ops/driver-x7k2p"), Some("gpu/driver-x7k2p"), &["gpu/driver"], Some("pod ops/driver-x7k2p"))]
#[case::unknown(None, None, &["gpu/driver"], Some("nothing on it names the pod of its last agent"))]
#[case::hostile(Some("gpu/\u{1b}"), None, &["gpu/driver"], Some("pod gpu/\\u{1b}, is of no"))]
#[case::all_nodes(Some("ops/driver-x7k2p"), None, &[], None)]
#[case::all_nodes_without_a_record(None, None, &[], None)]
#[tokio::test]
async fn after_an_end_only_the_nodes_of_those_agents_are_cleaned(
    #[case] status: Option<&str>,
    #[case] record: Option<&str>,
    #[case] ended: &[&str],
    #[case] wanted: Option<&str>,
) {
    let (name, mut node) = left("a", record.is_some());
    let annotations = &mut node["metadata"]["annotations"];
    annotations["longshore.dev/status"] = json!(json!({"format": 1, "pod": status}).to_string());
    if let Some(pod) = record {
        let text = json!({"pod": pod, "since": "2026-11-23T03:00:00Z", "reason": "r"}).to_string();
        annotations["longshore.dev/cordoned"] = json!(text);
    }
    let of =
        || Objects { nodes: BTreeMap::from([(name.clone(), node.clone())]), ..Objects::default() };
    let (_dir, kubectl) = by_script(&mut of());
    let (objects, _api, in_pod) = in_pod(of(), Duration::ZERO);
    let cleaning = Cleaning { only: sets(ended), ..Cleaning::default() };
    for backend in [kubectl, in_pod] {
        let cleaned = clean(&backend, &cleaning).await.expect("cleaned");
        let outcome = if wanted.is_some() { CleanOutcome::Kept } else { CleanOutcome::Cleaned };
        assert_eq!(cleaned.nodes[0].outcome, outcome);
        let reason = cleaned.nodes[0].reason.as_deref().unwrap_or_default();
        assert!(
            reason.contains(wanted.unwrap_or_default()) && !reason.contains('\u{1b}'),
            "{reason}"
        );
    }
    let is_patched = objects.lock().expect("objects").calls.contains(&"patch nodes".to_owned());
    assert_eq!(is_patched, wanted.is_none());
}

/// Pod that the node's status names once another program changed it between the two patches of its leftovers, and the
/// outcome.
#[rstest]
#[case::no_pod(None, CleanOutcome::Cleaned)]
#[case::pod_of_another_release(Some("ops/driver-x7k2p"), CleanOutcome::Kept)]
#[tokio::test]
async fn a_change_between_both_patches_does_not_hide_whose_node_it_is(
    #[case] then: Option<&'static str>,
    #[case] wanted: CleanOutcome,
) {
    let nodes = BTreeMap::from([left_by("a", "gpu/driver-x7k2p")]);
    let shared = Arc::new(Mutex::new(Objects { nodes, ..Objects::default() }));
    let served = shared.clone();
    let api = Api::by(move |request: &Request| {
        let (method, target) = request.line.split_once(' ').expect("a request");
        let mut objects = served.lock().expect("objects");
        let is_first = !objects.calls.contains(&"patch nodes/status".to_owned());
        if method == "PATCH" && target.contains("/status") && is_first {
            let node = objects.nodes.get_mut("a").expect("a node");
            node["metadata"]["resourceVersion"] = json!("20");
            let status = |pod| json!({"format": 1, "pod": pod}).to_string();
            node["metadata"]["annotations"] = match then {
                Some(pod) => json!({"longshore.dev/status": status(pod)}),
                None => json!({}),
            };
        }
        let (status, body) = objects.answer(method, target, &request.body);
        ScriptedAnswer::Body(status, body)
    });
    let cleaning = Cleaning { only: sets(&["gpu/driver"]), ..Cleaning::default() };
    let cleaned = clean(&backend_of(&api, Duration::ZERO), &cleaning).await.expect("cleaned");
    assert_eq!(cleaned.nodes[0].outcome, wanted);
}

/// The other leftovers of such a node are removed.
#[rstest]
#[case::after_an_end(&["gpu/driver"], CleanOutcome::Kept)]
#[case::all_nodes(&[], CleanOutcome::Failed)]
#[tokio::test]
async fn a_cordon_of_nobody_is_no_failure_of_an_uninstall(
    #[case] ended: &[&str],
    #[case] wanted: CleanOutcome,
) {
    let (name, mut node) = left_by("a", "gpu/driver-x7k2p");
    node["spec"]["unschedulable"] = json!(true);
    node["metadata"]["annotations"]["longshore.dev/cordoned"] = json!("me");
    let objects = Objects { nodes: BTreeMap::from([(name, node)]), ..Objects::default() };
    let (_objects, _api, backend) = in_pod(objects, Duration::ZERO);
    let cleaning = Cleaning { only: sets(ended), ..Cleaning::default() };
    let cleaned = clean(&backend, &cleaning).await.expect("cleaned");
    assert_eq!(cleaned.nodes[0].outcome, wanted);
    assert_eq!(cleaned.nodes[0].removed.len(), 4);
    let reason = cleaned.nodes[0].reason.as_deref().unwrap_or_default();
    assert!(reason.contains("none that an agent writes: both stay"), "{reason}");
}

/// The name of a DaemonSet, and the pod that the API server makes of it.
#[rstest]
#[case("gpu/driver", "gpu/driver-x7k2p", true)]
#[case("gpu/driver", "gpu/driver", false)]
#[case("gpu/driver", "gpu/driver-", false)]
#[case("gpu/driver", "driver-x7k2p", false)]
#[case("gpu/driver", "gpu/driver-pool-x7k2p", false)]
#[case("gpu/driver", "gpu-2/driver-x7k2p", false)]
// Of 60 characters, which are cut to 58.
#[case(
    "gpu/a23456789012345678901234567890123456789012345678901234567890",
    "gpu/a234567890123456789012345678901234567890123456789012345678x7k2p",
    true
)]
fn a_pod_is_known_by_the_name_that_it_is_given(
    #[case] set: &str,
    #[case] pod: &str,
    #[case] wanted: bool,
) {
    assert_eq!(set.parse::<DaemonSetRef>().expect("a place").makes(pod), wanted);
}

/// Size of a node's annotation, and the remedy.
#[rstest]
#[case::larger_than_an_agent_reads(4 << 20, None)]
#[case::larger_than_the_store_takes(17 << 20, Some("annotations or fields of many MiB"))]
#[tokio::test]
async fn the_size_of_an_object_does_not_end_a_clean(
    #[case] size: usize,
    #[case] remedy: Option<&str>,
) {
    let mut large = scene();
    large.nodes.get_mut("d").expect("a node")["metadata"]["annotations"]["x"] =
        json!("x".repeat(size));
    let (_objects, api, backend) = in_pod(large, Duration::from_secs(600));
    match (clean(&backend, &Cleaning::default()).await, remedy) {
        (Ok(cleaned), None) => assert_eq!(cleaned.cleaned, 3),
        (Err(failure), Some(remedy)) => {
            assert_eq!(failure.code(), ExitCode::Kubectl);
            assert!(failure.report().contains(remedy), "{}", failure.report());
            // The first page, and the second with each limit.
            assert_eq!(api.requests().len(), 7);
        }
        (ended, _) => panic!("{ended:?}"),
    }
}

#[tokio::test]
async fn a_daemon_set_that_is_made_anew_counts_as_gone() {
    let (objects, _api, backend) =
        in_pod(Objects { ending: u32::MAX, ..with_set([1; 6]) }, Duration::ZERO);
    let made_anew = async {
        while !objects.lock().expect("objects").is_deleted {
            tokio::task::yield_now().await;
        }
        let mut other = set([1; 6]);
        other["metadata"]["uid"] = json!("3-4");
        objects.lock().expect("objects").sets.insert("gpu/driver".into(), other);
    };
    let sets = sets(&["gpu/driver"]);
    let ended = end(&backend, &sets, Duration::from_secs(600));
    let (ended, ()) = tokio::join!(ended, made_anew);
    assert!(ended.expect("asked").is_none());
}

/// Calls that are refused, their failure, and the remedy.
#[rstest]
#[case::list(
    "list nodes",
    "(list nodes)",
    "apiGroups: [\"\"], resources: [nodes], verbs: [list]` to a role"
)]
#[case::delete(
    "delete daemonsets",
    "(delete daemonsets)",
    "apiGroups: [\"apps\"], resources: [daemonsets], verbs: [delete]` to a role"
)]
#[tokio::test]
async fn a_refused_call_has_the_rule_in_its_remedy(
    #[case] call: &'static str,
    #[case] named: &str,
    #[case] remedy: &str,
) {
    let objects = Objects { forbidden: vec![call], ..with_set([1; 6]) };
    let (_objects, _api, backend) = in_pod(objects, Duration::from_secs(600));
    let ended = end(&backend, &sets(&["gpu/driver"]), Duration::ZERO).await;
    let failure = match ended {
        Err(failure) => failure,
        Ok(_) => clean(&backend, &Cleaning::default()).await.expect_err("refused"),
    };
    assert_eq!(failure.code(), ExitCode::Kubectl);
    let report = failure.report();
    assert!(report.contains(named) && report.contains(remedy), "{report}");
    assert!(report.contains("the API server answered 403: User \"cleaner\" cannot"), "{report}");
}

/// Variables and files of a process, and the failure.
#[rstest]
#[case::no_pod(None, &[], "this is no pod of a cluster: KUBERNETES_SERVICE_HOST is not set")]
#[case::no_account(Some("10.0.0.1"), &["ca.crt"], "the pod has no service account: there is no token and ca.crt in ")]
#[case::no_certificates(Some("10.0.0.1"), &["token", "ca.crt"], "preparing the connection to the API server")]
#[tokio::test]
async fn outside_of_a_pod_there_is_no_service_account(
    #[case] host: Option<&str>,
    #[case] files: &[&str],
    #[case] wanted: &str,
) {
    let dir = tempfile::tempdir().expect("a directory");
    for name in files {
        fs::write(dir.path().join(name), "x").expect("written");
    }
    let env = |name: &str| host.filter(|_| name == "KUBERNETES_SERVICE_HOST").map(str::to_owned);
    let found = InCluster::of_pod(&env, dir.path(), Limits::default(), Duration::ZERO);
    let failure = found.expect_err("no service account");
    assert_eq!(failure.code(), ExitCode::Kubectl);
    let report = failure.report();
    assert!(report.starts_with(&format!("error: {wanted}")), "{report}");
    assert!(report.contains("remedy: run it in a pod with a service account"), "{report}");
}

#[rstest]
#[case("gpu/driver", true)]
#[case("driver", false)]
#[case("gpu/", false)]
#[case("gpu/a/b", false)]
#[case("GPU/driver", false)]
#[case("", false)]
fn a_daemon_set_has_a_namespace_and_a_name(#[case] text: &str, #[case] is_place: bool) {
    let parsed = text.parse::<DaemonSetRef>();
    assert_eq!(parsed.map(|set| set.to_string()).ok(), is_place.then(|| text.to_owned()));
}

#[tokio::test]
async fn the_status_of_nodes_is_the_same_by_both_backends() {
    let (_dir, kubectl) = by_script(&mut scene());
    let (_objects, _api, in_pod) = in_pod(scene(), Duration::ZERO);
    let by_kubectl = FleetStatus::from_nodes(kubectl.nodes(true).await.expect("nodes"));
    let by_pod = FleetStatus::from_nodes(in_pod.nodes(true).await.expect("nodes"));
    assert_eq!(by_pod, by_kubectl);
    assert_eq!(by_pod.nodes.len(), 5);
}
