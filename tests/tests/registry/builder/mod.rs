//! A builder that alone has the keys, and nodes that pull with public keys: real processes, a real docker-registry, and
//! a real compile but for make, which ends on the test's command.

mod cluster;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use longshore_modules::sets::SetStore;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::statement::PredicateType;
use nix::sys::signal::Signal;

use super::*;
use crate::cosign::PASSWORD;
use crate::together::{archive, entries, let_go, tag};
use longshore_tests::archive::Suite;
use longshore_tests::packages::{self, KERNEL};
use longshore_tests::scene::{Ended, Scene as Host, await_exit, finish, send, until};

/// A kernel that appears later.
const NEXT: &str = "6.1.0-51-amd64";
/// A kernel that no archive has.
const UNKNOWN: &str = "6.1.0-99-amd64";

/// A registry, the keys of its builder, and a list of kernels.
struct Fleet {
    host: Host,
    hub: Hub,
    secret: PathBuf,
    public: PathBuf,
    list: PathBuf,
}

/// Makes an archive with the headers of both kernels.
fn both_kernels(waits: bool) -> Suite {
    let mut suite = archive(0, waits);
    suite.packages.push(packages::headers_of(NEXT));
    suite
}

impl Fleet {
    fn new(waits: bool) -> Self {
        let (host, hub) = (Host::with(both_kernels(waits)), Hub::start(None));
        let path = |name: &str| host.path(name);
        let (secret, public, list) = (path("cosign.key"), path("cosign.pub"), path("kernels"));
        let key = SecretKey::generate();
        fs::write(&secret, key.to_encrypted_pem(PASSWORD).expect("PEM")).expect("writes");
        fs::write(&public, key.public_pem().expect("PEM")).expect("writes");
        fs::write(&list, format!("{KERNEL}\n")).expect("writes");
        Self { host, hub, secret, public, list }
    }

    fn reference(&self) -> String {
        format!("http://{}/nvidia/modules", self.hub.address)
    }

    /// Returns the builder's command; its store is `builder`.
    fn builder(&self, args: &[&str]) -> Command {
        let mut command = self.host.agent(&[&["builder"], args].concat());
        command
            .env("LONGSHORE_STORE", self.host.path("builder"))
            .env("LONGSHORE_PUBLISH", self.reference())
            .env("LONGSHORE_PUBLISH_KEY", &self.secret)
            .env("LONGSHORE_PUBLISH_ATTEST", "true")
            .env("LONGSHORE_BUILDER_FLAVOURS", "proprietary")
            .env("COSIGN_PASSWORD", PASSWORD);
        command
    }

    /// Returns the command of a node that pulls with the public key alone, and demands provenance.
    fn node(&self, name: &str, kernel: &str, wait: &str) -> Command {
        let mut command = self.host.agent(&["fetch", "--kernel", kernel]);
        command
            .env("LONGSHORE_STORE", self.host.path(name))
            .env("LONGSHORE_REGISTRIES", self.reference())
            .env("LONGSHORE_SIGNATURE_KEYS", &self.public)
            .env("LONGSHORE_REQUIRE_ATTESTATION", "provenance")
            .env("LONGSHORE_REGISTRY_WAIT", wait);
        command
    }

    fn store(&self, name: &str) -> Store {
        Store::open(&self.host.path(name), disk()).expect("store")
    }

    /// True if anything was compiled into this store; with the number of compiles' logs.
    fn compiles(&self, name: &str) -> usize {
        entries(&self.host.path(name).join("logs")).len()
    }

    /// Checks that a node got signed and attested modules for the kernel, and compiled none. It ends where the user-mode
    /// packages are fetched, which the archive does not have.
    fn assert_served(&self, name: &str, kernel: &str, code: Option<i32>, log: &str) {
        assert_eq!(code, Some(12), "{log}");
        let store = self.store(name);
        let sets = store.sets().expect("sets");
        assert_eq!(sets.len(), 1, "{log}");
        assert_eq!(sets[0].key.kernel_release, kernel);
        let key = PublicKey::read(&self.public).expect("the key");
        let provenance: PredicateType = "provenance".parse().expect("a type");
        let trust = trusting(&[key]).requiring(vec![provenance]);
        store.evidence(&sets[0]).expect("evidence").meets(&sets[0], &trust).expect("it counts");
        module_sets::assert_sound(&store);
        assert_eq!(self.compiles(name), 0, "{log}");
    }
}

/// A process with its log.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(fleet: &Fleet, name: &str, mut command: Command) -> Self {
        let log = fleet.host.path(&format!("{name}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log).expect("a log"));
        Self { child: command.spawn().expect("starts"), log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    fn says(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    fn code(&mut self) -> Option<i32> {
        await_exit(&self.child);
        self.child.wait().expect("a child").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the work directory of a compile once make runs in it.
fn work(store: &Path) -> Option<PathBuf> {
    let mut works = entries(&store.join("tmp")).into_iter();
    works
        .find(|path| path.join("build/driver/nvidia.ko.in").is_file())
        .map(|path| path.join("build"))
}

/// Waits for a compile, and lets it end.
fn let_compile(fleet: &Fleet) {
    let store = fleet.host.path("builder");
    let mut found = None;
    until("the builder compiles", || {
        found = work(&store);
        found.is_some()
    });
    let_go(&found.expect("it compiles"));
}

#[test]
fn nodes_wait_for_the_one_compile_of_the_builder_and_for_that_of_a_kernel_that_appears() {
    let fleet = Fleet::new(true);
    let names = ["node-1", "node-2", "node-3", "node-4"];
    let start = |name: &&str| {
        let mut node = fleet.node(name, KERNEL, "170s");
        // The builder lists what it pushes.
        node.env("LONGSHORE_REQUIRE_INDEX", if *name == names[3] { "true" } else { "false" });
        Running::start(&fleet, name, node)
    };
    let mut nodes: Vec<Running> = names.iter().map(start).collect();
    until("all nodes wait", || nodes.iter().all(|node| node.says("waiting for modules of driver")));
    let list = fleet.list.display().to_string();
    let mut builder = Running::start(&fleet, "log", fleet.builder(&["--kernels", &list]));
    let_compile(&fleet);
    for (name, node) in names.iter().zip(&mut nodes) {
        let code = node.code();
        fleet.assert_served(name, KERNEL, code, &node.log());
    }
    assert!(nodes[0].says(&fleet.reference()), "{}", nodes[0].log());
    assert_eq!(fleet.compiles("builder"), 1, "{}", builder.log());

    let mut late = fleet.node("late", NEXT, "170s");
    late.env("LONGSHORE_REQUIRE_INDEX", "true");
    let mut late = Running::start(&fleet, "late", late);
    until("it waits", || late.says("waiting for modules of driver"));
    fs::write(&fleet.list, format!("{KERNEL}\n{NEXT}\n")).expect("writes");
    let_compile(&fleet);
    let code = late.code();
    fleet.assert_served("late", NEXT, code, &late.log());
    assert_eq!(fleet.compiles("builder"), 2, "{}", builder.log());
    send(&builder.child, Signal::SIGTERM);
    assert_eq!(builder.code(), Some(0), "{}", builder.log());
    // Nothing of the builder's keys was needed, and no claim was made: only sets and what belongs to them.
    let tags = together::tags(&fleet.hub);
    assert!(!tags.iter().any(|tag| tag.starts_with("claim-")), "{tags:?}");
    assert!(tags.contains(&tag()) && tags.iter().any(|tag| tag == "longshore-index"), "{tags:?}");
}

#[test]
fn a_node_ends_after_its_time_and_at_once_without_one() {
    let fleet = Fleet::new(false);
    for wait in ["0s", "1s"] {
        let ended = finish(&mut fleet.node("node", KERNEL, wait));
        assert_eq!(ended.code, Some(12), "{ended}");
        assert!(ended.err.contains("nothing-built") && ended.err.contains(KERNEL), "{ended}");
        assert_eq!(ended.err.contains("waiting for modules of driver"), wait != "0s", "{ended}");
        assert_eq!(fleet.compiles("node"), 0, "{ended}");
    }
}

#[test]
fn one_kernel_that_cannot_be_built_for_holds_up_no_other_and_is_the_exit_code() {
    let fleet = Fleet::new(false);
    let once = ["--once", "--kernel", UNKNOWN, "--kernel", KERNEL];
    let ended = finish(&mut fleet.builder(&once));
    ended.assert_failed(11, &[UNKNOWN.to_owned()]);
    let node = finish(&mut fleet.node("node", KERNEL, "0s"));
    fleet.assert_served("node", KERNEL, node.code, &node.to_string());
    let again = finish(&mut fleet.builder(&["--once", "--kernel", KERNEL]));
    again.assert_done();
    assert!(!again.err.contains("has no such set"), "{again}");
    assert_eq!(fleet.compiles("builder"), 1);
}

/// The registry's set does not count before it is signed by the builder's own key.
#[tokio::test]
async fn a_set_of_another_key_or_without_one_is_made_anew() {
    let fleet = Fleet::new(false);
    let stranger = SecretKey::generate();
    let other = fleet.host.path("other.key");
    fs::write(&other, stranger.to_encrypted_pem(PASSWORD).expect("PEM")).expect("writes");
    let mut foreign = fleet.builder(&["--once", "--kernel", KERNEL]);
    foreign.env("LONGSHORE_STORE", fleet.host.path("foreign")).env("LONGSHORE_PUBLISH_KEY", &other);
    finish(&mut foreign).assert_done();
    let node = finish(&mut fleet.node("node", KERNEL, "0s"));
    node.assert_failed(13, &["signature".to_owned()]);
    let own = finish(&mut fleet.builder(&["--once", "--kernel", KERNEL]));
    own.assert_done();
    assert!(own.err.contains("is made anew: none of its 1 signatures"), "{own}");
    let node = finish(&mut fleet.node("node", KERNEL, "0s"));
    fleet.assert_served("node", KERNEL, node.code, &node.to_string());
}

/// A signed and attested set that the index does not list, as one that was put back under its tag.
#[test]
fn a_signed_set_that_no_index_lists_is_named_and_made_anew() {
    let fleet = Fleet::new(false);
    let build = || {
        let ended = finish(&mut fleet.builder(&["--once", "--kernel", KERNEL]));
        ended.assert_done();
        ended.err
    };
    let index = |args: &[&str]| {
        let reference = fleet.reference();
        let mut command = fleet.host.agent(&[&["index", reference.as_str()][..], args].concat());
        let ended = finish(command.env("COSIGN_PASSWORD", PASSWORD));
        ended.assert_done();
        ended.out
    };
    let public = fleet.public.display().to_string();
    let listed = || -> Vec<String> {
        let shown = index(&["--show", "--signature-key", &public]);
        shown.lines().filter(|line| line.starts_with("sha256:")).map(str::to_owned).collect()
    };
    let unlisted = "neither this builder pushed it nor an index by its key lists it";
    assert!(!build().contains(unlisted));
    let first = listed();
    assert_eq!(first.len(), 1);
    let secret = fleet.secret.display().to_string();
    index(&["--sign-key", &secret, "--without", &first[0]]);
    assert!(listed().is_empty());
    let again = build();
    assert!(again.contains(unlisted) && again.contains(&first[0]), "{again}");
    assert_eq!(
        (listed(), fleet.compiles("builder")),
        (first, 1),
        "pushed from the builder's store"
    );
    assert!(!build().contains(unlisted));
}

#[test]
fn a_compile_ends_cleanly_when_the_builder_is_stopped() {
    let fleet = Fleet::new(true);
    let mut builder = Running::start(&fleet, "log", fleet.builder(&["--kernel", KERNEL]));
    let store = fleet.host.path("builder");
    until("it compiles", || work(&store).is_some());
    send(&builder.child, Signal::SIGTERM);
    assert_eq!(builder.code(), Some(0), "{}", builder.log());
    assert!(entries(&store.join("tmp")).is_empty(), "unfinished work is left");
    assert_eq!(together::tags(&fleet.hub), ["longshore-index"], "the list of no sets alone");
}

/// Returns the capabilities that the chart's pod adds, as setpriv(1) names them.
fn rights_of_the_chart() -> String {
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/longshore/templates/builder.yaml");
    let text = fs::read_to_string(file).expect("the template");
    let line =
        text.lines().find_map(|line| line.trim().strip_prefix("add: [")).expect("capabilities");
    let names =
        line.trim_end_matches(']').split(", ").map(|name| format!("+{}", name.to_lowercase()));
    std::iter::once("-all".to_owned()).chain(names).collect::<Vec<_>>().join(",")
}

#[test]
fn the_capabilities_of_the_charts_pod_suffice() {
    let fleet = Fleet::new(false);
    let plain = fleet.builder(&["--once", "--kernel", KERNEL]);
    let mut builder = Command::new("/usr/bin/setpriv");
    builder.env_clear().arg(format!("--bounding-set={}", rights_of_the_chart())).arg("--");
    builder.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => builder.env(name, value),
            None => builder.env_remove(name),
        };
    }
    finish(&mut builder).assert_done();
    let node = finish(&mut fleet.node("node", KERNEL, "0s"));
    fleet.assert_served("node", KERNEL, node.code, &node.to_string());
}

#[test]
fn probes_tell_a_builder_that_can_use_its_registry_from_one_that_cannot() {
    let fleet = Fleet::new(false);
    let asked = |option: &str| finish(&mut fleet.builder(&[option])).code;
    assert_eq!((asked("--alive"), asked("--ready")), (Some(30), Some(30)), "none runs");
    let mut builder = Running::start(&fleet, "log", fleet.builder(&["--kernel", KERNEL]));
    until("it is ready", || asked("--ready") == Some(0));
    assert_eq!(asked("--alive"), Some(0));
    finish(&mut fleet.builder(&["--kernel", KERNEL]))
        .assert_failed(15, &["another builder runs here".to_owned()]);
    send(&builder.child, Signal::SIGTERM);
    assert_eq!(builder.code(), Some(0), "{}", builder.log());
    assert_eq!((asked("--alive"), asked("--ready")), (Some(30), Some(30)));

    let away = || {
        let mut command = fleet.builder(&["--kernel", KERNEL]);
        command.env("LONGSHORE_PUBLISH", "http://127.0.0.1:1/nvidia/modules");
        command
    };
    let mut builder = Running::start(&fleet, "away", away());
    until("it says so", || builder.says("the registry cannot be used"));
    assert_eq!((asked("--alive"), asked("--ready")), (Some(0), Some(30)));
    send(&builder.child, Signal::SIGTERM);
    assert_eq!(builder.code(), Some(0), "{}", builder.log());
}

#[test]
fn what_cannot_be_a_builder_is_told_at_once() {
    let fleet = Fleet::new(false);
    let refused = |command: &mut Command, code, text: &str| {
        finish(command).assert_failed(code, &[text.to_owned()]);
    };
    refused(&mut fleet.builder(&[]), 2, "nothing is asked for");
    refused(
        fleet.builder(&["--kernel", KERNEL]).env_remove("LONGSHORE_PUBLISH"),
        2,
        "no registry is named",
    );
    refused(fleet.builder(&["--kernel", KERNEL]).env("COSIGN_PASSWORD", "wrong"), 2, "cosign.key");
    refused(&mut fleet.builder(&["--cluster"]), 32, "no pod of a cluster");
    let odd = fleet.host.path("odd");
    fs::write(&odd, "../../etc\n").expect("writes");
    refused(
        &mut fleet.builder(&["--kernels", odd.to_str().expect("a path")]),
        2,
        "no kernel release",
    );
    assert!(fleet.hub.is_untouched());
}

/// Finding F2: build-once and required signatures go together on a host that has the key.
#[test]
fn an_agent_whose_own_key_counts_compiles_signs_and_loads_its_own_set_and_refuses_it_unsigned() {
    let fleet = Fleet::new(false);
    let agent = |store: &str, key: Option<&Path>| {
        let mut command = fleet.node(store, KERNEL, "0s");
        command.env("COSIGN_PASSWORD", PASSWORD);
        if let Some(key) = key {
            command
                .env("LONGSHORE_PUBLISH", fleet.reference())
                .env("LONGSHORE_PUBLISH_KEY", key)
                .env("LONGSHORE_PUBLISH_ATTEST", "true");
        }
        finish(&mut command)
    };
    // Compiled into this store without a signature.
    let mut unsigned = fleet.host.agent(&["build", "--kernel", KERNEL]);
    finish(unsigned.env("LONGSHORE_STORE", fleet.host.path("unsigned"))).assert_done();
    agent("unsigned", None).assert_failed(13, &["signature-missing".to_owned()]);

    let stranger = fleet.host.path("stranger.key");
    let other = SecretKey::generate().to_encrypted_pem(PASSWORD).expect("PEM");
    fs::write(&stranger, other).expect("writes");
    agent("foreign", Some(&stranger)).assert_failed(
        12,
        &["nothing-built".to_owned(), "which is none of the signature-keys".to_owned()],
    );
    assert_eq!(fleet.compiles("foreign"), 0);

    let own = agent("own", Some(&fleet.secret));
    assert_eq!(own.code, Some(12), "{own}");
    assert_eq!(fleet.compiles("own"), 1, "{own}");
    let store = fleet.store("own");
    let sets = store.sets().expect("sets");
    let key = PublicKey::read(&fleet.public).expect("the key");
    let evidence = store.evidence(&sets[0]).expect("evidence");
    evidence.meets(&sets[0], &trusting(&[key])).expect("its own signature counts");
    // Others take what it published.
    let node = finish(&mut fleet.node("node", KERNEL, "0s"));
    fleet.assert_served("node", KERNEL, node.code, &node.to_string());
    // Without its registry it still loads its own set, which the store has with its evidence.
    drop(fleet.hub);
}
