//! The JSON of the commands: real answers are held to the schemas of docs/reference/schemas, and docs/reference/json.md names each of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_core::store::Store;
use longshore_core::testing::write_program;
use longshore_tests::scene::{Scene, disk, finish, fixture, names};
use serde_json::{Value, json};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference")
}

/// Runs a command, and asserts that its answer is as the schema says and begins with format, verdict and exit code.
fn answer(schema: &str, mut command: Command) -> Value {
    let ended = finish(&mut command);
    ended.assert_no_panic();
    let answer: Value = serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended}"));
    let keys = ended.out.lines().skip(1).take(3).map(|line| line.split(':').next().expect("a key"));
    let keys: Vec<&str> = keys.map(str::trim).collect();
    assert_eq!(keys, ["\"format\"", "\"verdict\"", "\"exit_code\""], "{ended}");
    assert_eq!(answer["exit_code"].as_i64(), ended.code.map(i64::from), "{ended}");
    assert_valid(schema, &answer);
    answer
}

fn assert_valid(schema: &str, answer: &Value) {
    let path = docs().join("schemas").join(schema).with_extension("json");
    let text = fs::read_to_string(&path).expect("the schema");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema of draft 2020-12");
    let faults = validator.iter_errors(answer);
    let faults: Vec<String> =
        faults.map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    assert!(faults.is_empty(), "{}: {faults:#?}", path.display());
}

#[test]
fn plans_and_diagnoses_of_every_tree_are_as_their_schemas_say() {
    let scene = Scene::new();
    let trees = names(fixture("").as_ref());
    let trees = trees.iter().filter(|name| Path::new(&fixture(name)).is_dir());
    let mut verdicts = Vec::new();
    for tree in trees {
        let root = fixture(tree);
        let of = |args: &[&str]| scene.agent(&[args, &["--root", &root]].concat());
        verdicts.push(answer("plan", of(&["plan", "--json"]))["verdict"].clone());
        let report = answer("doctor", of(&["doctor", "--json"]));
        for finding in report["findings"].as_array().expect("findings") {
            let refuses = finding["severity"] == "refusal";
            assert_eq!(finding["exit_code"].is_u64(), refuses, "{tree}: {finding}");
        }
        answer("doctor-operator", of(&["doctor", "--operator", "--json"]));
    }
    for verdict in ["warned", "refused"] {
        assert!(verdicts.contains(&verdict.into()), "{verdict}: {verdicts:?}");
    }
    let root = fixture("bookworm-t4");
    let other = ["plan", "--json", "--kernel", "6.1.0-50-amd64", "--root", &root];
    answer("plan", scene.agent(&other));
    let waits = ["plan", "--json", "--no-gpu", "wait", "--root", &fixture("bookworm-no-gpu")];
    assert_eq!(answer("plan", scene.agent(&waits))["idle"], true);
}

#[test]
fn explanations_are_as_their_schema_says() {
    let scene = Scene::new();
    for name in [&[][..], &["no-device"], &["15"]] {
        let explained = scene.agent(&[&["explain", "--json"][..], name].concat());
        assert_eq!(answer("explain", explained)["verdict"], "passed");
    }
}

#[test]
fn settings_are_as_their_schema_says() {
    let scene = Scene::new();
    for name in [&[][..], &["driver"], &["publish.sign-key"], &["downloads"]] {
        let settings = scene.agent(&[&["settings", "--json"][..], name].concat());
        let settings = answer("settings", settings);
        assert!(settings["settings"].as_array().is_some_and(|all| !all.is_empty()), "{name:?}");
    }
}

#[test]
fn answers_about_the_store_are_as_their_schemas_say() {
    let scene = Scene::new();
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    let digest = store.put(b"package").expect("put");
    let gc = |args: &[&str]| scene.agent(&[&["gc", "--json"][..], args].concat());
    let kept = answer("gc", gc(&["--dry-run"]));
    assert!(kept["kept"][0]["last_used"].is_string(), "{kept}");
    let dry = answer("gc", gc(&["--dry-run", "--max-size", "0"]));
    assert_eq!(dry["removed"].as_array().map(Vec::len), Some(1), "{dry}");
    let verify = || scene.agent(&["store", "verify", "--json"]);
    assert_eq!(answer("store-verify", verify())["verdict"], "passed");
    fs::write(store.blob_path(&digest), "packagf").expect("damaged");
    assert_eq!(answer("store-verify", verify())["verdict"], "refused");
}

#[test]
fn answers_about_this_host_are_as_their_schemas_say() {
    let scene = Scene::new();
    let status = || scene.agent(&["status", "--json"]);
    assert_eq!(answer("status", status())["verdict"], "warned");
    let state = scene.path("state-dir");
    fs::create_dir(&state).expect("directory");
    fs::write(state.join("state.json"), "{").expect("state");
    assert_eq!(answer("status", status())["verdict"], "refused");

    let root = scene.path("root");
    for dir in ["etc/docker", "etc/cdi", "run/cdi", "var", "proc", "sys"] {
        fs::create_dir_all(root.join(dir)).expect("directories");
    }
    std::os::unix::fs::symlink("../run", root.join("var/run")).expect("a link");
    let path = root.display().to_string();
    let of = |args: &[&str]| scene.agent(&[args, &["--root", &path]].concat());
    let check = || of(&["runtime", "check", "--json"]);
    assert_eq!(answer("runtime-check", check())["verdict"], "refused", "there is none");
    fs::write(root.join("etc/docker/daemon.json"), "{}").expect("written");
    assert_eq!(answer("runtime-check", check())["verdict"], "undecided");
    fs::write(root.join("etc/docker/daemon.json"), "{\"features\": {\"cdi\": true}}")
        .expect("written");
    assert_eq!(answer("runtime-check", check())["verdict"], "passed");

    let list = || answer("cdi-list", of(&["cdi", "list", "--json"]));
    assert_eq!((&list()["verdict"], &list()["files"]), (&"passed".into(), &json!([])));
    let spec = |name: &str, version: &str| {
        let edits = json!({"deviceNodes": [{"path": "/dev/eth1"}]});
        let device = json!({"name": name, "containerEdits": edits});
        json!({"cdiVersion": version, "kind": "vendor.com/net", "devices": [device]}).to_string()
    };
    let write = |file: &str, text: String| fs::write(root.join(file), text).expect("written");
    write("etc/cdi/a.json", spec("eth1", "0.5.0"));
    write("run/cdi/a.json", spec("eth1", "0.5.0"));
    let replaced = list();
    assert_eq!(replaced["verdict"], "passed");
    assert_eq!(replaced["files"][0]["devices"][0]["use"], "replaced", "{replaced}");
    assert_eq!(replaced["files"][0]["devices"][0]["other"], "/var/run/cdi/a.json");
    write("run/cdi/b.json", spec("eth1", "0.5.0"));
    assert_eq!(list()["verdict"], "warned");
    write("etc/cdi/c.yaml", "cdiVersion: 0.5.0\nkind: a.com/b\n".to_owned());
    assert_eq!(list()["verdict"], "warned");
    write("etc/cdi/d.json", spec("eth2", "0.2.0"));
    assert_eq!(list()["verdict"], "refused");
}

/// A kubectl for one node whose agent is ready, one with a failure and one without an agent; the last has leftovers.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
case "$1 $2" in
"get nodes") cat nodes ;;
"get pods") echo '{"items": []}' ;;
"get pod") echo '{"spec": {"nodeName": "gpu-1", "containers": [{"name": "longshore"}]}}' ;;
exec*) cat plan ;;
esac
"#;

#[test]
fn answers_about_a_fleet_are_as_their_schemas_say() {
    let scene = Scene::new();
    let kubectl = scene.path("kubectl");
    write_program(&kubectl, KUBECTL);
    let node = |name: &str, status: Option<Value>| {
        let annotations =
            status.map_or(json!({}), |status| json!({"longshore.dev/status": status.to_string()}));
        let labels = json!({"nvidia.com/gpu.present": "true"});
        json!({
            "metadata": {"name": name, "labels": labels, "annotations": annotations, "resourceVersion": "7"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kernelVersion": "6.1"}},
        })
    };
    let status = |phase: &str| {
        // Written by an agent before its keys had underscores.
        json!({
            "format": 1, "pod": "gpu/driver-1", "phase": phase, "live": "535.261.03", "more-holders": 2,
            "last-failure": {"code": "in-use", "cause": "c", "remedy": "r"},
            "next-kernel": {"release": "6.2", "ready": true}, "holders": [{"program": "python3"}],
        })
    };
    let nodes = [node("gpu-1", Some(status("ready"))), node("gpu-2", None)];
    fs::write(scene.path("nodes"), json!({"items": nodes}).to_string()).expect("written");
    // Of an agent whose plan has another form of the reasons.
    let plan = json!({
        "driver_version": "535.261.03", "flavour": "open", "kernel_release": "6.1",
        "reasons": [{"topic": "driver 535.261.03", "reason": "newest"}], "acquire": [], "install": [],
        "exact": true, "findings": [],
    });
    fs::write(scene.path("plan"), plan.to_string()).expect("written");
    let kubectl = kubectl.display().to_string();
    let fleet = |args: &[&str]| {
        scene.agent(&[&["fleet"][..], args, &["--json", "--kubectl", &kubectl]].concat())
    };
    let shown = answer("fleet-status", fleet(&["status"]));
    assert_eq!(shown["verdict"], "refused", "{shown}");
    assert!(shown["not_ready"].as_u64() >= Some(1), "{shown}");
    let of_agent = &shown["nodes"][0]["status"];
    assert_eq!(of_agent["last_failure"]["code"], "in-use");
    assert_eq!(
        (&of_agent["more_holders"], &of_agent["next_kernel"]["ready"]),
        (&2.into(), &true.into())
    );
    let planned = answer("fleet-plan", fleet(&["plan"]));
    assert_eq!(planned["nodes"][0]["action"], "keeps", "{planned}");
    let cleaned = answer("fleet-clean", fleet(&["clean", "--dry-run"]));
    assert_eq!(cleaned["dry_run"], true);
    assert_eq!(cleaned["nodes"][0]["outcome"], "to-clean", "{cleaned}");
}

/// A schema that allows everything would hold nothing.
#[test]
fn schemas_refuse_other_keys_and_are_all_on_the_page() {
    let page = fs::read_to_string(docs().join("json.md")).expect("the page");
    let schemas = names(&docs().join("schemas"));
    assert!(schemas.len() >= 11, "{schemas:?}");
    for name in schemas {
        assert!(
            page.contains(&format!("(schemas/{name})")),
            "docs/reference/json.md does not name {name}"
        );
        let text = fs::read_to_string(docs().join("schemas").join(&name)).expect("the schema");
        let schema: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
        assert_eq!(schema["additionalProperties"], false, "{name}");
        for key in ["format", "verdict", "exit_code"] {
            assert!(schema["required"].as_array().expect("keys").contains(&key.into()), "{name}");
        }
    }
}
