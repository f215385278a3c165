//! Tests of `longshore doctor`: its exit codes, its JSON, and that it creates nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};

use longshore_tests::manifest::manifest;
use longshore_tests::scene::{Ended, Scene, finish, fixture, names};

const TREES: [(&str, i32, &str); 8] = [
    ("bookworm-t4", 0, "PASSED"),
    ("bookworm-no-gpu", 17, "REFUSED"),
    ("bookworm-nouveau", 15, "REFUSED"),
    ("bookworm-secure-boot", 15, "REFUSED"),
    ("bookworm-t4-container", 15, "REFUSED"),
    ("bookworm-t4-host-driver", 0, "WARNED"),
    ("bookworm-t4-leftovers", 0, "PASSED"),
    ("bookworm-h100-nvswitch", 0, "PASSED"),
];

#[test]
fn the_worst_is_the_exit_code_and_nothing_is_made() {
    let scene = Scene::new();
    for (tree, code, verdict) in TREES {
        is_reported(&scene, tree, code, verdict);
    }
}

fn is_reported(scene: &Scene, tree: &str, code: i32, verdict: &str) {
    let root = fixture(tree);
    let state = || (manifest(&scene.path("")), manifest(root.as_ref()));
    let before = state();
    let text = finish(&mut scene.agent(&["doctor", "--root", &root]));
    assert_eq!(text.code, Some(code), "{text}");
    assert!(text.out.starts_with(verdict), "{text}");
    let json = finish(&mut scene.agent(&["doctor", "--json", "--root", &root]));
    assert_eq!(json.code, Some(code), "{json}");
    let report: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(report["exit_code"], code);
    assert_eq!(report["verdict"], verdict.to_lowercase());
    for finding in report["findings"].as_array().expect("findings") {
        for key in ["code", "severity", "area", "detail", "consequence", "remedy"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
    }
    assert_eq!(names(&scene.path("")), ["config.toml", "keyring.asc"], "no store, record or lock");
    assert!(state() == before, "a file was changed");
}

/// Only root can see the lock's holder; for other users a running agent is not reported as dead.
#[test]
fn whoever_may_not_see_an_agent_is_told_so_and_takes_it_for_no_dead_one() {
    let scene = Scene::new();
    let tree = scene.path("tree");
    let copied = Command::new("cp").arg("-r").arg(fixture("bookworm-t4")).arg(&tree).status();
    assert!(copied.expect("cp").success());
    let state = scene.path("state-dir");
    let within = tree.join(state.strip_prefix("/").expect("an absolute path"));
    let boot = fs::read_to_string(tree.join("proc/sys/kernel/random/boot_id")).expect("boot id");
    let record = format!(
        "{{\"format\":1,\"boot_id\":\"{}\",\"agent\":7,\"phase\":\"ready\",\"plan\":null,\"entries\":[{ENTRY}]}}",
        boot.trim()
    );
    for dir in [&state, &within] {
        fs::create_dir_all(dir).expect("directory");
        fs::write(dir.join("state.json"), &record).expect("record");
        fs::write(dir.join("lock"), "7\n").expect("lock");
        fs::set_permissions(dir.join("lock"), fs::Permissions::from_mode(0o600)).expect("mode");
    }
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).expect("mode");
    let ask = |args: &[&str]| finish(&mut scene.confined(&["--user", "65534"], args));
    let json = |ended: &Ended| -> serde_json::Value {
        ended.assert_no_panic();
        serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended}"))
    };
    let root = tree.display().to_string();
    let report = json(&ask(&["doctor", "--json", "--root", &root]));
    let of = |list: &str, key: &str, text: &str| {
        report[list].as_array().expect("a list").iter().any(|item| item[key] == text)
    };
    assert!(!of("findings", "code", "agent-failed") && !of("passed", "name", "agent"), "{report}");
    assert!(of("skipped", "name", "agent"), "{report}");
    let status = json(&ask(&["status", "--json"]));
    assert!(status["agent"].is_null(), "{status}");
    assert!(
        status["agent_error"].as_str().is_some_and(|why| why.contains("only root can")),
        "{status}"
    );
    let alive = ask(&["status", "--alive"]);
    assert!(alive.code == Some(30) && alive.out.contains("only root can see"), "{alive}");
}

const ENTRY: &str = r#"{"seq":1,"step":{"do":"make-dir","path":"/run/nvidia/driver"},"before":{"was":"missing-dirs","dirs":["/run/nvidia/driver"]},"state":"done"}"#;

#[test]
fn a_plan_ends_with_the_same_exit_code() {
    let scene = Scene::new();
    let root = fixture("bookworm-no-gpu");
    let ended = finish(&mut scene.agent(&["plan", "--root", &root]));
    assert_eq!(ended.code, Some(17), "{ended}");
}

#[test]
fn sources_are_asked_only_online() {
    let scene = Scene::new();
    // Nothing listens there.
    scene.configure(&scene.archive_at("http://127.0.0.1:1"));
    let root = fixture("bookworm-t4");
    let offline = finish(&mut scene.agent(&["doctor", "--root", &root]));
    assert_eq!(offline.code, Some(0), "{offline}");
    assert!(offline.words().contains("were not queried"), "{offline}");
    let online = finish(&mut scene.agent(&["doctor", "--online", "--root", &root]));
    assert!(online.out.contains("archives-unread"), "{online}");
    assert!(online.words().contains("GPU Turing"), "the host is looked at all the same: {online}");
}

/// Tests a real host: besides all other refusals, a driver root that is a link is refused, and so
/// is one where NVIDIA's container holds its lock.
#[test]
fn a_link_and_a_living_container_are_refused() {
    let scene = Scene::new();
    let elsewhere = scene.path("elsewhere");
    fs::create_dir(&elsewhere).expect("directory");
    std::os::unix::fs::symlink(&elsewhere, scene.path("driver-root")).expect("a link");
    fs::write(scene.path("nvidia-driver.pid"), "4242\n").expect("a file");
    let file = fs::File::open(scene.path("nvidia-driver.pid")).expect("open");
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).expect("lock");
    let ended = finish(&mut scene.agent(&["doctor"]));
    assert!(ended.code.is_some_and(|code| code != 0), "{ended}");
    assert!(ended.out.contains("driver-root-odd"), "{ended}");
    assert!(ended.out.contains("process 4242 holds the lock on"), "{ended}");
    drop(lock);
    let ended = finish(&mut scene.agent(&["doctor"]));
    assert!(!ended.out.contains("other-installer-alive"), "{ended}");
    assert!(ended.out.contains("note leftovers"), "{ended}");
    assert!(scene.path("nvidia-driver.pid").exists(), "the doctor takes nothing off");
}
