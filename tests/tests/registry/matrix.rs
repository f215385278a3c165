//! Sets that the kernel matrix pushes: under the key of their cell and signed first, and then under the tag by which
//! agents search, whatever fails on the way.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use kernel_matrix::push::published::Target;
use kernel_matrix::push::{self, Outcome, Passed, Push, Signer};
use kernel_matrix::results::{
    AgentUsed, CellResult, Digest, Line, Machine, Measured, ResolvedCell, Results, Run, Times,
    Verdict,
};
use longshore_modules::signature::key::SecretKey;
use longshore_tests::scene::{Ended, finish, fixture};

use super::attested::{TEST_RESULT, command, record_compiled, statement, verify_attestation};
use super::together::{Agent, archive};
use super::*;
use longshore_tests::packages::KERNEL;
use longshore_tests::scene::Scene as Host;

/// Forwards requests to a registry, one a connection, and refuses those whose first line has a text.
struct Gate {
    address: String,
    refused: Arc<Mutex<Option<String>>>,
}

impl Gate {
    fn before(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address").to_string();
        let refused = Arc::new(Mutex::new(None::<String>));
        let texts = Arc::clone(&refused);
        // Its threads end with the test's process: they wait for a connection, or for its end.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let (target, text) = (target.clone(), texts.lock().expect("text").clone());
                std::thread::spawn(move || forward(near, &target, text.as_deref()));
            }
        });
        Self { address, refused }
    }

    fn refuse(&self, text: Option<String>) {
        *self.refused.lock().expect("text") = text;
    }
}

fn forward(mut near: TcpStream, target: &str, refused: Option<&str>) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        near.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let text = String::from_utf8(head).ok()?;
    let first = text.lines().next()?;
    if refused.is_some_and(|refused| first.contains(refused)) {
        // An answer before the whole request was read can get lost.
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse::<u64>().ok())?
        });
        std::io::copy(&mut (&near).take(length.unwrap_or(0)), &mut std::io::sink()).ok()?;
        let answer = "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        return near.write_all(answer.as_bytes()).ok();
    }
    let mut far = TcpStream::connect(target).ok()?;
    // The Host stays that of this gate, so that uploads continue at it.
    let head = text.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    far.write_all(head.as_bytes()).ok()?;
    let (mut from, mut to) = (near.try_clone().ok()?, far.try_clone().ok()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut far, &mut near).ok()?;
    near.shutdown(std::net::Shutdown::Both).ok()
}

/// Returns a cell that compiled this set.
fn passed(set: &ModuleSet, key: u8) -> Passed {
    let compiled = Verdict::Compiled { patches: Vec::new() };
    let (mut sets, _) = push::passed(&[results("bookworm-535-open", compiled, set, key)]);
    sets.pop().expect("it passed")
}

/// Returns results of a run with one cell.
fn results(name: &str, verdict: Verdict, set: &ModuleSet, key: u8) -> Results {
    let time = "2026-11-23T01:00:00Z".parse().expect("a time");
    let run = Run {
        id: Line::new("20261123T010000Z-0badcafe"),
        nonce: Line::new("0badcafe"),
        began: time,
        ended: time,
        complete: true,
        changed_only: false,
        machine: Machine { cores: 2, qemu: Line::new("10.0"), backend: Line::new("vfio-user") },
        agent: AgentUsed {
            version: Line::new("0.1.0"),
            program: Some(Digest::from_sha256(&[7; 32])),
            commit: Some(Line::new(&"c".repeat(40))),
            image: Some(Digest::from_sha256(&[8; 32])),
        },
        lock: Some(Digest::from_sha256(&[9; 32])),
        shard: None,
    };
    let cell = CellResult {
        name: Line::new(name),
        key: Some(Digest::from_sha256(&[key; 32])),
        verdict,
        resolved: Some(ResolvedCell {
            kernel_release: Line::new(&set.key.kernel_release),
            driver_version: Line::new(&set.key.driver_version),
            set: Digest::try_from(set.key.digest()).ok(),
            ..ResolvedCell::default()
        }),
        phases: Vec::new(),
        measured: Measured::new(),
        times: Times::default(),
        log: None,
        reused_from: None,
        unproven: false,
    };
    Results { cells: vec![cell], ..Results::new(run) }
}

/// Makes a key without a password.
fn sign_key(scene: &Scene) -> std::path::PathBuf {
    let path = scene.dir.path().join("sign.pem");
    let mut make = Command::new("openssl");
    make.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(&path);
    assert!(make.status().expect("openssl").success());
    path
}

fn push(address: &str, store: &Path, key: &Path, passed: &Passed) -> Outcome {
    push_with(address, store, key, passed, false)
}

fn push_with(address: &str, store: &Path, key: &Path, passed: &Passed, attests: bool) -> Outcome {
    let program = Path::new(env!("CARGO_BIN_EXE_longshore-under-test"));
    let reference = format!("http://{address}/nvidia/modules").parse().expect("a reference");
    let target = Target::from_reference(program, &reference).expect("without a tag");
    let signer = Some(Signer::from_key_file(key).expect("a key"));
    Push { target, store, signer, attests }.push(passed)
}

#[tokio::test]
async fn a_set_that_passed_is_found_by_its_key_and_by_agents() {
    let scene = Scene::new();
    let (store, key) = (scene.dir.path().join("store"), sign_key(&scene));
    let passed = passed(&scene.set, 1);
    let pushes = || push(&scene.hub.address, &store, &key, &passed);
    assert_eq!(pushes(), Outcome::Pushed);
    let tags = together::tags(&scene.hub);
    assert_eq!(tags.len(), 3, "by key, for agents, and the signature: {tags:?}");
    assert!(tags.contains(&format!("key-{}", passed.key.as_str())), "{tags:?}");
    let registry = scene.open(&[]);
    let found = registry.look_up(&scene.set.key.tag()).await.expect("answers").expect("is there");
    assert_eq!(found.set, scene.set);
    assert_eq!(pushes(), Outcome::There);
    // From a store that no longer has it: what the registry has need not be pushed.
    let empty = scene.dir.path().join("other");
    let outcome = push(&scene.hub.address, &empty, &key, &passed);
    assert_eq!(outcome, Outcome::There);
}

#[tokio::test]
async fn a_registry_that_fails_in_the_middle_has_the_whole_set_or_the_earlier_one() {
    let scene = Scene::new();
    let (store, key) = (scene.dir.path().join("store"), sign_key(&scene));
    let mut earlier = scene.set.clone();
    earlier.key.compiler = "gcc-12 (Debian 12.2.0-13) 12.2.0".into();
    scene.store.put_set(&earlier).expect("put_set");
    let gate = Gate::before(scene.hub.address.clone());
    let tag = scene.set.key.tag();
    let pushes = |passed: &Passed| push(&gate.address, &store, &key, passed);
    assert_eq!(pushes(&passed(&earlier, 1)), Outcome::Pushed);
    let passed = passed(&scene.set, 2);
    let manifest = |tag: &str| format!("PUT /v2/nvidia/modules/manifests/{tag}");
    for point in [
        "POST /v2/nvidia/modules/blobs".to_owned(),
        manifest("sha256-"),
        manifest("key-"),
        manifest(&tag),
    ] {
        gate.refuse(Some(point.clone()));
        let outcome = pushes(&passed);
        assert!(
            matches!(&outcome, Outcome::Failed(why) if why.contains("403")),
            "{point}: {outcome:?}"
        );
        let found = scene.open(&[]).look_up(&tag).await.expect("answers").expect("is there");
        assert_eq!(found.set, earlier, "agents find the earlier set: {point}");
    }
    gate.refuse(None);
    assert_eq!(pushes(&passed), Outcome::Pushed);
    let found = scene.open(&[]).look_up(&tag).await.expect("answers").expect("is there");
    assert_eq!(found.set, scene.set);
    assert_eq!(pushes(&passed), Outcome::There, "signed, too");
}

/// Plans on a host with a T4 and the kernel of the sets, which takes sets of the scene's registry with a test result by
/// this key alone.
fn plan(scene: &Scene, host: &Host, public: &Path) -> Ended {
    host.configure(&format!(
        "driver = \"535.261.03\"\nsignature-keys = [\"{}\"]\n[[registry]]\n\
         reference = \"{}/nvidia/modules\"\nplain-http = true\n",
        public.display(),
        scene.hub.address
    ));
    let tree = fixture("bookworm-t4");
    let asked = ["plan", "--steps", "--root", &tree, "--require-attestation", "test-result"];
    finish(&mut host.agent(&asked))
}

#[tokio::test]
async fn a_set_that_booted_has_a_test_result_that_agents_can_demand() {
    let mut scene = Scene::new();
    // The kernel of the host's tree.
    let version = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)";
    scene.set = module_sets::put_of(&scene.store, "6.1.0-50-amd64", &together::MODULES, 0);
    scene.set.key.kernel_version = version.into();
    scene.store.put_set(&scene.set).expect("put_set");
    record_compiled(&scene, &scene.set);
    let (store, key) = (scene.dir.path().join("store"), sign_key(&scene));
    let public = scene.dir.path().join("sign.pub");
    let secret = SecretKey::read(&key, None).expect("a key");
    std::fs::write(&public, secret.public_pem().expect("pem")).expect("writes");
    let pushes = |passed: &Passed| push_with(&scene.hub.address, &store, &key, passed, true);
    let registry = scene.open(&[]);
    let tag = scene.set.key.tag();
    let reference = format!("{}:{tag}", scene.name());
    let verify = |kind: &str| {
        let key = public.to_str().expect("a path");
        command(&scene, &["verify", &reference, "--key", key, "--attestation", kind])
    };
    let host = Host::new();

    let compiled =
        results("bookworm-535-open", Verdict::Compiled { patches: Vec::new() }, &scene.set, 1);
    let (sets, _) = push::passed(std::slice::from_ref(&compiled));
    assert_eq!(pushes(&sets[0]), Outcome::Pushed);
    assert_eq!(pushes(&sets[0]), Outcome::There);
    verify("provenance").assert_done();
    verify("test-result").assert_failed(13, &["of the type test-result".into()]);
    let refused = plan(&scene, &host, &public);
    assert_eq!(refused.code, Some(13), "{refused}");
    assert!(refused.out.contains("attestation-missing"), "{refused}");

    // A cell of another key booted the same set: the manifest under both keys is the same.
    let booted = results("bookworm-535-open-round-trip-t4", Verdict::Works {}, &scene.set, 2);
    let (sets, refused) = push::passed(&[compiled, booted]);
    assert_eq!((sets.len(), refused.len()), (2, 0));
    for passed in &sets {
        assert_eq!(pushes(passed), Outcome::Pushed);
        assert_eq!(pushes(passed), Outcome::There);
    }
    verify("test-result").assert_done();
    verify("spdx").assert_done();
    let taken = plan(&scene, &host, &public);
    let digest = registry.describe(&tag).await.expect("describes").digest();
    // The set is chosen; a registry has no user-mode files, and this host has no archive for them.
    assert_eq!(taken.code, Some(12), "{taken}");
    let refusals: Vec<&str> =
        taken.out.lines().filter(|line| line.starts_with("  refusal ")).collect();
    assert!(matches!(refusals[..], [one] if one.contains("userspace-not-offered")), "{taken}");
    // A long name is on a line of its own.
    let text = taken.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let fetch = format!("fetch the prebuilt modules {}@{digest}", scene.name());
    assert!(text.contains(&fetch), "{taken}");

    let image = format!("{}/nvidia/modules@{digest}", scene.hub.address);
    let public = public.to_str().expect("a path");
    let envelope = verify_attestation(&scene, &image, public, TEST_RESULT).expect("cosign accepts");
    let predicate = &statement(scene.dir.path(), &envelope)["predicate"];
    assert_eq!(predicate["result"], "PASSED");
    let names = serde_json::json!(["bookworm-535-open-round-trip-t4"]);
    assert_eq!(predicate["passedTests"], names);
    let image = &predicate["configuration"][1];
    assert_eq!(image["digest"]["sha256"], Digest::from_sha256(&[8; 32]).as_str());
    assert_eq!(image["annotations"]["run"], "20261123T010000Z-0badcafe");
}

#[tokio::test]
async fn a_set_under_its_key_is_not_overwritten_after_the_agents_tag_moved() {
    let scene = Scene::new();
    let (store, key) = (scene.dir.path().join("store"), sign_key(&scene));
    let variant = |compiler: &str| {
        let mut set = scene.set.clone();
        set.key.compiler = compiler.into();
        scene.store.put_set(&set).expect("put_set");
        set
    };
    let (first, second, changed) = (variant("gcc-a"), variant("gcc-b"), variant("gcc-c"));
    let pushes =
        |set: &ModuleSet, cell: u8| push(&scene.hub.address, &store, &key, &passed(set, cell));
    assert_eq!(pushes(&first, 1), Outcome::Pushed);
    assert_eq!(pushes(&second, 2), Outcome::Pushed);
    let Outcome::Failed(why) = pushes(&changed, 1) else { panic!("overwritten") };
    assert!(why.contains("is of another set"), "{why}");
    let registry = scene.open(&[]);
    let there = async |tag: &str| {
        registry.look_up(tag).await.expect("answers").map(|found| found.set.key.compiler)
    };
    let by_key = format!("key-{}", Digest::from_sha256(&[1; 32]).as_str());
    assert_eq!(there(&by_key).await.as_deref(), Some("gcc-a"));
    assert_eq!(
        there(&scene.set.key.tag()).await.as_deref(),
        Some("gcc-b"),
        "agents find the other"
    );
    assert_eq!(pushes(&first, 1), Outcome::Pushed, "it gets the agents' tag again");
    assert_eq!(there(&scene.set.key.tag()).await.as_deref(), Some("gcc-a"));
}

/// Returns the digest that `build --print-inputs` prints.
fn inputs(host: &Host, store: &str, more: &[&str]) -> String {
    let mut command = host.agent(&["build", "--kernel", KERNEL, "--print-inputs"]);
    command.args(more).env("LONGSHORE_STORE", host.path(store));
    let out = command.output().expect("runs");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
    let printed: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    printed["inputs"].as_str().expect("a digest").to_owned()
}

#[test]
fn the_inputs_of_a_build_are_printed_before_it_and_logged_by_it() {
    let host = Host::with(archive(0, false));
    let before = inputs(&host, "asked", &[]);
    assert!(longshore_core::digest::is_sha256(&before), "{before}");
    assert!(together::entries(&host.path("asked").join("logs")).is_empty(), "it compiled");
    assert_eq!(inputs(&host, "another", &[]), before, "on another machine, too");
    for other in [&["--no-patches"][..], &["--extra-module", "nvidia-peermem"]] {
        assert_ne!(inputs(&host, "another", other), before, "{other:?}");
    }
    let said = Agent::start(&host, "builds", "store", None).ends(0);
    assert!(said.contains(&before), "{said}");
}

#[test]
fn a_changed_condition_of_a_patch_changes_the_inputs_of_the_builds_it_may_be_applied_to() {
    let host = Host::with(archive(0, false));
    let patches = host.path("patches");
    let dir = patches.join("mine");
    std::fs::create_dir_all(&dir).expect("a directory");
    let diff = "--- a/nvidia/x.c\n+++ b/nvidia/x.c\n@@ -1 +1 @@\n-a\n+b\n";
    std::fs::write(dir.join("patch.diff"), diff).expect("written");
    let with = |drivers: &str, text: &str| {
        let about = format!(
            "reason = \"a\"\norigin = \"b\"\nflavours = [\"open\", \"proprietary\"]\n{drivers}\n\
             [[source]]\nfile = \"nvidia/x.c\"\nhas = \"{text}\"\n"
        );
        std::fs::write(dir.join("patch.toml"), about).expect("written");
        inputs(&host, "asked", &["--patches", patches.to_str().expect("UTF-8")])
    };
    let without = inputs(&host, "asked", &[]);
    let drivers = |from: &str| format!("driver = {{ from = \"{from}\", below = \"580\" }}");
    let (fits, other) = (drivers("535"), drivers("550"));
    let before = with(&fits, "one");
    assert_ne!(before, without);
    assert_ne!(with(&fits, "another"), before, "its diff is the same");
    assert_eq!(with(&fits, "one"), before);
    assert_eq!(with(&other, "one"), without, "it is for other drivers");
}
