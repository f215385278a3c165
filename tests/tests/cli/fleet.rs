//! Commands of the fleet with a stand-in for kubectl: `fleet plan` over nodes of three kinds, and `fleet doctor` stopped by a
//! signal; and `longshore explain` beside a wrong configuration.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use longshore_core::testing::write_program;
use longshore_tests::archive::{ARCH, Suite, deb};
use longshore_tests::scene::{Scene, finish, fixture, longshore, send, start, until, wait};

/// A kubectl whose pods are this machine's processes: `exec` runs the command on the captured host of the pod's node.
const PODS: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
case "$1" in
get)
    test "$2" = nodes && exec cat nodes
    test "$2" = pods && { echo '{"items": []}'; exit; }
    exec cat "pod-$3" ;;
exec)
    pod=$2
    while [ "$1" != -- ]; do shift; done
    shift 2
    exec "$LONGSHORE" "$@" --root "$(cat "root-$pod")" ;;
esac"#;

/// Kinds of nodes: number, captured host, and the driver and flavour of `auto`.
const KINDS: [(usize, &str, &str, &str); 3] = [
    (25, "bookworm-t4", "580.178.04", "open"),
    (15, "bookworm-b200", "580.178.04", "open"),
    (10, "bookworm-k80", "470.256.02", "proprietary"),
];

/// Returns a scene whose archive has an ended, a long-support and a production branch, and one for old GPUs.
fn of_many_branches() -> Scene {
    let package = |name: &str, version: &str, more: &str| {
        let stanza = format!("Package: {name}\nVersion: {version}\nArchitecture: {ARCH}\n{more}");
        (stanza, deb(&[("./usr/share/doc/none", b"")]))
    };
    Scene::with(Suite {
        packages: vec![
            package("nvidia-tesla-470-kernel-source", "470.256.02-1", ""),
            package("nvidia-kernel-source", "550.163.01-1", ""),
            package("nvidia-open-kernel-source", "550.163.01-1", ""),
            package("nvidia-kernel-source", "580.178.04-1", ""),
            package("nvidia-open-kernel-source", "580.178.04-1", ""),
            package("nvidia-open-kernel-source", "595.91.07-1", ""),
            package("linux-headers-6.1.0-50-amd64", "6.1.176-1", "Depends: gcc-12\n"),
            package("gcc-12", "12.2.0-14+deb12u1", ""),
        ],
        ..Suite::usual()
    })
}

/// One configuration, `driver = auto`, over fifty nodes: each plan is that of the real program.
#[test]
fn a_fleet_of_three_kinds_gets_the_driver_of_each_by_auto() {
    let scene = of_many_branches();
    let kubectl = scene.path("kubectl");
    write_program(&kubectl, PODS);
    let mut nodes = Vec::new();
    for (count, host, ..) in KINDS {
        for number in 0..count {
            let name = format!("{host}-{number:02}");
            let status =
                json!({"format": 1, "pod": format!("gpu/{name}"), "phase": "idle"}).to_string();
            nodes.push(json!({
                "metadata": {
                    "name": name,
                    "labels": {"nvidia.com/gpu.present": "true"},
                    "annotations": {"longshore.dev/status": status},
                },
                "status": {"conditions": [{"type": "Ready", "status": "True"}],
                           "nodeInfo": {"kernelVersion": "6.1.0-50-amd64"}},
            }));
            let pod = json!({"spec": {"nodeName": name, "containers": [{"name": "longshore"}]}});
            fs::write(scene.path(&format!("pod-{name}")), pod.to_string()).expect("written");
            fs::write(scene.path(&format!("root-{name}")), fixture(host)).expect("written");
        }
    }
    fs::write(scene.path("nodes"), json!({"items": nodes}).to_string()).expect("written");
    let fleet = |policy: &str, more: &[&str]| {
        let kubectl = kubectl.display().to_string();
        let words =
            [&["fleet", "plan", "--driver", "auto", "--kubectl", kubectl.as_str()], more].concat();
        let mut command = scene.agent(&words);
        // The agents' configuration.
        command.env("LONGSHORE_CONFIG", scene.path("config.toml"));
        command.env("LONGSHORE_ENDED_DRIVER", policy);
        finish(command.env("LONGSHORE", longshore()))
    };
    let ended = fleet("warn", &["--json"]);
    let answer: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(answer["nodes"].as_array().map(Vec::len), Some(50), "{ended}");
    let mut counted = BTreeMap::new();
    for node in answer["nodes"].as_array().expect("the nodes") {
        let name = node["name"].as_str().expect("a name");
        let (host, _) = name.rsplit_once('-').expect("a number");
        let plan = (host, node["driver"].to_string(), node["flavour"].to_string());
        *counted.entry(plan).or_insert(0) += 1;
    }
    let quoted = |text: &str| format!("\"{text}\"");
    let wanted: BTreeMap<_, _> = KINDS
        .iter()
        .map(|(count, host, driver, flavour)| ((*host, quoted(driver), quoted(flavour)), *count))
        .collect();
    assert_eq!(counted, wanted, "{ended}");
    // The old GPUs' branch has ended, and says so on each of their nodes; the others have no finding of the table.
    let warned = |node: &&Value| {
        let codes = node["warnings"].as_array().into_iter().flatten();
        codes.filter_map(|warning| warning["code"].as_str()).any(|code| code == "driver-ended")
    };
    let warned = answer["nodes"].as_array().expect("the nodes").iter().filter(warned).count();
    assert_eq!(warned, 10, "{ended}");
    let refusing = fleet("refuse", &[]);
    assert_eq!(refusing.code, Some(31), "{refusing}");
    assert!(refusing.out.contains("10 refused"), "{refusing}");
}

const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
case "$1 $2" in
'get node') echo '{"metadata": {"name": "gpu-1"}}' ;;
'get pods') echo '{"items": []}' ;;
'get daemonsets') cat sets ;;
'create --filename=-') cat > created ;;
'get pod') exec sleep 600 ;;
esac"#;

const SETS: &str = r#"{"items": [{"metadata": {"name": "longshore"}, "spec": {"template": {"spec": {
    "containers": [{"name": "longshore", "image": "registry.example.com/longshore"}]}}}}]}"#;

/// The signal comes while the pod's end is waited for.
#[test]
fn a_doctor_that_is_stopped_deletes_its_pod() {
    for (hangup, signals) in [
        ("--default-signal=HUP", &[Signal::SIGTERM][..]),
        ("--default-signal=HUP", &[Signal::SIGINT]),
        // The terminal is closed.
        ("--default-signal=HUP", &[Signal::SIGHUP]),
        // Below nohup(1).
        ("--ignore-signal=HUP", &[Signal::SIGHUP, Signal::SIGTERM]),
    ] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let kubectl = dir.path().join("kubectl");
        write_program(&kubectl, KUBECTL);
        fs::write(dir.path().join("sets"), SETS).expect("written");
        let mut command = Command::new("env");
        command.arg(hangup).arg(longshore());
        command.args(["fleet", "doctor", "gpu-1", "--namespace", "gpu", "--kubectl"]).arg(&kubectl);
        let child = start(&mut command);
        let calls = || fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        until("the pod is waited for", || calls().contains("get pod longshore-doctor-"));
        signals.iter().for_each(|signal| send(&child, *signal));
        let ended = wait(child);
        let last = signals.last().map(|signal| *signal as i32);
        assert_eq!(ended.signal, last, "{ended}");
        let calls = calls();
        let last = calls.lines().last().unwrap_or_default();
        assert!(last.starts_with("delete pod longshore-doctor-"), "{calls}");
        assert!(last.ends_with(" --namespace=gpu --ignore-not-found --wait=false"), "{calls}");
    }
}

#[test]
fn codes_are_explained_beside_a_wrong_configuration() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = dir.path().join("config.toml");
    fs::write(&config, "drvier = 1\n").expect("written");
    let run = |words: &[&str]| {
        let mut command = Command::new(longshore());
        finish(command.args(words).env("LONGSHORE_CONFIG", &config))
    };
    let explained = run(&["explain", "2"]);
    explained.assert_done();
    assert!(explained.out.starts_with("usage  exit code 2\n"), "{explained}");
    // Any other command reads it.
    run(&["plan"]).assert_failed(2, &["drvier".to_owned()]);
    run(&["explain", "signature-requird"]).assert_failed(2, &["signature-required".to_owned()]);
}
