//! The fleet's commands with a stand-in for kubectl: a script that prints files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kubectl::Kubectl;
use super::*;
use longshore_core::failure::ExitCode;
use longshore_core::testing::write_program;

mod clean;
mod doctor;
mod in_cluster;

const NOW: &str = "2026-11-22T12:00:00Z";
const PAGE: &str = include_str!("../../../../docs/cluster/fleet.md");

fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

/// A kubectl that is this shell script, in a directory.
fn scripted(script: &str, limit: Duration) -> (tempfile::TempDir, Kubectl) {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("kubectl");
    write_program(&program, &format!("#!/bin/sh\ncd '{}'\n{script}\n", dir.path().display()));
    (dir, Kubectl { program, context: None, kubeconfig: None, limit })
}

/// The cluster as this kubectl answers.
fn by(kubectl: &Kubectl) -> Backend {
    Backend::Kubectl(kubectl.clone())
}

/// A kubectl for these nodes. The file `plan-POD` is the plan of a pod, `pod-POD` the pod.
fn cluster(nodes: &[Value]) -> (tempfile::TempDir, Kubectl) {
    let script = r#"
echo "$*" >> calls
case "$1" in
exec)
    test -f "plan-$2" || { echo 'error: unable to upgrade connection: container not found' >&2; exit 1; }
    cat "plan-$2"
    test ! -f "code-$2" || { echo "command terminated with exit code $(cat "code-$2")" >&2; exit "$(cat "code-$2")"; } ;;
get)
    test "$2" = nodes && exec cat nodes
    test "$2" = pods && { test -f pods || { echo 'Error from server (Forbidden): pods' >&2; exit 1; }; exec cat pods; }
    test -f "pod-$3" || { echo "Error from server (NotFound): pods \"$3\" not found" >&2; exit 1; }
    cat "pod-$3" ;;
esac"#;
    let (dir, kubectl) = scripted(script, Duration::from_secs(60));
    let list = json!({"kind": "List", "apiVersion": "v1", "items": nodes});
    fs::write(dir.path().join("nodes"), list.to_string()).expect("written");
    (dir, kubectl)
}

/// A node with this annotation.
fn node(name: &str, annotation: Option<String>) -> Value {
    let labels = json!({"nvidia.com/gpu.present": "true"});
    let annotations = match annotation {
        Some(text) => json!({"longshore.dev/status": text, "example.com/other": "x"}),
        None => json!({}),
    };
    json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "status": {
            "conditions": [{"type": "MemoryPressure", "status": "False"},
                           {"type": "Ready", "status": "True"}],
            "nodeInfo": {"kernelVersion": "6.1.0-50-amd64"},
        },
    })
}

/// The status of an agent that is ready, with these other fields.
fn status(name: &str, other: Value) -> Option<String> {
    let mut status = json!({
        "format": 1, "agent": "0.1.0", "pod": format!("gpu/driver-{name}"),
        "kernel": "6.1.0-50-amd64", "phase": "ready", "since": "2026-11-19T11:00:00Z",
        "wanted": "535.261.03", "live": "535.261.03", "flavour": "open", "holders": [],
        "last_failure": null, "prebuilt": true, "next_kernel": null, "cordoned": false,
    });
    for (key, value) in other.as_object().expect("an object") {
        status[key] = value.clone();
    }
    Some(status.to_string())
}

/// Nodes of every kind.
fn fleet() -> Vec<Value> {
    let holders = json!([
        {"program": "python3", "pod": "team-a/train-0", "since": "2026-11-22T09:00:00Z"},
        {"program": "nvidia-smi", "pod": null, "since": null},
    ]);
    let failure = json!({
        "code": "in-use", "cause": "the driver is in use by 2 processes",
        "remedy": "end them, or let longshore evict their pods (cluster.evict)",
    });
    let mut down = node("gpu-5", status("gpu-5", json!({})));
    down["status"]["conditions"][1]["status"] = json!("Unknown");
    vec![
        node(
            "gpu-2",
            status(
                "gpu-2",
                json!({
                    "phase": "in-use", "since": "2026-11-22T10:30:00Z", "wanted": "550.163.01",
                    "holders": holders, "last_failure": failure, "prebuilt": false, "cordoned": true,
                }),
            ),
        ),
        node("gpu-4", None),
        node(
            "gpu-1",
            status(
                "gpu-1",
                json!({
                    "next_kernel": {"release": "6.1.0-51-amd64", "ready": true},
                }),
            ),
        ),
        node(
            "gpu-3",
            status(
                "gpu-3",
                json!({
                    "live": null, "phase": "acquiring", "since": "2026-11-22T11:59:18Z", "prebuilt": null,
                    "next_kernel": {"release": "6.1.0-51-amd64", "ready": false},
                }),
            ),
        ),
        down,
    ]
}

async fn status_of(nodes: &[Value], all: bool) -> FleetStatus {
    let (_dir, kubectl) = cluster(nodes);
    FleetStatus::from_nodes(by(&kubectl).nodes(all).await.expect("nodes"))
}

/// A pod of the namespace gpu.
fn pod(name: &str, node: &str, container: &str, phase: &str) -> Value {
    json!({"metadata": {"namespace": "gpu", "name": name}, "status": {"phase": phase},
           "spec": {"nodeName": node, "containers": [{"name": container}]}})
}

/// A condition of the driver.
fn condition(status: &str, reason: &str, message: &str) -> Value {
    json!({"type": "GpuDriverReady", "status": status, "reason": reason, "message": message})
}

#[rstest]
#[case::ready(json!({}), Some(("True", "DriverReady", "driver 535.261.03 is ready")), true, "")]
#[case::no_condition(json!({}), None, true, "")]
// Seen in the annotation of an agent that knew no `degraded`.
#[case::earlier_agent(
    json!({"live": null}),
    Some(("False", "DriverFailed", "the driver is not whole: module-replaced: nvidia is no longer loaded")),
    false,
    "DriverFailed: the driver is not whole: module-replaced"
)]
#[case::unknown(json!({}), Some(("Unknown", "NodeStatusUnknown", "m")), false, "NodeStatusUnknown: m")]
#[case::no_driver(json!({"live": null}), None, false, "no driver is loaded")]
#[case::degraded(
    json!({"phase": "degraded", "live": null}),
    Some(("False", "DriverFailed", "the driver is not whole")),
    false,
    "DriverFailed: the driver is not whole"
)]
#[case::idle(json!({"phase": "idle", "live": null}), Some(("True", "NoGpu", "no GPU is here")), true, "  idle ")]
#[case::degraded_alone(json!({"phase": "degraded"}), None, false, "  degraded  ")]
#[case::hostile(json!({}), Some(("\u{1b}[2J", "\u{1b}", "a\nb")), false, "\\u{1b}: a\\nb")]
#[tokio::test]
async fn the_condition_of_the_driver_counts_too(
    #[case] other: Value,
    #[case] with: Option<(&str, &str, &str)>,
    #[case] is_ready: bool,
    #[case] wanted: &str,
) {
    let mut node = node("gpu-1", status("gpu-1", other));
    if let (Some((status, reason, message)), Some(conditions)) =
        (with, node["status"]["conditions"].as_array_mut())
    {
        conditions.push(condition(status, reason, message));
    }
    let status = status_of(&[node], false).await;
    assert_eq!(status.not_ready == 0, is_ready);
    let text = status.render(now());
    assert!(text.contains(wanted) && !text.contains('\u{1b}'), "{text}");
}

#[tokio::test]
async fn a_node_whose_agent_has_ended_is_told_and_is_not_ready() {
    let with_pods = |pods: Option<Vec<Value>>| async move {
        let (dir, kubectl) = cluster(&[node("gpu-1", status("gpu-1", json!({})))]);
        if let Some(pods) = pods {
            let list = json!({"items": pods}).to_string();
            fs::write(dir.path().join("pods"), list).expect("written");
        }
        let mut nodes = by(&kubectl).nodes(false).await.expect("nodes");
        nodes.look_for_agents(&by(&kubectl)).await;
        FleetStatus::from_nodes(nodes)
    };
    for (pods, readiness) in [
        (Some(vec![pod("driver-gpu-1", "gpu-1", "agent", "Running")]), Readiness::Ready),
        (Some(vec![pod("driver-new", "gpu-1", "longshore", "Pending")]), Readiness::Ready),
        (Some(vec![pod("driver-gpu-1", "gpu-1", "agent", "Failed")]), Readiness::NoAgent),
        (Some(vec![pod("driver-new", "gpu-2", "longshore", "Running")]), Readiness::NoAgent),
        (Some(vec![pod("other", "gpu-1", "other", "Running")]), Readiness::NoAgent),
        (Some(vec![]), Readiness::NoAgent),
        // Pods may not be listed: not known.
        (None, Readiness::Ready),
    ] {
        let named = format!("{pods:?}");
        let fleet = with_pods(pods).await;
        assert_eq!(fleet.nodes[0].readiness, readiness, "{named}");
        let shown = fleet.render(now());
        assert_eq!(shown.contains("no agent runs there any more"), readiness == Readiness::NoAgent);
        assert_eq!(shown.contains("1 ready"), readiness == Readiness::Ready, "{shown}");
    }
}

/// Asserts that the page shows the output of a command.
fn assert_in_page(text: &str) {
    assert!(PAGE.contains(&format!("\n{text}```\n")), "docs/cluster/fleet.md has not:\n{text}");
}

#[tokio::test]
async fn every_node_has_its_line_in_the_order_of_names() {
    let status = status_of(&fleet(), false).await;
    assert_eq!((status.ready, status.not_ready), (1, 4));
    assert_in_page(&status.render(now()));
    let json = serde_json::to_value(&status).expect("json");
    let readiness: Vec<&Value> = (0..5).map(|at| &json["nodes"][at]["readiness"]).collect();
    assert_eq!(readiness, ["ready", "not-ready", "not-ready", "no-agent", "not-ready"]);
    assert_eq!(json["nodes"][1]["status"]["last_failure"]["code"], "in-use");
    assert_eq!(json["nodes"][1]["status"]["holders"][0]["pod"], "team-a/train-0");
    assert_eq!(json["nodes"][4]["reason"], "the node is not ready");
}

#[tokio::test]
async fn nodes_without_a_gpu_are_shown_on_request() {
    let mut plain = node("plain", None);
    plain["metadata"]["labels"] = json!({"kubernetes.io/os": "linux"});
    let mut bare = json!({"metadata": {"name": "bare"}});
    bare["metadata"]["labels"] = json!(null);
    let mut denied = plain.clone();
    denied["metadata"] = json!({"name": "no", "labels": {"nvidia.com/gpu.present": "false"}});
    let nodes = [plain, bare, denied];
    let some = status_of(&nodes, false).await;
    assert!(some.nodes.is_empty());
    assert!(some.render(now()).contains("--all lists every node"));
    let all = status_of(&nodes, true).await;
    let names: Vec<&str> = all.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["bare", "no", "plain"]);
    assert!(all.nodes.iter().all(|node| node.readiness == Readiness::NoAgent));
}

#[rstest]
#[case::not_json("\u{1b}[2J", "not a status: expected value")]
#[case::no_object("7", "not a status: invalid type: integer")]
#[case::no_format("{}", "it has no format")]
#[case::newer(r#"{"format":2,"phase":["other"]}"#, "format 2, and this longshore reads format 1")]
#[case::negative(r#"{"format":-1}"#, "not a status")]
#[case::another_type(r#"{"format":1,"phase":{"\u001b[31m":1}}"#, "not a status")]
#[case::large("LARGE", "more than an agent writes")]
#[case::deep("DEEP", "not a status")]
#[tokio::test]
async fn an_unreadable_annotation_is_named_and_shown_by_no_byte(
    #[case] annotation: &str,
    #[case] wanted: &str,
) {
    let annotation = match annotation {
        "LARGE" => json!({"format": 1, "phase": "x".repeat(70_000)}).to_string(),
        "DEEP" => "[".repeat(50_000),
        text => text.to_owned(),
    };
    let status = status_of(&[node("gpu-1", Some(annotation))], false).await;
    assert_eq!((status.ready, status.not_ready), (0, 1));
    assert_eq!(status.nodes[0].readiness, Readiness::Unreadable);
    let text = status.render(now());
    assert!(text.contains(wanted), "{text}");
    assert!(text.len() < 1000 && !text.contains('\u{1b}'), "{text}");
}

#[tokio::test]
async fn text_of_an_annotation_is_escaped_and_cut() {
    let evil = "a\n\u{1b}]0;x\u{7}\r\u{9b}2J";
    let annotation = status(
        "gpu-1",
        json!({
            "phase": "ready\nnode-2  ready", "since": "yesterday\u{1b}[2J", "wanted": evil.repeat(9000 / evil.len()),
            "live": evil, "holders": vec![json!({"program": evil, "pod": evil}); 500],
            "last_failure": {"code": evil, "cause": evil, "remedy": evil},
            "next_kernel": {"release": evil},
        }),
    );
    let status = status_of(&[node("gpu-1", annotation)], false).await;
    assert_eq!(status.not_ready, 1, "its phase is another one");
    let text = status.render(now());
    let json = serde_json::to_string_pretty(&status).expect("json");
    for text in [&text, &json] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
    assert!(text.lines().count() < 9, "{text}");
    assert!(text.len() < 9000, "{}", text.len());
    let kept = status.nodes[0].status.as_ref().map(|s| (s.holders.len(), s.more_holders));
    assert_eq!(kept, Some((40, 460)));
}

#[tokio::test]
async fn an_annotation_may_lack_fields_and_have_others() {
    let text = r#"{"format":1,"phase":"ready","live":"1","pod":null,"newer":{"a":1},"holders":[{}],"more_holders":7}"#;
    let status = status_of(&[node("gpu-1", Some(text.to_owned()))], false).await;
    assert_eq!(status.ready, 1);
    let text = status.render(now());
    assert!(text.contains("gpu-1  6.1.0-50-amd64  -       1     ready  -    -"), "{text}");
    assert!(text.contains("  8: , ...\n"), "{text}");
}

#[rstest]
#[case("2026-11-22T12:05:00Z", "0s")]
#[case("2026-11-22T11:58:01Z", "119s")]
#[case("2026-11-22T11:58:00Z", "2m")]
#[case("2026-11-22T10:00:00Z", "2h")]
#[case("2026-11-20T12:00:00Z", "2d")]
#[tokio::test]
async fn an_age_is_in_its_largest_unit(#[case] since: &str, #[case] wanted: &str) {
    let annotation = status("gpu-1", json!({"since": since}));
    let text = status_of(&[node("gpu-1", annotation)], false).await.render(now());
    assert!(text.contains(&format!("  ready  {wanted} ")), "{text}");
}

#[tokio::test]
async fn a_thousand_nodes_are_read() {
    let image = json!({"names": ["registry.example.com/a@sha256:".to_owned() + &"0".repeat(64)], "sizeBytes": 1});
    let nodes: Vec<Value> = (0..1000)
        .rev()
        .map(|n| {
            let mut node = node(&format!("gpu-{n:04}"), status(&n.to_string(), json!({})));
            node["status"]["images"] = json!(vec![image.clone(); 50]);
            node
        })
        .collect();
    let status = status_of(&nodes, false).await;
    assert_eq!((status.ready, status.not_ready), (1000, 0));
    let text = status.render(now());
    assert_eq!(text.lines().count(), 1002);
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("gpu-0000 ")));
    assert!(text.ends_with("\n1000 nodes: 1000 ready, 0 not ready\n"));
}

/// A failing script, and a part of the message.
#[rstest]
#[case("echo 'The connection to the server 10.0.0.1:6443 was refused' >&2; exit 1", "was refused")]
#[case("printf 'one\\ntwo\\nthree\\n\\033[2Jfour\\n' >&2; exit 1", ": two; three; \\u{1b}[2Jfour")]
#[case("echo 'https://u:secret@proxy.example.com: refused' >&2; exit 1", "proxy.example.com")]
#[case("exit 3", "ended with exit status: 3, without a message")]
#[case("kill -9 $$", "ended with signal: 9")]
#[case("echo '<html>'", "not a list of nodes: expected value")]
#[case("echo '{\"items\": [{\"metadata\": {}}]}'", "not a list of nodes: missing field `name`")]
#[case("true", "not a list of nodes: EOF")]
#[tokio::test]
async fn a_failure_of_kubectl_has_its_own_code_and_words(
    #[case] script: &str,
    #[case] wanted: &str,
) {
    let (_dir, kubectl) = scripted(script, Duration::from_secs(60));
    let failure = by(&kubectl).nodes(false).await.expect_err("it fails");
    assert_eq!(failure.code(), ExitCode::Kubectl);
    let text = failure.one_line();
    assert!(text.contains(wanted), "{text}");
    assert!(!text.contains("secret") && !text.contains(char::is_control), "{text:?}");
}

#[tokio::test]
async fn a_kubectl_that_hangs_is_killed() {
    let script = "echo $$ > pid; exec sleep 600";
    let (dir, kubectl) = scripted(script, Duration::from_secs(2));
    let begun = Instant::now();
    let failure = by(&kubectl).nodes(false).await.expect_err("it hangs");
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(failure.code(), ExitCode::Kubectl);
    assert!(failure.one_line().contains("no end within 2s; killed"), "{failure}");
    let pid = fs::read_to_string(dir.path().join("pid")).expect("started");
    let stat = Path::new("/proc").join(pid.trim()).join("stat");
    // tokio reaps it later: until then it is a zombie.
    let is_gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    while !is_gone() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it lives on");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let (_dir, kubectl) = scripted("exec yes", Duration::from_secs(60));
    let failure = kubectl.call(&["get"], 1 << 20).await.expect_err("too much");
    assert!(failure.one_line().contains("more than 1 MiB of output"), "{failure}");
    let (_dir, kubectl) = scripted("yes | head -c 9000000 >&2; exit 1", Duration::from_secs(60));
    let answer = kubectl.call(&["get"], 1 << 20).await.expect("ends");
    assert!(answer.message.len() < 500, "{}", answer.message);
}

#[tokio::test]
async fn a_missing_kubectl_is_named() {
    for (program, wanted) in [
        ("longshore-no-such-kubectl", "longshore-no-such-kubectl is not on the PATH"),
        ("/longshore/no/kubectl", "there is no /longshore/no/kubectl"),
        ("/", "starting /"),
    ] {
        let limit = Duration::from_secs(60);
        let program = program.into();
        let kubectl = Kubectl { program, context: None, kubeconfig: None, limit };
        let failure = by(&kubectl).nodes(false).await.expect_err("there is none");
        assert_eq!(failure.code(), ExitCode::Kubectl);
        assert!(failure.to_string().contains(wanted), "{failure}");
        assert!(failure.remedy_text().is_some_and(|remedy| remedy.contains("--kubectl")));
    }
}

#[tokio::test]
async fn options_are_handed_on_as_single_words() {
    let (_dir, kubectl) = scripted(r#"printf '[%s]' "$@" >&2; exit 1"#, Duration::from_secs(60));
    let context = Some("-a b;c".to_owned());
    let kubectl = Kubectl { context, kubeconfig: Some("/home/me/my config".into()), ..kubectl };
    let text = by(&kubectl).nodes(false).await.expect_err("it fails").one_line();
    let wanted = "[--context=-a b;c][--kubeconfig=/home/me/my config][get][nodes][--output=json]";
    assert!(text.contains(wanted), "{text}");
}

/// Writes the pod of a node, and its plan.
fn put_plan(dir: &Path, node: &str, plan: Option<&Value>, code: Option<u8>) {
    let containers = json!([{"name": "side"}, {"name": "nvidia-driver-ctr"}]);
    let pod = json!({"spec": {"nodeName": node, "containers": containers}});
    fs::write(dir.join(format!("pod-driver-{node}")), pod.to_string()).expect("written");
    if let Some(plan) = plan {
        fs::write(dir.join(format!("plan-driver-{node}")), plan.to_string()).expect("written");
    }
    if let Some(code) = code {
        fs::write(dir.join(format!("code-driver-{node}")), code.to_string()).expect("written");
    }
}

fn planned(driver: &str, replaces: bool, acquire: &str) -> Value {
    let modules =
        if replaces { vec![json!({"module": "nvidia", "reason": "another"})] } else { vec![] };
    let acquire = [acquire, "assemble-userspace"].map(|name| json!({"acquire": name}));
    json!({
        "driver_version": driver, "flavour": "open", "kernel_release": "6.1.0-50-amd64",
        "reasons": [], "acquire": acquire, "replaces": modules, "install": [], "exact": true,
        "findings": [{"code": "other", "severity": "warning", "detail": "w", "remedy": "r"}],
    })
}

fn question(driver: &str) -> Question {
    Question { driver: Some(driver.to_owned()), ..Question::default() }
}

async fn planned_by(kubectl: &Kubectl, question: &Question) -> FleetPlan {
    plan(kubectl, by(kubectl).nodes(false).await.expect("nodes"), question).await
}

#[tokio::test]
async fn every_node_is_asked_for_its_plan() {
    let mut nodes = fleet();
    nodes.push(node("gpu-6", status("gpu-6", json!({}))));
    nodes.push(node("gpu-7", status("gpu-7", json!({"live": "550.163.01"}))));
    let (dir, kubectl) = cluster(&nodes);
    let at = |node, plan: &Value, code| put_plan(dir.path(), node, Some(plan), code);
    at("gpu-1", &planned("550.163.01", true, "pull-set"), None);
    at("gpu-2", &planned("550.163.01", true, "build-set"), None);
    at("gpu-3", &planned("550.163.01", false, "read-package"), None);
    let mut refused = planned("550.163.01", true, "build-set");
    refused["findings"] = json!([{
        "code": "headers-missing", "severity": "refusal",
        "detail": "no headers for 6.1.0-50-amd64 in any archive", "remedy": "add the suite that has them",
    }]);
    at("gpu-5", &refused, Some(11));
    // gpu-6 has no pod any more.
    at("gpu-7", &planned("550.163.01", false, "none"), None);
    let plans = planned_by(&kubectl, &question("550")).await;
    assert_in_page(&plans.render());
    assert_eq!((plans.possible, plans.impossible), (4, 3));
    let json = serde_json::to_value(&plans).expect("json");
    let actions: Vec<&Value> = (0..7).map(|at| &json["nodes"][at]["action"]).collect();
    let wanted = ["replaces", "replaces", "installs", "unknown", "refused", "unknown", "keeps"];
    assert_eq!(actions, wanted);
    assert_eq!(json["nodes"][4]["refusals"][0]["code"], "headers-missing");
    let calls = fs::read_to_string(dir.path().join("calls")).expect("calls");
    let wanted = "exec driver-gpu-1 --namespace=gpu --container=nvidia-driver-ctr -- \
                  longshore plan --json --driver=550\n";
    assert!(calls.contains(wanted), "{calls}");
}

/// The annotation's pod, the pod that is there, its plan and the reason that there is none.
#[rstest]
#[case::no_name("driver", json!(null), None, r#"the status names no pod: "driver""#)]
#[case::option("gpu/--kubeconfig=x", json!(null), None, "is not NAMESPACE/NAME")]
#[case::path("gpu/../../secrets", json!(null), None, "is not NAMESPACE/NAME")]
#[case::elsewhere("other/driver-a", json!(null), None, "pod other/driver-a is not in namespace gpu")]
#[case::gone("gpu/driver-a", json!(null), None, r#"pods "driver-a" not found"#)]
#[case::other_node("gpu/driver-a", json!({"nodeName": "b", "containers": []}), None, r#"runs on node "b""#)]
#[case::no_pod("gpu/driver-a", json!({"containers": 7}), None, "not a pod")]
#[case::containers(
    "gpu/driver-a",
    json!({"nodeName": "a", "containers": [{"name": "x"}, {"name": "y\u{1b}"}]}),
    None,
    "none of the pod's containers (x, y\\u{1b}) is longshore's: name it with --container"
)]
#[case::not_running(
    "gpu/driver-a",
    json!({"nodeName": "a", "containers": [{"name": "x"}]}),
    None,
    "error: unable to upgrade connection: container not found"
)]
#[case::no_plan(
    "gpu/driver-a",
    json!({"nodeName": "a", "containers": [{"name": "x"}]}),
    Some("{\"driver_version\": 7}"),
    "printed no plan: invalid type"
)]
#[tokio::test]
async fn a_node_without_a_plan_has_the_reason(
    #[case] pod: &str,
    #[case] spec: Value,
    #[case] printed: Option<&str>,
    #[case] wanted: &str,
) {
    let (dir, kubectl) = cluster(&[node("a", status("a", json!({"pod": pod})))]);
    if !spec.is_null() {
        fs::write(dir.path().join("pod-driver-a"), json!({"spec": spec}).to_string())
            .expect("written");
    }
    if let Some(printed) = printed {
        fs::write(dir.path().join("plan-driver-a"), printed).expect("written");
    }
    let only = Question { namespace: Some("gpu".to_owned()), ..Question::default() };
    let plans = planned_by(&kubectl, &only).await;
    assert_eq!((plans.possible, plans.impossible), (0, 1));
    let text = plans.render();
    assert!(text.contains(wanted), "{text}");
    assert!(!text.contains('\u{1b}'));
    let calls = fs::read_to_string(dir.path().join("calls")).expect("calls");
    assert!(!calls.contains("kubeconfig") && !calls.contains("secrets"), "{calls}");
}

#[tokio::test]
async fn a_plan_s_text_is_escaped_and_cut() {
    let evil = "a\n\u{1b}[2J".repeat(2000);
    let (dir, kubectl) = cluster(&[node("a", status("a", json!({})))]);
    let mut printed = planned(&evil, true, "pull-set");
    printed["findings"] = json!(vec![
        json!({"code": evil, "severity": "refusal", "detail": evil, "remedy": evil});
        99
    ]);
    put_plan(dir.path(), "a", Some(&printed), Some(20));
    let text = planned_by(&kubectl, &question("550")).await.render();
    assert!(text.lines().count() < 40, "{}", text.lines().count());
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}

#[tokio::test]
async fn so_many_nodes_are_asked_at_a_time_and_no_more() {
    let names: Vec<String> = (0..100).map(|n| format!("gpu-{n:03}")).collect();
    let nodes: Vec<Value> = names.iter().map(|name| node(name, status(name, json!({})))).collect();
    let (dir, kubectl) = cluster(&nodes);
    let path = dir.path().join("kubectl");
    // Each call notes the calls that run beside it.
    let script = fs::read_to_string(&path).expect("script");
    let counted =
        script.replacen("\ncase", "\ntouch running-$$; ls | grep -c running- >> counts\ncase", 1)
            + "\nrm running-$$\n";
    fs::write(&path, counted).expect("written");
    for name in &names {
        put_plan(dir.path(), name, Some(&planned("550.163.01", true, "pull-set")), None);
    }
    let list = fs::read(dir.path().join("nodes")).expect("a list");
    let nodes = Nodes::read(&list, false).expect("nodes");
    let plans = plan(&kubectl, nodes, &question("550")).await;
    assert_eq!((plans.possible, plans.impossible), (100, 0));
    let names_then: Vec<&str> = plans.nodes.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(names_then, names);
    let counts = fs::read_to_string(dir.path().join("counts")).expect("counts");
    let most = counts.lines().filter_map(|line| line.parse::<u32>().ok()).max();
    assert!(most.is_some_and(|most| (2..=16).contains(&most)), "{most:?}");
}
