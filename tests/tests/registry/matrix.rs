//! Sets that the kernel matrix pushes: under the key of their cell and signed first, and then under the tag by which
//! agents search, whatever fails on the way.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use kernel_matrix::published::Target;
use kernel_matrix::push::{Outcome, Passed, Push, Signer};
use kernel_matrix::results::{CellResult, Digest, Line, Measured, ResolvedCell, Times, Verdict};

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

/// Returns a cell that passed with this set.
fn passed(set: &ModuleSet, key: u8) -> Passed {
    let cell = CellResult {
        name: Line::new("bookworm-535-open"),
        key: Some(Digest::of(&[key; 32])),
        verdict: Verdict::Compiled { patches: Vec::new() },
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
    Passed::of(&cell).expect("its set is named").expect("it passed")
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
    let program = Path::new(env!("CARGO_BIN_EXE_longshore-under-test"));
    let reference = format!("http://{address}/nvidia/modules").parse().expect("a reference");
    let target = Target::of(program, &reference).expect("without a tag");
    let signer = Some(Signer::of(key).expect("a key"));
    Push { target, store, signer, attests: false }.push(passed)
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
    let by_key = format!("key-{}", Digest::of(&[1; 32]).as_str());
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
