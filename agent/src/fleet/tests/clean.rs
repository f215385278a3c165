//! `fleet clean` with a stand-in for kubectl: it prints files and notes the patches.

use longshore_cluster::NodeLeftovers;

use super::*;

const CORDON: &str =
    r#"{"pod":"gpu/driver-a","since":"2026-11-23T03:00:00Z","reason":"driver 535 to 550"}"#;

/// A node with these leftovers, and with things of other programs.
fn left(name: &str, other: &Value) -> Value {
    let mut node = node(name, status(name, json!({})));
    node["metadata"]["resourceVersion"] = json!("7");
    for (at, value) in [
        ("/metadata/labels/longshore.dev~1driver-version", json!("535.261.03")),
        ("/metadata/labels/longshore.dev~1flavour", json!("open")),
        ("/metadata/labels/longshore.dev~1state", json!("ready")),
        ("/spec/taints", json!([{"key": "example.com/other", "effect": "NoExecute", "new": 1}])),
    ] {
        put(&mut node, at, value);
    }
    let condition = json!({"type": "GpuDriverReady", "status": "True", "reason": "DriverReady"});
    node["status"]["conditions"].as_array_mut().expect("a list").push(condition);
    for (at, value) in other.as_object().expect("an object") {
        put(&mut node, at, value.clone());
    }
    node
}

/// Puts a value at a JSON pointer, whose last part need not exist.
fn put(node: &mut Value, at: &str, value: Value) {
    let (parent, key) = at.rsplit_once('/').expect("a pointer");
    if node.pointer(parent).is_none() {
        put(node, parent, json!({}));
    }
    let parent = node.pointer_mut(parent).expect("a parent");
    match parent.as_array_mut() {
        Some(list) => list.push(value),
        None => parent[key.replace("~1", "/")] = value,
    }
}

/// A node that was drained by longshore when its agent lost its rights.
fn drained(name: &str) -> Value {
    left(
        name,
        &json!({
            "/metadata/annotations/longshore.dev~1cordoned": CORDON,
            "/spec/unschedulable": true,
            "/spec/taints/-": {"key": "longshore.dev/driver-not-ready", "effect": "NoSchedule"},
        }),
    )
}

fn pod(node: &str, name: &str, container: &str, phase: &str) -> Value {
    json!({
        "metadata": {"namespace": "gpu", "name": name},
        "spec": {"nodeName": node, "containers": [{"name": "side"}, {"name": container}]},
        "status": {"phase": phase},
    })
}

/// A kubectl for these nodes. Files of a node NAME: `pods-NAME` has its pods, `node-NAME` is what it is when it
/// is read again, `refused-NAME-N` the message of its patch number N. Patches are answered by a node whose
/// version is 8.
fn scene(nodes: &[Value]) -> (tempfile::TempDir, Kubectl) {
    let script = r#"
echo "$*" >> calls
case "$1 $2" in
"get nodes") exec cat nodes ;;
"get node") exec cat "node-$3" ;;
"get pods")
    name=${4#--field-selector=spec.nodeName=}
    if test -f "pods-$name"; then exec cat "pods-$name"; fi
    echo '{"items": []}' ;;
"patch node")
    number=$(($(cat "patches-$3" 2>/dev/null || echo 0) + 1))
    echo "$number" > "patches-$3"
    if test -f "refused-$3-$number"; then cat "refused-$3-$number" >&2; exit 1; fi
    echo "{\"metadata\": {\"name\": \"$3\", \"resourceVersion\": \"8\"}}" ;;
*) exit 9 ;;
esac"#;
    let (dir, kubectl) = scripted(script, Duration::from_secs(60));
    fs::write(dir.path().join("nodes"), json!({"items": nodes}).to_string()).expect("written");
    (dir, kubectl)
}

fn write(dir: &tempfile::TempDir, file: &str, text: &str) {
    fs::write(dir.path().join(file), text).expect("written");
}

fn write_pods(dir: &tempfile::TempDir, node: &str, pods: &[Value]) {
    write(dir, &format!("pods-{node}"), &json!({"items": pods}).to_string());
}

const CONFLICT: &str = "Error from server (Conflict): Operation cannot be fulfilled on nodes \"a\": the \
                        object has been modified; please apply your changes to the latest version\n";
const FORBIDDEN: &str = "Error from server (Forbidden): nodes \"gpu-4\" is forbidden: User \"me\" cannot \
                         patch resource \"nodes\" in API group \"\" at the cluster scope";

async fn cleaned(kubectl: &Kubectl) -> FleetClean {
    clean(&by(kubectl), &Cleaning::default()).await.expect("a list")
}

/// Patches of a node, with their options.
fn patches(dir: &tempfile::TempDir, name: &str) -> Vec<(String, Value)> {
    let calls = fs::read_to_string(dir.path().join("calls")).expect("calls");
    let of_node =
        calls.lines().filter_map(|call| call.strip_prefix(&format!("patch node {name} ")));
    let split = |call: &str| {
        let (options, patch) = call.split_once(" --patch=").expect("a patch");
        let patch = patch.strip_suffix(" --output=json").expect("an option");
        (options.to_owned(), serde_json::from_str(patch).expect("json"))
    };
    of_node.map(split).collect()
}

#[tokio::test]
async fn nodes_without_an_agent_are_cleaned_and_the_others_are_named() {
    let mut nodes = vec![drained("gpu-2"), left("gpu-4", &json!({})), left("gpu-1", &json!({}))];
    nodes.extend([left("gpu-3", &json!({})), node("other", None)]);
    let (dir, kubectl) = scene(&nodes);
    write_pods(&dir, "gpu-3", &[pod("gpu-3", "driver-gpu-3", "longshore", "Running")]);
    write(&dir, "refused-gpu-4-1", FORBIDDEN);
    let cleaned = cleaned(&kubectl).await;
    assert_in_page(&cleaned.render());
    assert_eq!((cleaned.cleaned, cleaned.kept, cleaned.failed), (2, 1, 1));
    let json = serde_json::to_value(&cleaned).expect("json");
    let outcomes: Vec<&Value> = (0..4).map(|at| &json["nodes"][at]["outcome"]).collect();
    assert_eq!(outcomes, ["cleaned", "cleaned", "kept", "failed"]);
    assert_eq!(json["nodes"][0]["removed"][0], "label longshore.dev/driver-version");
    assert_eq!(json["dry_run"], false);
    assert!(patches(&dir, "gpu-3").is_empty());
    let [(metadata, first), (of_status, second)] = &patches(&dir, "gpu-2")[..] else {
        panic!("two patches");
    };
    assert_eq!((metadata.as_str(), of_status.as_str()), MERGE_AND_STATUS);
    let labels = json!({
        "longshore.dev/driver-version": null, "longshore.dev/flavour": null,
        "longshore.dev/state": null,
    });
    let annotations = json!({"longshore.dev/status": null, "longshore.dev/cordoned": null});
    assert_eq!(
        *first,
        json!({
            "metadata": {"resourceVersion": "7", "labels": labels, "annotations": annotations},
            "spec": {
                "taints": [{"key": "example.com/other", "effect": "NoExecute", "new": 1}],
                "unschedulable": null,
            },
        })
    );
    let condition = json!({"$patch": "delete", "type": "GpuDriverReady"});
    assert_eq!(
        *second,
        json!({"metadata": {"resourceVersion": "8"}, "status": {"conditions": [condition]}}),
        "it holds for the version that the first patch made"
    );
}

const MERGE_AND_STATUS: (&str, &str) = ("--type=merge", "--subresource=status --type=strategic");

/// Changes of a node that has no leftovers else, and those that are found.
#[rstest]
#[case::none(json!({}), &[])]
#[case::label(json!({"/metadata/labels/longshore.dev~1next-kernel": "ready"}), &["label longshore.dev/next-kernel"])]
#[case::label_of_a_person(json!({"/metadata/labels/longshore.dev~1pool": "a"}), &[])]
#[case::unreadable_status(
    json!({"/metadata/annotations/longshore.dev~1status": "\u{1b}"}),
    &["annotation longshore.dev/status"]
)]
#[case::request(
    json!({"/metadata/annotations/nvidia.com~1gpu-driver-upgrade.driver-wait-for-safe-load": "longshore: driver in use by a"}),
    &["annotation nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load"]
)]
#[case::request_of_another(
    json!({"/metadata/annotations/nvidia.com~1gpu-driver-upgrade.driver-wait-for-safe-load": "true"}),
    &[]
)]
#[case::taint(
    json!({"/spec/taints": [{"key": "longshore.dev/driver-not-ready", "effect": "NoExecute"}]}),
    &["taint longshore.dev/driver-not-ready"]
)]
#[case::taint_of_another(json!({"/spec/taints": [{"key": "longshore.dev/driver"}, 7, {"key": 7}]}), &[])]
#[case::condition(
    json!({"/status/conditions/-": {"type": "GpuDriverReady", "status": "False", "reason": "DriverRemoved"}}),
    &["condition GpuDriverReady"]
)]
#[case::condition_of_another(
    json!({"/status/conditions/-": {"type": "GpuDriverReady", "status": "True", "reason": "AllGpusWell"}}),
    &[]
)]
#[case::cordon(
    json!({"/metadata/annotations/longshore.dev~1cordoned": CORDON, "/spec/unschedulable": true}),
    &["annotation longshore.dev/cordoned", "cordon"]
)]
#[case::cordon_of_another(json!({"/spec/unschedulable": true}), &[])]
#[case::cordon_undone_by_another(
    json!({"/metadata/annotations/longshore.dev~1cordoned": CORDON}),
    &["annotation longshore.dev/cordoned"]
)]
#[case::record_of_another(
    json!({"/metadata/annotations/longshore.dev~1cordoned": "{}", "/spec/unschedulable": true}),
    &[]
)]
fn only_changes_of_agents_are_leftovers(#[case] changes: Value, #[case] wanted: &[&str]) {
    let node = changed(&changes);
    let found = NodeLeftovers::read(node.to_string().as_bytes()).expect("a node");
    let shown: Vec<String> = found.found.iter().map(ToString::to_string).collect();
    assert_eq!(shown, wanted);
    let is_of_spec = |name: &&&str| name.starts_with("taint") || **name == "cordon";
    let patch = found.patch().unwrap_or_default();
    assert_eq!(
        patch["spec"].as_object().map_or(0, serde_json::Map::len),
        wanted.iter().filter(is_of_spec).count()
    );
}

/// Pods of a node whose status names `gpu/driver-a`, the container of the command line, and the outcome.
#[rstest]
#[case::none(&[], None, CleanOutcome::Cleaned)]
#[case::agent(&[pod("a", "x", "longshore", "Running")], None, CleanOutcome::Kept)]
#[case::operator(&[pod("a", "x", "nvidia-driver-ctr", "Pending")], None, CleanOutcome::Kept)]
#[case::of_nvidia(&[pod("a", "x", "nvidia-driver-ctr", "Running")], Some("longshore"), CleanOutcome::Cleaned)]
#[case::given(&[pod("a", "x", "gpu", "Running")], Some("gpu"), CleanOutcome::Kept)]
#[case::status(&[pod("a", "driver-a", "gpu", "Running")], None, CleanOutcome::Kept)]
#[case::another(&[pod("a", "train", "python", "Running")], None, CleanOutcome::Cleaned)]
#[case::ended(&[pod("a", "driver-a", "longshore", "Failed")], None, CleanOutcome::Cleaned)]
#[case::elsewhere(&[pod("b", "driver-a", "longshore", "Running")], None, CleanOutcome::Cleaned)]
#[tokio::test]
async fn an_agent_is_known_by_its_container_or_the_status(
    #[case] pods: &[Value],
    #[case] container: Option<&str>,
    #[case] wanted: CleanOutcome,
) {
    let (dir, kubectl) = scene(&[left("a", &json!({}))]);
    write_pods(&dir, "a", pods);
    let cleaning = Cleaning { container: container.map(str::to_owned), ..Cleaning::default() };
    let cleaned = clean(&by(&kubectl), &cleaning).await.expect("a list");
    assert_eq!(cleaned.nodes[0].outcome, wanted);
    assert_eq!(patches(&dir, "a").is_empty(), wanted == CleanOutcome::Kept);
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let (dir, kubectl) = scene(&[drained("a"), left("b", &json!({}))]);
    write_pods(&dir, "b", &[pod("b", "x", "longshore", "Running")]);
    let cleaning = Cleaning { dry_run: true, ..Cleaning::default() };
    let cleaned = clean(&by(&kubectl), &cleaning).await.expect("a list");
    let text = cleaned.render();
    assert!(text.contains("a     to clean  labels driver-version, "), "{text}");
    assert!(text.ends_with("2 nodes: 1 to clean, 1 kept, 0 failed\n"), "{text}");
    assert!(patches(&dir, "a").is_empty() && patches(&dir, "b").is_empty());
}

#[tokio::test]
async fn a_fleet_without_leftovers_is_not_asked_further() {
    let (dir, kubectl) = scene(&[node("a", None), node("b", None)]);
    assert_eq!(cleaned(&kubectl).await.render(), "no node has leftovers of an agent\n");
    let calls = fs::read_to_string(dir.path().join("calls")).expect("calls");
    assert_eq!(calls, "get nodes --output=json\n");
}

/// The node as it is read after the first patch was refused for another program's change.
#[rstest]
#[case::tainted_by_another(
    left("a", &json!({"/spec/taints/-": {"key": "new"}, "/metadata/resourceVersion": "9"})),
    &[],
    CleanOutcome::Cleaned,
    Some("9")
)]
#[case::cleaned_by_another(node("a", None), &[], CleanOutcome::Cleaned, None)]
#[case::with_an_agent(left("a", &json!({})), &[pod("a", "x", "longshore", "Running")], CleanOutcome::Kept, None)]
#[tokio::test]
async fn a_change_of_another_program_is_never_overwritten(
    #[case] then: Value,
    #[case] pods: &[Value],
    #[case] wanted: CleanOutcome,
    #[case] version: Option<&str>,
) {
    let (dir, kubectl) = scene(&[drained("a")]);
    write(&dir, "refused-a-1", CONFLICT);
    write(&dir, "node-a", &then.to_string());
    // The agent's pod is there from the second look on.
    let script = fs::read_to_string(&kubectl.program).expect("a script");
    let later = r#""patch node") cp later pods-a"#;
    fs::write(&kubectl.program, script.replace(r#""patch node")"#, later)).expect("written");
    write(&dir, "later", &json!({"items": pods}).to_string());
    let cleaned = cleaned(&kubectl).await;
    assert_eq!(cleaned.nodes[0].outcome, wanted);
    let second = patches(&dir, "a").get(1).map(|(_, patch)| patch.clone());
    let found = second.as_ref().map(|patch| patch["metadata"]["resourceVersion"].clone());
    assert_eq!(found, version.map(|version| json!(version)));
    if let Some(patch) = second {
        assert!(patch["spec"].as_object().is_some_and(serde_json::Map::is_empty), "{patch}");
    }
}

/// Messages of refused patches by their numbers, the failure, and the leftovers that were removed.
#[rstest]
#[case::conflicts(
    &[(1, CONFLICT), (2, CONFLICT), (3, CONFLICT), (4, CONFLICT), (5, CONFLICT)],
    "other programs changed it during each of 5 tries",
    0
)]
#[case::status(&[(2, "error: unknown flag: --subresource")], "kubectl patch node: error: unknown flag", 4)]
#[case::hostile(&[(1, "no\u{1b}[2J\n")], "kubectl patch node: no\\u{1b}[2J", 0)]
#[tokio::test]
async fn a_node_that_cannot_be_cleaned_has_the_reason(
    #[case] refused: &[(u32, &str)],
    #[case] wanted: &str,
    #[case] removed: usize,
) {
    let (dir, kubectl) = scene(&[left("a", &json!({})), left("b", &json!({}))]);
    for (number, message) in refused {
        write(&dir, &format!("refused-a-{number}"), message);
    }
    write(&dir, "node-a", &left("a", &json!({})).to_string());
    let cleaned = cleaned(&kubectl).await;
    assert_eq!((cleaned.cleaned, cleaned.failed), (1, 1));
    let reason = cleaned.nodes[0].reason.as_deref().unwrap_or_default();
    assert!(reason.contains(wanted), "{reason}");
    assert_eq!(cleaned.nodes[0].removed.len(), removed);
}

/// Changes of a node, the answer about its pods, and the failure.
#[rstest]
#[case::pods(json!({"/metadata/labels/longshore.dev~1state": "x"}), "<html>\u{1b}", "kubectl get pods: not a list of pods")]
#[case::no_pods(json!({"/metadata/labels/longshore.dev~1state": "x"}), "{}", "not a list of pods: missing field")]
#[case::version(json!({"/metadata/labels/longshore.dev~1state": "x"}), EMPTY, "its object has no version")]
#[case::name(
    json!({"/metadata/labels/longshore.dev~1state": "x", "/metadata/name": "--all\u{1b}[2J"}),
    EMPTY,
    "its name is not a valid node name"
)]
#[case::foreign_record(
    json!({"/metadata/annotations/longshore.dev~1cordoned": "me", "/spec/unschedulable": true,
           "/metadata/resourceVersion": "7"}),
    EMPTY,
    "longshore.dev/cordoned is none that an agent writes: both stay"
)]
#[tokio::test]
async fn a_node_about_which_an_answer_cannot_be_used_is_left_as_it_is(
    #[case] changes: Value,
    #[case] pods: &str,
    #[case] wanted: &str,
) {
    let (dir, kubectl) = scene(&[changed(&changes)]);
    write(&dir, "pods-a", pods);
    let cleaned = cleaned(&kubectl).await;
    assert_eq!(cleaned.failed, 1);
    let text = cleaned.render();
    assert!(text.contains(wanted) && !text.contains('\u{1b}'), "{text:?}");
    let calls = fs::read_to_string(dir.path().join("calls")).expect("calls");
    assert!(!calls.contains("patch") && !calls.contains("all\u{1b}"), "{calls}");
}

const EMPTY: &str = r#"{"items": []}"#;

/// A node without leftovers, with these changes.
fn changed(changes: &Value) -> Value {
    let mut node = node("a", None);
    for (at, value) in changes.as_object().expect("an object") {
        put(&mut node, at, value.clone());
    }
    node
}
