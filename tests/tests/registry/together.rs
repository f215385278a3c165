//! Many agents at once, as processes with stores of their own: one compiles, and may be killed
//! meanwhile.
//!
//! The compile is the agent's real one, with headers, compiler and root from an archive and the
//! sandbox around it; only make is a stand-in that ends on the test's command.

use longshore_tests::module_sets;
use longshore_tests::scene::disk;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use longshore_modules::artifact::image::Described;
use longshore_modules::sets::SetStore;
use nix::sys::signal::Signal;

use super::*;
use longshore_tests::archive::Suite;
use longshore_tests::packages::KERNEL;
use longshore_tests::scene::{Scene as Host, await_exit, send, until};
use longshore_tests::signer::{self, Signer};

const AGENTS: usize = 8;
/// Lease whose twentieth is long against the delays of a busy machine.
const LEASE: Duration = Duration::from_secs(20);

pub(crate) use longshore_tests::stand_in::{MODULES, archive, libraries, loader};

/// Returns the tag of the sets.
pub(crate) fn tag() -> String {
    format!("535.261.03-proprietary-{KERNEL}-{}", std::env::consts::ARCH)
}

/// One agent that builds, its store, and its log.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) store: PathBuf,
    log: PathBuf,
}

impl Agent {
    pub(crate) fn start(host: &Host, name: &str, store: &str, publish: Option<&str>) -> Self {
        Self::with_options(host, name, store, publish, &[])
    }

    /// Starts one with `more` arguments.
    pub(crate) fn with_options(
        host: &Host,
        name: &str,
        store: &str,
        publish: Option<&str>,
        more: &[&str],
    ) -> Self {
        let (store, log) = (host.path(store), host.path(&format!("{name}.log")));
        let mut command = host.agent(&["build", "--kernel", KERNEL]);
        command.args(more);
        command.env("LONGSHORE_STORE", &store);
        if let Some(reference) = publish {
            command.env("LONGSHORE_PUBLISH", reference);
            command.env("LONGSHORE_PUBLISH_LEASE", format!("{}s", LEASE.as_secs()));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log).expect("a log"));
        Self { child: command.spawn().expect("starts"), store, log }
    }

    pub(crate) fn says(&self, text: &str) -> bool {
        fs::read_to_string(&self.log).expect("a log").contains(text)
    }

    /// Returns its work directory while it compiles, once make is about to run.
    pub(crate) fn work(&self) -> Option<PathBuf> {
        if !self.says("compiling 535.261.03") {
            return None;
        }
        let mut works = entries(&self.store.join("tmp")).into_iter();
        works.find(|path| path.join("build/driver").is_dir()).map(|path| path.join("build"))
    }

    /// True if it ever compiled.
    fn compiled(&self) -> bool {
        !entries(&self.store.join("logs")).is_empty()
    }

    pub(crate) fn ends_well(self) -> Store {
        let store = Store::open(&self.store, disk()).expect("store");
        self.ends(0);
        store
    }

    /// Waits until it exits with this code, and returns its log.
    pub(crate) fn ends(mut self, code: i32) -> String {
        await_exit(&self.child);
        let log = fs::read_to_string(&self.log).expect("a log");
        assert_eq!(self.child.wait().expect("a child").code(), Some(code), "{log}");
        log
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "-- {}\n{log}", self.log.display());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Lets make end.
pub(crate) fn let_go(work: &Path) {
    fs::write(work.join("go"), "").expect("write");
}

/// Returns the digest of the manifest of a store's only set.
fn digest(store: &Store) -> String {
    module_sets::assert_sound(store);
    let sets = store.sets().expect("sets");
    assert_eq!(sets.len(), 1);
    Described::from_set(&sets[0]).expect("describes").digest()
}

/// Starts agents that publish to one registry, all waiting except the one that compiles.
pub(crate) fn together(host: &Host, hub: &Hub) -> (Agent, Vec<Agent>) {
    let reference = format!("http://{}/nvidia/modules", hub.address);
    let start = |n| {
        let name = format!("agent{n}");
        Agent::start(host, &name, &format!("store{n}"), Some(&reference))
    };
    let mut agents: Vec<Agent> = (0..AGENTS).map(start).collect();
    let mut builder = None;
    until("somebody compiles", || {
        builder = agents.iter().position(|agent| agent.work().is_some());
        builder.is_some()
    });
    let builder = agents.remove(builder.expect("somebody"));
    let who = format!("(pid {}, since ", builder.child.id());
    until("the others wait", || agents.iter().all(|agent| agent.says(&who)));
    (builder, agents)
}

pub(crate) fn tags(hub: &Hub) -> Vec<String> {
    let from = format!("docker://{}/nvidia/modules", hub.address);
    let listed = other_tools::skopeo(&["list-tags", "--tls-verify=false", &from]);
    let listed: serde_json::Value = serde_json::from_slice(&listed).expect("JSON");
    let tags = listed["Tags"].as_array().expect("tags").iter();
    tags.map(|tag| tag.as_str().expect("a tag").to_owned()).collect()
}

/// Checks that every store has the registry's set, and that the registry has nothing else except
/// claims.
pub(crate) fn assert_same(stores: &[Store], hub: &Hub, claims: usize) {
    let digests: Vec<String> = stores.iter().map(digest).collect();
    let mut tags = tags(hub);
    let before = tags.len();
    tags.retain(|tag| !tag.starts_with("claim-"));
    assert_eq!(before - tags.len(), claims);
    assert_eq!(tags, [tag()]);
    let from = format!("docker://{}/nvidia/modules:{}", hub.address, tags[0]);
    let there = other_tools::skopeo(&["inspect", "--raw", "--tls-verify=false", &from]);
    let there = longshore_modules::artifact::image::digest(&there);
    assert_eq!(digests, vec![there; stores.len()]);
}

#[test]
fn of_many_that_start_together_one_compiles() {
    for deletes in [true, false] {
        let hub = if deletes { Hub::that_deletes() } else { Hub::start(None) };
        let host = Host::with(archive(0, true));
        let (builder, others) = together(&host, &hub);
        let_go(&builder.work().expect("it compiles"));
        let mut stores = vec![builder.ends_well()];
        assert_eq!(others.iter().filter(|agent| agent.compiled()).count(), 0);
        stores.extend(others.into_iter().map(Agent::ends_well));
        assert_same(&stores, &hub, usize::from(!deletes));
    }
}

#[test]
fn when_the_one_that_compiles_is_killed_another_takes_over() {
    let hub = Hub::start(None);
    let host = Host::with(archive(0, true));
    let (builder, mut others) = together(&host, &hub);
    let killed = Instant::now();
    send(&builder.child, Signal::SIGKILL);
    let mut second = None;
    until("another compiles", || {
        second = others.iter().position(|agent| agent.work().is_some());
        second.is_some()
    });
    // The renewal may have been a moment ago, but not longer than its interval.
    assert!(killed.elapsed() >= LEASE / 2, "{:?}", killed.elapsed());
    let second = others.remove(second.expect("somebody"));
    let who = format!("(pid {}, since ", second.child.id());
    until("the others wait again", || others.iter().all(|agent| agent.says(&who)));
    let_go(&second.work().expect("it compiles"));
    let mut stores = vec![second.ends_well()];
    assert_eq!(others.iter().filter(|agent| agent.compiled()).count(), 0);
    stores.extend(others.into_iter().map(Agent::ends_well));
    assert_eq!(stores.len(), AGENTS - 1);
    assert_same(&stores, &hub, 1);
}

#[test]
fn a_builder_that_is_stopped_gives_its_claim_back_and_another_takes_over_at_once() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let hub = Hub::start(None);
        let host = Host::with(archive(0, true));
        let reference = format!("http://{}/nvidia/modules", hub.address);
        // So long that a claim that was not released cannot pass for one that was, even on a busy
        // machine.
        let lease = Duration::from_secs(120);
        let more = ["--publish-lease", "120s"];
        let agent = Agent::with_options(&host, "agent", "store", Some(&reference), &more);
        until("it compiles", || agent.work().is_some());
        let waits = Agent::with_options(&host, "other", "other", Some(&reference), &more);
        let who = format!("(pid {}, since ", agent.child.id());
        until("the other waits", || waits.says(&who));
        send(&agent.child, signal);
        await_exit(&agent.child);
        let stopped = Instant::now();
        until("the other compiles", || waits.work().is_some());
        // It polls every twelfth of a lease, and waits a twentieth after writing its claim.
        assert!(stopped.elapsed() < lease / 2, "{:?}", stopped.elapsed());
        send(&waits.child, Signal::SIGKILL);
    }
}

/// Adds the kernel's sign-file to an archive, for which no compile has a use.
fn with_sign_file(mut suite: Suite) -> Suite {
    let is_headers = |(stanza, _): &&mut (String, _)| stanza.starts_with("Package: linux-headers");
    let (headers, _) = suite.packages.iter_mut().find(is_headers).expect("headers");
    *headers = headers.replace("Depends: ", "Depends: linux-kbuild-6.1, ");
    let kbuild = headers.lines().skip(1).take(2).collect::<Vec<_>>().join("\n");
    let kbuild = format!("Package: linux-kbuild-6.1\n{kbuild}\n");
    suite.packages.push((kbuild, signer::kbuild()));
    suite
}

#[test]
fn a_set_that_another_host_compiled_is_signed_for_this_hosts_kernel() {
    let hub = Hub::that_deletes();
    let reference = format!("http://{}/nvidia/modules", hub.address);
    let first = Host::with(archive(0, false));
    let built = Agent::start(&first, "agent", "store", Some(&reference)).ends_well();
    assert_eq!(tags(&hub), [tag()]);

    let host = Host::with(with_sign_file(archive(0, false)));
    let signer = Signer::new(&host.path("signer"), "Module signing");
    let path = |path: &PathBuf| path.to_str().expect("a path").to_owned();
    let (key, certificate) = (path(&signer.key), path(&signer.certificate));
    let sign = ["--module-key", &key, "--module-certificate", &certificate];
    let agent = Agent::with_options(&host, "agent", "store", Some(&reference), &sign);
    let store = agent.store.clone();
    let signed = agent.ends_well();
    assert!(entries(&store.join("logs")).is_empty(), "it compiled");

    module_sets::assert_sound(&signed);
    let [built] = &built.sets().expect("sets")[..] else { panic!("not one set was built") };
    let mut sets = signed.sets().expect("sets");
    sets.retain(|set| set.key.signed_by.is_some());
    let [set] = &sets[..] else { panic!("not one signed set: {sets:?}") };
    assert_eq!(set.key.unsigned(), built.key);
    assert_eq!(set.key.signed_by.as_ref().expect("signed").key_ids, [signer.key_id()]);
}

#[test]
fn one_of_two_on_a_store_is_killed_while_it_publishes_and_the_other_goes_on() {
    let host = Host::with(archive(64 << 20, true));
    let start = |name: &str| Agent::start(&host, name, "store", None);
    let first = start("first");
    until("it compiles", || first.work().is_some());
    let second = start("second");
    let who = format!("(pid {}, since ", first.child.id());
    until("the other waits", || second.says(&who));
    assert!(second.says(&format!("which builds {}", tag())));
    let_go(&first.work().expect("it compiles"));
    let is_blob = |path: &PathBuf| path.to_string_lossy().contains("/tmp/blob-");
    until("it publishes", || entries(&first.store.join("tmp")).iter().any(is_blob));
    send(&first.child, Signal::SIGKILL);
    until("the other compiles", || second.work().is_some());
    // The work directory of the killed one may still exist.
    for work in entries(&second.store.join("tmp")) {
        let build = work.join("build");
        if build.is_dir() {
            let_go(&build);
        }
    }
    digest(&second.ends_well());
}
