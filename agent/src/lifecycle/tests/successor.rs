//! Agents of a DaemonSet's pods that follow each other: the driver stays for the next one.

use futures_util::future::BoxFuture;

use super::daemons::with_daemon;
use super::*;
use crate::cluster::Successor;
use crate::plan::Plan;
use longshore_host::facts::in_use::InUse;
use longshore_host::fake::Fault;

/// A cluster with one answer, and the number of questions.
struct Answers {
    answer: Successor,
    asked: AtomicUsize,
}

impl Successors for Answers {
    fn ask(&self) -> BoxFuture<'_, Successor> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(self.answer.clone()))
    }
}

fn follows() -> Successor {
    Successor::Follows("the pod's DaemonSet driver exists".to_owned())
}

fn in_cluster(mut scene: Scene, answer: Successor) -> (Scene, Arc<Answers>) {
    let answers = Arc::new(Answers { answer, asked: AtomicUsize::new(0) });
    scene.conduct.successors = Arc::clone(&answers) as Arc<dyn Successors>;
    scene.conduct.keeps = true;
    (scene, answers)
}

/// Runs an agent that becomes Ready and is stopped then, as its pod is replaced.
async fn replaced(scene: &mut Scene, wanted: Plan) {
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(wanted)]), scene.stop_at_ready());
    assert_eq!(ended.unwrap(), ExitCode::Done);
    scene.stop = CancelFlag::default();
}

#[tokio::test]
async fn the_driver_stays_where_a_pod_follows_or_that_is_not_known() {
    for (answer, stays) in [
        (follows(), true),
        (Successor::Unanswered("no answer".to_owned()), true),
        (Successor::None("the DaemonSet was deleted".to_owned()), false),
        (Successor::Refused("403".to_owned()), false),
        (Successor::NoCluster, false),
    ] {
        let (mut scene, answers) = in_cluster(Scene::new(), answer.clone());
        let before = scene.host.state();
        replaced(&mut scene, plan("535")).await;
        assert_eq!(answers.asked.load(Ordering::Relaxed), 1);
        assert_eq!(scene.live_driver().is_some(), stays, "{answer:?}");
        if !stays {
            assert_eq!(scene.host.state(), before, "{answer:?}");
            assert_eq!(scene.phase(), Some(Phase::Removed));
            continue;
        }
        assert_eq!(scene.phase(), Some(Phase::InUse));
        assert!(scene.state().whole && !scene.telemetry.live().ready);
        let (there, loads) = (scene.host.state(), scene.module_verbs());
        replaced(&mut scene, plan("535")).await;
        assert_eq!((scene.host.state(), scene.module_verbs()), (there, loads), "adopted");
        scene.conduct.keeps = false;
        scene.uninstall().await;
        assert_eq!(scene.host.state(), before);
    }
}

#[tokio::test]
async fn without_the_setting_nobody_is_asked() {
    let (mut scene, answers) = in_cluster(Scene::new(), follows());
    scene.conduct.keeps = false;
    replaced(&mut scene, plan("535")).await;
    assert_eq!(answers.asked.load(Ordering::Relaxed), 0);
    assert_eq!(scene.phase(), Some(Phase::Removed));
}

#[tokio::test]
async fn the_setting_is_the_configuration_s_and_never_the_operator_s_pods() {
    for (operator, keep, keeps) in [(false, true, true), (false, false, false), (true, true, false)]
    {
        let mut config = Scene::new().config();
        config.operator.enabled = operator;
        config.cluster.keep_for_successor = keep;
        assert_eq!(Conduct::default().follow(&config).keeps, keeps);
    }
}

/// The sequence of a rolling update: the old driver serves until the next one is available.
#[tokio::test]
async fn the_next_agent_exchanges_the_driver_once_its_own_is_available() {
    let (mut scene, _) = in_cluster(Scene::new(), follows());
    replaced(&mut scene, plan("535")).await;
    let there = scene.host.state();
    let failure = scene.live(At::AcquireFails, vec![Ok(wanting(plan("550")))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::Compile);
    assert_eq!(scene.host.state(), there, "a restart of the new pod's container");
    assert!(scene.state().whole);
    // That pod is replaced while it acquires, too.
    let ended = scene.live(At::Acquire, vec![Ok(wanting(plan("550")))]).await;
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), there);
    assert_eq!(scene.phase(), Some(Phase::InUse));
    scene.stop = CancelFlag::default();
    replaced(&mut scene, plan("550")).await;
    assert_eq!(scene.live_driver().as_deref(), Some("550"));
}

/// The new driver fails: the former one is back and the record whole, and each restart of the container
/// fails with the reason, without another try.
#[tokio::test]
async fn a_new_driver_that_fails_leaves_the_former_one_and_a_pod_that_is_not_ready() {
    let (mut scene, _) = in_cluster(Scene::new(), follows());
    replaced(&mut scene, plan("535")).await;
    let node = Arc::new(Waits::default());
    scene.conduct.held = Arc::clone(&node) as Arc<dyn HeldChange>;
    let mut tries = Vec::new();
    for failed in 1..=3 {
        let before = scene.module_verbs().len();
        let failure = scene.live(At::Never, vec![Ok(plan("refused"))]).await.unwrap_err();
        assert_eq!(failure.code(), ExitCode::KernelRefused);
        let live = scene.telemetry.live();
        assert!(!live.ready, "{live:?}");
        let record = live.last_failure.expect("a failure");
        assert!(record.cause.contains("refused"), "{record:?}");
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
        let state = scene.state();
        assert!(state.whole && state.refused.is_some() && state.previous.is_empty());
        assert_eq!(scene.phase(), Some(Phase::Failed));
        let (ready, why) = probe::probe(&scene.paths, probe::Asked::Agent, probe::Question::Ready);
        assert!(!ready, "{why}");
        tries.push(scene.module_verbs().len() - before);
        assert_eq!(node.ended.load(Ordering::Relaxed), failed, "the node is uncordoned");
    }
    assert!(tries[0] > 0 && tries[1..] == [0, 0], "{tries:?}");
    // The rollout is taken back.
    replaced(&mut scene, plan("535")).await;
    assert_eq!(scene.state().refused, None);
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
}

#[tokio::test]
async fn a_stop_in_the_midst_of_a_change_takes_everything_off_all_the_same() {
    let (mut scene, answers) = in_cluster(Scene::new(), follows());
    let before = scene.host.state();
    replaced(&mut scene, plan("535")).await;
    let stop = scene.stop.clone();
    scene.host.on_look(move |state, _| {
        if !state.loaded.contains_key("nvidia") {
            stop.set();
        }
    });
    assert_eq!(scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap(), ExitCode::Done);
    assert_eq!(answers.asked.load(Ordering::Relaxed), 1, "for the first agent alone");
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn daemons_end_with_their_container_and_the_next_agent_starts_them() {
    let (mut scene, _) = in_cluster(daemons::scene(), follows());
    let before = scene.host.state();
    let from = scene.host.log().len();
    replaced(&mut scene, with_daemon(plan("535"))).await;
    let there = scene.host.state();
    assert!(scene.state().whole, "the daemons are part of the record");
    scene.die_when_ready(with_daemon(plan("535"))).await;
    let of_daemon: Vec<String> = daemons::verbs(&scene, from)
        .into_iter()
        .filter(|verb| verb.ends_with("persistenced"))
        .collect();
    assert_eq!(
        of_daemon,
        ["start", "end", "start"].map(|verb| format!("{verb} nvidia-persistenced"))
    );
    assert_eq!(scene.host.state().mounts, there.mounts);
    scene.conduct.keeps = false;
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

/// An agent that dies while it leaves the driver leaves it as well.
#[tokio::test]
async fn an_agent_that_is_killed_while_it_ends_leaves_the_driver_whole() {
    for fault in (0..4).flat_map(|n| [Fault::DieBefore(n), Fault::DieAfter(n)]) {
        let (mut scene, _) = in_cluster(daemons::scene(), follows());
        let wanted = || with_daemon(plan("535"));
        let (_, ()) = tokio::join!(scene.live(At::Never, vec![Ok(wanted())]), async {
            scene.until_ready().await;
            scene.host.fails(Some(fault));
            scene.stop.set();
        });
        scene.host.fails(None);
        scene.stop = CancelFlag::default();
        let loads = scene.module_verbs();
        scene.die_when_ready(wanted()).await;
        assert_eq!(scene.module_verbs(), loads, "{fault:?}");
        assert!(scene.state().whole, "{fault:?}");
    }
}

/// Records the changes that wait, and the holder of the journal's lock at the end.
#[derive(Default)]
struct Waits {
    changes: Mutex<Vec<String>>,
    state: Mutex<Option<std::path::PathBuf>>,
    was_locked: std::sync::atomic::AtomicBool,
    ended: AtomicUsize,
}

impl HeldChange for Waits {
    fn waits(&self, _: &InUse, change: &str) {
        self.changes.lock().unwrap().push(change.to_owned());
    }

    fn over(&self) {}

    fn ended(&self) -> BoxFuture<'_, ()> {
        let state = self.state.lock().unwrap().clone();
        let is_locked = state.is_some_and(|state| journal::holder(&state) != Ok(None));
        self.was_locked.store(is_locked, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }
}

/// The next agent begins only after the node is uncordoned.
#[tokio::test]
async fn a_change_that_waits_is_named_and_its_end_comes_before_that_of_the_lock() {
    let (mut scene, _) = in_cluster(Scene::new(), follows());
    let reported = Arc::new(Waits::default());
    *reported.state.lock().unwrap() = Some(scene.paths.state.clone());
    scene.conduct.held = Arc::clone(&reported) as Arc<dyn HeldChange>;
    (scene.conduct.waits, scene.conduct.interval) = (true, Duration::from_millis(1));
    replaced(&mut scene, plan("535")).await;
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("550"))]), async {
        while reported.changes.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        scene.stop.set();
    });
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(reported.changes.lock().unwrap()[0], "driver 535 to 550");
    assert!(reported.was_locked.load(Ordering::Relaxed));
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
    assert!(scene.state().whole && scene.phase() == Some(Phase::InUse));
}
