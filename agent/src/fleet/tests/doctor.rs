//! `fleet doctor` and `fleet logs` with a stand-in for kubectl: it prints files, and keeps the pod that is made.

use super::*;
use crate::fleet::{AgentOf, Diagnosis, doctor, logs};
use longshore_core::failure::Failure;

const SCRIPT: &str = r#"
echo "$*" >> calls
case "$1 $2" in
'get node') exec cat node ;;
'get pods') exec cat pods ;;
'get daemonsets') exec cat sets ;;
'get pod') test ! -f hangs || exec sleep 600; exec cat made ;;
'create --filename=-')
    test ! -f refused || { echo 'Error from server (Forbidden): pods is forbidden' >&2; exit 1; }
    exec cat > created ;;
logs*) exec cat log ;;
exec*)
    test -f answer || { echo 'error: unable to upgrade connection: container not found' >&2; exit 1; }
    cat answer; test ! -f code || exit "$(cat code)" ;;
delete*) exit ;;
esac
exit 9"#;

/// A cluster whose node gpu-1 has this pod of an agent.
struct Scene {
    dir: tempfile::TempDir,
    kubectl: Kubectl,
    pods: DebugPods,
    asked: AgentOf,
}

impl Scene {
    fn new(pod: Option<Value>) -> Self {
        let (dir, kubectl) = scripted(SCRIPT, Duration::from_secs(60));
        let asked = AgentOf { node: "gpu-1".into(), ..AgentOf::default() };
        let scene = Self { dir, kubectl, pods: DebugPods::default(), asked };
        scene.put("node", &node("gpu-1", status("gpu-1", json!({}))).to_string());
        let pods: Vec<Value> = pod.into_iter().collect();
        scene.put("pods", &json!({ "items": pods }).to_string());
        scene.put("sets", &json!({ "items": [other_set(), set()] }).to_string());
        scene
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("written");
    }

    /// The state of the pod that is made.
    fn made(&self, state: &Value) {
        let status = json!({ "containerStatuses": [{ "name": "doctor", "state": state }] });
        let spec = json!({ "nodeName": "gpu-1", "containers": [{ "name": "doctor" }] });
        self.put("made", &json!({ "spec": spec, "status": status }).to_string());
    }

    async fn doctor(&self) -> Result<Diagnosis, Failure> {
        doctor(&self.kubectl, &self.asked, &[], &self.pods).await
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default()
    }

    fn created(&self) -> Value {
        let text = fs::read_to_string(self.dir.path().join("created")).expect("a pod was made");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// The agent's pod in this state.
fn agent(state: &Value, last: &Value) -> Value {
    let statuses = json!([{ "name": "longshore", "state": state, "lastState": last }]);
    json!({
        "metadata": { "namespace": "gpu", "name": "driver-gpu-1",
                      "ownerReferences": [{ "kind": "DaemonSet", "name": "driver" }] },
        "spec": { "nodeName": "gpu-1", "containers": [
            { "name": "side" }, { "name": "longshore", "args": ["run", "--driver=535"] }] },
        "status": { "phase": "Running", "containerStatuses": statuses },
    })
}

fn running() -> Value {
    agent(&json!({ "running": { "startedAt": "2026-11-27T00:00:00Z" } }), &json!({}))
}

fn crash_looping() -> Value {
    let last = json!({ "terminated": { "exitCode": 15, "reason": "Error",
                                       "message": "exit code 15: signature-required: the modules have none\n" } });
    let waits = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 5m0s" } });
    agent(&waits, &last)
}

fn set() -> Value {
    json!({
        "metadata": { "name": "driver" },
        "spec": { "template": {
            "metadata": { "labels": { "app.kubernetes.io/name": "longshore" } },
            "spec": {
                "serviceAccountName": "driver", "hostPID": true, "hostNetwork": true,
                "priorityClassName": "system-node-critical", "nodeSelector": { "gpu": "true" },
                "affinity": { "nodeAffinity": {} }, "tolerations": [{ "operator": "Exists" }],
                "terminationGracePeriodSeconds": 60,
                "initContainers": [{ "name": "k8s-driver-manager", "image": "m" }],
                "containers": [
                    { "name": "side", "image": "s" },
                    {
                        "name": "longshore", "image": "registry.example.com/gpu/longshore:1",
                        "command": ["/usr/bin/longshore"], "args": ["run", "--host-apt=false"],
                        "securityContext": { "privileged": true },
                        "env": [{ "name": "LONGSHORE_DRIVER", "value": "535" },
                                { "name": "LONGSHORE_LOG", "value": "debug" }],
                        "ports": [{ "containerPort": 9470 }],
                        "readinessProbe": { "exec": {} }, "lifecycle": { "preStop": {} },
                        "resources": { "requests": { "cpu": "4" }, "limits": { "memory": "4Gi" } },
                        "volumeMounts": [{ "name": "run-nvidia", "mountPath": "/run/nvidia",
                                           "mountPropagation": "Bidirectional" }],
                    },
                ],
                "volumes": [{ "name": "run-nvidia", "hostPath": { "path": "/run/nvidia" } }],
            },
        } },
    })
}

/// Another program's DaemonSet in the same namespace.
fn other_set() -> Value {
    let mut set = set();
    set["metadata"]["name"] = json!("dcgm-exporter");
    set["spec"]["template"]["spec"]["containers"] = json!([{ "name": "exporter" }]);
    set
}

/// A second DaemonSet of agents.
fn pool_b() -> Value {
    let mut set = set();
    set["metadata"]["name"] = json!("pool-b");
    set
}

fn ended(code: i32) -> Value {
    json!({ "terminated": { "exitCode": code, "reason": "Error" } })
}

#[tokio::test]
async fn an_agent_that_runs_is_asked_in_its_own_container() {
    let scene = Scene::new(Some(running()));
    scene.put("answer", "PASSED\n");
    for (code, wanted) in [("0", ExitCode::Done), ("15", ExitCode::Preflight)] {
        scene.put("code", code);
        let answer = scene.doctor().await.expect("an answer");
        assert_eq!((answer.text.as_str(), answer.code), ("PASSED\n", wanted));
    }
    let calls = scene.calls();
    let exec = "exec driver-gpu-1 --namespace=gpu --container=longshore -- longshore doctor --driver=535\n";
    assert!(calls.contains(exec) && !calls.contains("create"), "{calls}");
    let asked = "get pods --namespace=gpu --field-selector=spec.nodeName=gpu-1 --output=json\n";
    assert!(calls.contains(asked), "{calls}");
}

/// The node's pod, and the files of the scene.
#[rstest]
#[case::crash_loop(Some(crash_looping()))]
#[case::never_started(Some(agent(&json!({"waiting": {"reason": "CreateContainerConfigError"}}), &json!({}))))]
// It ended between the two calls.
#[case::ended_meanwhile(Some(running()))]
#[case::no_pod(None)]
#[tokio::test]
async fn where_the_agent_has_ended_a_pod_of_its_template_is_asked_and_deleted(
    #[case] pod: Option<Value>,
) {
    let scene = Scene::new(pod);
    scene.made(&ended(15));
    scene.put("log", "REFUSED signature-required\n");
    let answer = scene.doctor().await.expect("an answer");
    let wanted = ("REFUSED signature-required\n", ExitCode::Preflight);
    assert_eq!((answer.text.as_str(), answer.code), wanted);
    scene.pods.delete().await;
    let pod = scene.created();
    let name = pod["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("longshore-doctor-"), "{name}");
    let delete = format!("delete pod {name} --namespace=gpu --ignore-not-found --wait=false\n");
    assert!(scene.calls().ends_with(&delete), "{}", scene.calls());
}

#[rstest]
#[case::settings_elsewhere(json!({ "args": ["run"] }), &[])]
#[case::flags(json!({ "args": ["run", "--driver", "550"] }), &["--driver", "550"])]
#[case::before_the_command(json!({ "command": ["longshore"], "args": ["--driver=550", "run"] }), &["--driver=550"])]
#[case::operator(json!({ "command": ["nvidia-driver"], "args": ["init", "-x"] }), &[])]
#[case::image_s_own(json!({}), &[])]
fn the_flags_of_an_agent_are_those_of_run(#[case] container: Value, #[case] wanted: &[&str]) {
    let container: crate::fleet::pods::Container =
        serde_json::from_value(container).expect("a container");
    assert_eq!(container.flags(), wanted);
}

#[tokio::test]
async fn the_pod_has_the_agent_s_rights_mounts_and_settings_and_nothing_that_evicts_or_is_adopted()
{
    let scene = Scene::new(Some(crash_looping()));
    scene.made(&ended(0));
    scene.put("log", "PASSED\n");
    scene.doctor().await.expect("an answer");
    let pod = scene.created();
    assert_eq!(pod["metadata"]["namespace"], "gpu");
    assert_eq!(pod["metadata"]["labels"], json!({ "app.kubernetes.io/name": "longshore-doctor" }));
    let template = &set()["spec"]["template"]["spec"];
    let spec = pod["spec"].as_object().expect("an object");
    for same in ["serviceAccountName", "hostPID", "hostNetwork", "volumes"] {
        assert_eq!(spec[same], template[same], "{same}");
    }
    for gone in ["initContainers", "affinity", "nodeSelector", "priorityClassName"] {
        assert!(!spec.contains_key(gone), "{gone}");
    }
    assert_eq!(spec["nodeName"], "gpu-1");
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["tolerations"], json!([{ "operator": "Exists" }]));
    let (container, of_template) = (&spec["containers"][0], &template["containers"][1]);
    assert_eq!(spec["containers"].as_array().map(Vec::len), Some(1));
    // None of an agent's names: the pod is not taken for one.
    assert_eq!(container["name"], "doctor");
    for same in ["image", "securityContext", "volumeMounts"] {
        assert_eq!(container[same], of_template[same], "{same}");
    }
    for gone in ["ports", "readinessProbe", "lifecycle"] {
        assert!(container.get(gone).is_none(), "{gone}");
    }
    assert_eq!(container["command"], json!(["longshore"]));
    assert_eq!(container["args"], json!(["doctor", "--host-apt=false"]));
    assert_eq!(
        container["env"],
        json!([{ "name": "LONGSHORE_DRIVER", "value": "535" },
               { "name": "LONGSHORE_LOG", "value": "error" },
               { "name": "LONGSHORE_LOG_FORMAT", "value": "pretty" }])
    );
    assert_eq!(
        container["resources"],
        json!({ "requests": { "cpu": "0", "memory": "0" }, "limits": { "memory": "4Gi" } })
    );
}

#[tokio::test]
async fn a_pod_that_is_refused_or_does_not_start_is_a_failure_and_deleted() {
    let back_off =
        json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such\u{1b} image" } });
    for (state, is_refused, wanted) in [
        (ended(0), true, "Forbidden"),
        (back_off, false, "ImagePullBackOff: no such\\u{1b} image"),
        (ended(127), false, "ended with exit code 127: Error: sh: not found"),
    ] {
        let scene = Scene::new(Some(crash_looping()));
        scene.made(&state);
        scene.put("log", "sh: not found");
        if is_refused {
            scene.put("refused", "");
        }
        let failure = scene.doctor().await.expect_err("no answer");
        assert_eq!(failure.code(), ExitCode::Kubectl);
        assert!(failure.one_line().contains(wanted), "{failure}");
        scene.pods.delete().await;
        // One that the server refused is not there.
        let deleted = scene.calls().contains("delete pod longshore-doctor-");
        assert_eq!(deleted, !is_refused, "{}", scene.calls());
    }
}

/// The pod is made before the answer to its creation is read.
#[tokio::test]
async fn a_doctor_that_is_stopped_leaves_a_pod_that_is_deleted() {
    let scene = Scene::new(None);
    scene.put("hangs", "");
    {
        let mut doctor = std::pin::pin!(scene.doctor());
        let begun = Instant::now();
        while !scene.calls().contains("get pod longshore-doctor-") {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", scene.calls());
            let step = tokio::time::timeout(Duration::from_millis(20), &mut doctor).await;
            assert!(step.is_err(), "{step:?}");
        }
    }
    scene.pods.delete().await;
    assert!(scene.calls().contains("delete pod longshore-doctor-"), "{}", scene.calls());
}

#[tokio::test]
async fn a_namespace_that_is_not_known_is_asked_for_and_no_pod_is_taken_for_its_container() {
    let mut scene = Scene::new(Some(crash_looping()));
    scene.put("node", &node("gpu-1", None).to_string());
    for (pods, wanted) in [
        (None, "an agent's container are in gpu"),
        (Some(r#"{"items": []}"#), "no pod on it has an agent's container"),
        (Some("Forbidden"), "name the namespace of the agents' pods with --namespace"),
    ] {
        pods.into_iter().for_each(|pods| scene.put("pods", pods));
        let failure = scene.doctor().await.expect_err("not known");
        assert_eq!(failure.code(), ExitCode::Usage);
        let report = failure.report();
        assert!(report.contains(wanted) && report.contains("--namespace"), "{report}");
    }
    let calls = scene.calls();
    assert!(!calls.contains("exec") && !calls.contains("create"), "{calls}");
    scene.put("pods", r#"{"items": []}"#);
    scene.asked.namespace = Some("drivers".into());
    scene.made(&ended(0));
    scene.put("log", "PASSED\n");
    scene.doctor().await.expect("an answer");
    assert!(scene.calls().contains("get daemonsets --namespace=drivers "), "{}", scene.calls());
    for (node, namespace) in [("../x", "gpu"), ("--all", "gpu"), ("gpu-1", "--x"), ("gpu-1", "")] {
        scene.asked =
            AgentOf { node: node.into(), namespace: Some(namespace.into()), container: None };
        let failure = scene.doctor().await.expect_err("no name");
        assert_eq!(failure.code(), ExitCode::Usage, "{node} {namespace}");
    }
}

#[rstest]
#[case::none(json!([other_set()]), "no DaemonSet in namespace gpu has an agent's container")]
#[case::several(
    json!([set(), pool_b()]),
    "several DaemonSets of agents (driver, pool-b)"
)]
#[case::odd(json!([{"metadata": {"name": "--x"}}, 7]), "no DaemonSet in namespace gpu")]
#[tokio::test]
async fn a_daemon_set_that_is_not_clear_is_a_failure(#[case] sets: Value, #[case] wanted: &str) {
    let scene = Scene::new(None);
    scene.put("sets", &json!({ "items": sets }).to_string());
    let failure = scene.doctor().await.expect_err("not clear");
    assert_eq!(failure.code(), ExitCode::Kubectl);
    assert!(failure.one_line().contains(wanted), "{failure}");
    assert!(!scene.calls().contains("create"));
}

#[tokio::test]
async fn logs_are_those_of_the_agent_s_container_also_of_the_run_before() {
    let scene = Scene::new(Some(crash_looping()));
    scene.put("log", "one\n");
    for (previous, option) in [(false, "\n"), (true, " --previous\n")] {
        let log = logs(&scene.kubectl, &scene.asked, previous, 50).await.expect("a log");
        assert_eq!(log, "one\n");
        let call =
            format!("logs driver-gpu-1 --namespace=gpu --container=longshore --tail=50{option}");
        assert!(scene.calls().ends_with(&call), "{}", scene.calls());
    }
    // kubelet refuses `--previous` until a container that ended for the first time starts again.
    let ended = agent(&json!({ "terminated": { "exitCode": 12 } }), &json!({}));
    scene.put("pods", &json!({ "items": [ended] }).to_string());
    logs(&scene.kubectl, &scene.asked, true, 50).await.expect("a log");
    assert!(scene.calls().ends_with(" --tail=50\n"), "{}", scene.calls());
    let failure = logs(&scene.kubectl, &Scene::new(None).asked, false, 1).await;
    assert!(failure.is_ok(), "the same node");
    let none = Scene::new(None);
    let failure = logs(&none.kubectl, &none.asked, false, 1).await.expect_err("no pod");
    assert!(failure.one_line().contains("node gpu-1 has no pod of an agent"), "{failure}");
}

#[test]
fn a_state_is_described_with_the_last_end_and_the_command_that_explains_it() {
    let read = |pod: Value| serde_json::from_value::<crate::fleet::pods::Pod>(pod).expect("a pod");
    let text = read(crash_looping()).describe("longshore");
    assert_eq!(
        text,
        "waits: CrashLoopBackOff: back-off 5m0s; its last run ended with exit code 15 (`longshore explain \
         15`): signature-required: the modules have none"
    );
    assert_eq!(read(running()).describe("longshore"), "runs");
    assert!(read(running()).describe("other").contains("no status of its container yet"));
}
