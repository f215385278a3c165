//! Agents under NVIDIA's GPU operator: what its driver manager does between two agents, files that
//! announce the driver, a driver in use at the end, and a change while it is in use.

use std::path::PathBuf;

mod brought_back;
mod confirmed;
mod growth;
mod hanging;
mod other_module;
mod postponed;

use futures_util::future::BoxFuture;
use nix::errno::Errno;

use super::*;
use crate::steps::{Announces, WriteStatus};
use longshore_host::facts::in_use::InUse;
use longshore_host::fake::Fault;
use longshore_host::values::DriverUser;

const DIGEST: &str = "2166136261";
const ROOT_DEV: &str = "/run/driver/dev";

fn parent() -> PathBuf {
    "/run".into()
}

fn at(name: &str) -> PathBuf {
    parent().join(name)
}

fn state_file() -> PathBuf {
    at("nvidia-driver.state")
}

fn daemons_file() -> PathBuf {
    at("validations/.driver-daemons-status")
}

fn probes_file() -> PathBuf {
    at("validations/.driver-ctr-ready")
}

/// Returns the plan for a driver under the operator.
fn announced(version: &str) -> Plan {
    let mut plan = plan(version);
    plan.install.insert(0, Step::WriteStatus(WriteStatus::not_ready(&parent())));
    let last = [WriteStatus::ready(&parent()), WriteStatus::digest(&parent(), DIGEST)];
    plan.install.extend(last.map(Step::WriteStatus));
    for step in &mut plan.install {
        if let Step::MakeNodes(nodes) = step {
            nodes.dirs.push(ROOT_DEV.into());
        }
    }
    plan
}

fn scene() -> Scene {
    let mut scene = Scene::new();
    let interval = Duration::from_millis(1);
    scene.conduct = Conduct { parent: Some(parent()), waits: true, interval, ..Conduct::default() };
    scene.paths.driver_root = ROOT.into();
    scene.settings = |config| {
        config.operator.enabled = true;
        config.operator.wait_to_change = true;
    };
    scene
}

fn user(pid: u32) -> DriverUser {
    DriverUser {
        pid,
        namespace_pid: None,
        comm: "train".to_owned(),
        container: None,
        pod: Some("abc".to_owned()),
        devices: vec!["/dev/nvidia0".to_owned()],
    }
}

/// Makes the driver used by a pod, or unused.
fn used(scene: &Scene, is: bool) {
    scene.host.used_by(if is { vec![user(77)] } else { Vec::new() });
    scene.host.change(|state| {
        state.references.clear();
        if is {
            state.references.insert("nvidia_uvm".to_owned(), 1);
        }
    });
}

fn announcements(scene: &Scene) -> Vec<(PathBuf, String)> {
    scene.host.state().statuses.into_iter().collect()
}

fn confirms(scene: &Scene) {
    scene.host.change(|state| {
        if state.statuses.get(&daemons_file()).is_none_or(|text| text == "Ready") {
            state.statuses.insert(probes_file(), "GDS_ENABLED: false".to_owned());
        }
    });
}

/// Unmounts the driver root, as the driver manager does at every start.
fn unmounts(state: &mut FakeState) {
    while let Some((_, target)) = state.mounts.first().cloned() {
        state.detach(&target).unwrap();
    }
    state.nodes.retain(|path, _| !path.starts_with(ROOT_DEV));
}

/// Unmounts, and unloads the driver's modules, as where the digest differs.
fn unloads(state: &mut FakeState) {
    unmounts(state);
    state.loaded.clear();
    state.instances.clear();
}

/// Removes the files, as the pod's preStop and another cleaner do.
fn removes_files(state: &mut FakeState) {
    state.statuses.clear();
}

type Manager = (&'static str, fn(&mut FakeState));

const MANAGERS: [Manager; 4] = [
    ("unmounts", unmounts),
    ("unloads", unloads),
    ("removes files", removes_files),
    ("does all of it", |state| {
        unloads(state);
        removes_files(state);
    }),
];

async fn changes_of_an_installation() -> usize {
    let scene = scene();
    scene.host.fails(None);
    scene.die_when_ready(announced("535")).await;
    scene.host.changes()
}

#[tokio::test]
async fn what_the_driver_manager_undid_is_no_damage_after_any_prefix_of_the_steps() {
    let changes = changes_of_an_installation().await;
    assert!(changes >= 9, "{changes}");
    for (name, manager) in MANAGERS {
        let faults = (0..changes).flat_map(|n| [Fault::DieBefore(n), Fault::DieAfter(n)]);
        for fault in faults.map(Some).chain([None]) {
            let scene = scene();
            let before = scene.host.state();
            scene.host.fails(fault);
            let reached = scene.reach_ready(announced("535")).await;
            assert!(fault.is_some() || reached.is_ok(), "{name}");
            scene.host.fails(None);
            scene.host.change(manager);
            scene.die_when_ready(announced("535")).await;
            assert_eq!(scene.live_driver().as_deref(), Some("535"), "{name} {fault:?}");
            let ready = [(state_file(), DIGEST), (daemons_file(), "Ready")];
            let ready = ready.map(|(path, text)| (path, text.to_owned()));
            assert_eq!(announcements(&scene), ready, "{name} {fault:?}");
            scene.uninstall().await;
            let nodes_apart = |state: FakeState| FakeState { nodes: before.nodes.clone(), ..state };
            assert_eq!(nodes_apart(scene.host.state()), before, "{name} {fault:?}");
        }
    }
}

#[tokio::test]
async fn stale_files_are_gone_before_anything_is_planned() {
    let scene = scene();
    scene.host.change(|state| {
        state.statuses.insert(daemons_file(), "Ready".to_owned());
        state.statuses.insert(probes_file(), "GDS_ENABLED: false".to_owned());
    });
    let ended = scene.live(At::Gather, vec![Ok(announced("535"))]).await;
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(announcements(&scene), []);
}

#[tokio::test]
async fn a_failed_start_leaves_a_driver_that_was_there_whole() {
    let scene = scene();
    scene.die_when_ready(announced("535")).await;
    let failure = scene.live(At::Never, vec![Err(FailureKind::Download)]).await.unwrap_err();
    assert_eq!(failure.code().number(), 12);
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
    let left = [(state_file(), DIGEST.to_owned()), (daemons_file(), "NotReady".to_owned())];
    assert_eq!(announcements(&scene), left);
}

#[tokio::test]
async fn both_announcements_are_gone_before_any_unload_and_at_no_time_without_a_driver() {
    let scene = scene();
    scene.host.at_point(|host| {
        let state = host.state();
        let whole = ["nvidia", "nvidia_uvm"].iter().all(|name| state.loaded.contains_key(*name));
        let is_ready = state.statuses.get(&daemons_file()).is_some_and(|text| text == "Ready");
        let announced = is_ready || state.statuses.contains_key(&state_file());
        assert!(whole || !announced, "{state:?}");
    });
    scene.die_when_ready(announced("535")).await;
    confirms(&scene);
    scene.die_when_ready(announced("550")).await;
    assert_eq!(announcements(&scene).len(), 2, "the confirmation of 535 is void");
    confirms(&scene);
    scene.uninstall().await;
    assert_eq!(announcements(&scene), []);
}

#[tokio::test]
async fn a_driver_in_use_at_the_end_stays_with_its_digest_and_the_agent_ends_well() {
    let scene = scene();
    let before = scene.host.state();
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(announced("535"))]), async {
        scene.until_ready().await;
        used(&scene, true);
        confirms(&scene);
        scene.stop.set();
    });
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.phase(), Some(Phase::InUse));
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
    assert_eq!(announcements(&scene), [(state_file(), DIGEST.to_owned())]);
    used(&scene, false);
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn a_driver_that_another_program_unloads_is_announced_no_longer() {
    let scene = scene();
    let agent = scene.live(At::Never, vec![Ok(announced("535"))]);
    let watch = async {
        scene.until_looked().await;
        scene.host.change(|state| state.loaded.remove("nvidia_uvm"));
        scene.again.ask();
        let not_ready = [(daemons_file(), "NotReady".to_owned())];
        while announcements(&scene) != not_ready {
            tokio::task::yield_now().await;
        }
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}

/// Counts what it is told.
#[derive(Default)]
struct Reported {
    waits: Mutex<Vec<InUse>>,
    over: AtomicUsize,
    ended: AtomicUsize,
}

impl HeldChange for Reported {
    fn waits(&self, in_use: &InUse, _: &str) {
        self.waits.lock().unwrap().push(in_use.clone());
    }

    fn over(&self) {
        self.over.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        self.ended.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }
}

/// Returns a scene in which 535 is in use, its root was unmounted, and whoever is told.
async fn held() -> (Scene, Arc<Reported>) {
    let mut scene = scene();
    let reported = Arc::new(Reported::default());
    scene.conduct.held = Arc::clone(&reported) as Arc<dyn HeldChange>;
    scene.die_when_ready(announced("535")).await;
    used(&scene, true);
    scene.host.change(unmounts);
    assert_eq!(reported.over.swap(0, Ordering::Relaxed), 1, "535 became ready");
    (scene, reported)
}

/// Has an agent that is Ready follow `next`, and returns when it is done: it then reads a wrong one.
async fn sighup(scene: &Scene, next: Config) {
    scene.configs.lock().unwrap().extend([Ok(next), Err(FailureKind::Usage)]);
    for left in [1, 0] {
        scene.renewal.ask();
        while scene.configs.lock().unwrap().len() > left {
            tokio::task::yield_now().await;
        }
        scene.until_ready().await;
    }
}

async fn until_reported(reported: &Reported) {
    while reported.waits.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_change_waits_for_the_users_and_the_installed_driver_is_served_meanwhile() {
    let (scene, reported) = held().await;
    let agent = scene.live(At::Never, vec![Ok(announced("550"))]);
    let watch = async {
        until_reported(&reported).await;
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
        assert_eq!(scene.phase(), Some(Phase::InUse));
        assert_eq!(scene.host.state().mounts.len(), 4, "its root is mounted again");
        confirms(&scene);
        let not_ready = [(daemons_file(), "NotReady".to_owned())];
        assert_eq!(announcements(&scene), not_ready, "the driver is not the configured one");
        let named = reported.waits.lock().unwrap()[0].to_string();
        assert!(named.contains("pid 77 (train)"), "{named}");
        used(&scene, false);
        scene.stop_at_ready().await;
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    let over = reported.over.load(Ordering::Relaxed);
    assert_eq!(over, 2, "once it is ready and once at the stop, and not at each try");
    assert_eq!(reported.ended.load(Ordering::Relaxed), 1);
    assert!(scene.host.log().iter().any(|line| line == "bind /run/driver/usr"));
    let installed = scene.installed.lock().unwrap().last().unwrap().0.driver_version.clone();
    assert_eq!(installed, "550");
}

#[tokio::test]
async fn a_stop_ends_the_wait_and_leaves_the_driver_to_its_users() {
    let (scene, reported) = held().await;
    let agent = scene.live(At::Never, vec![Ok(announced("550"))]);
    let watch = async {
        until_reported(&reported).await;
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
    assert_eq!(scene.phase(), Some(Phase::InUse));
    let reported = [&reported.over, &reported.ended].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(reported, [1, 1], "the request is withdrawn, and that is waited for");
}

/// The removal may wait for the driver's users, whose pods are not to be evicted for a change meanwhile.
#[tokio::test]
async fn a_stop_in_the_midst_of_a_try_withdraws_the_request_too() {
    let (scene, reported) = held().await;
    let ended = scene.live(At::Acquire, vec![Ok(wanting(announced("550")))]).await;
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(reported.waits.lock().unwrap().is_empty());
    assert_eq!(reported.over.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn another_configuration_ends_the_wait() {
    let (scene, reported) = held().await;
    scene.configs.lock().unwrap().push_back(Ok(scene.config()));
    let agent = scene.live(At::Never, vec![Ok(announced("550")), Ok(announced("535"))]);
    let watch = async {
        until_reported(&reported).await;
        scene.renewal.ask();
        scene.stop_at_ready().await;
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.live_driver().as_deref(), Some("535"), "it is still in use");
    assert_eq!(scene.installed.lock().unwrap().last().unwrap().0.driver_version, "535");
}

#[tokio::test]
async fn without_an_operator_a_driver_in_use_still_ends_the_agent() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    used(&scene, true);
    let failure = scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::InUse);
    let announces = |entry: &journal::JournalEntry| entry.step.properties().announces;
    assert!(scene.state().entries.iter().all(|e| announces(e) == Announces::Nothing));
}

/// A container with /run/nvidia put something into the place of the files.
#[tokio::test]
async fn files_that_cannot_be_written_are_a_finding_of_a_ready_driver_until_they_can() {
    let scene = scene();
    let before = scene.host.state();
    scene.host.writes_no_status(Some(Errno::ENOTDIR));
    let codes = || -> Vec<Code> {
        scene.telemetry.live().findings.iter().map(|finding| finding.code).collect()
    };
    let until = async |holds: &dyn Fn() -> bool| {
        while !(holds() && scene.telemetry.live().ready) {
            tokio::task::yield_now().await;
        }
    };
    let act = async {
        until(&|| codes() == [Code::OperatorFileUnwritten; 2]).await;
        assert_eq!(announcements(&scene), []);
        let entries = scene.state().entries.len();
        scene.host.writes_no_status(None);
        scene.again.ask();
        until(&|| codes().is_empty() && announcements(&scene).len() == 2).await;
        until(&|| scene.state().whole).await;
        assert!(scene.state().entries.len() <= entries + 2);
        // The pod's preStop, before it stops the agent.
        scene.host.change(|state| drop(state.statuses.remove(&daemons_file())));
        for _ in 0..3 {
            scene.again.ask();
            tokio::task::yield_now().await;
        }
        let left: Vec<PathBuf> = announcements(&scene).into_iter().map(|(path, _)| path).collect();
        assert_eq!((codes(), left), (Vec::new(), vec![state_file()]));
        let phases = scene.telemetry.live().phase_seconds;
        assert!(!phases.contains_key("changing"), "{phases:?}");
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(announced("535"))]), act);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
}
