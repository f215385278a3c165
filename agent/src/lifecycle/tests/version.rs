//! The driver's version by the tag of the pod's image: refused, not answered, answered late.

use rstest::rstest;

use super::*;
use crate::config::DriverConfig;

/// Scripted answers about the pod's image; none are left: outside of a cluster.
#[derive(Default)]
pub(super) struct Images {
    pub(super) answers: Mutex<VecDeque<VersionAnswer>>,
    pub(super) kept: Mutex<Option<String>>,
    /// Versions of the configurations that providers were made for.
    pub(super) wanted: Mutex<Vec<Option<String>>>,
    /// Number of questions.
    asked: AtomicUsize,
}

#[derive(Clone, Copy)]
pub(super) enum VersionAnswer {
    Tag(&'static str),
    Refused,
    Denied,
    Away,
}

impl Images {
    pub(super) fn answer(&self) -> Result<Option<String>, VersionUnknown> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut answers = self.answers.lock().unwrap();
        // The last one holds for ever.
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().copied() };
        let failure = |text| Failure::new(FailureKind::Preflight, text);
        match next {
            None => Ok(None),
            Some(VersionAnswer::Tag(version)) => Ok(Some(version.to_owned())),
            Some(VersionAnswer::Refused) => Err(VersionUnknown::Refused(failure("forbidden"))),
            Some(VersionAnswer::Denied) => Err(VersionUnknown::Denied(failure("forbidden"))),
            Some(VersionAnswer::Away) => Err(VersionUnknown::Unanswered(failure("no answer"))),
        }
    }
}

fn scene(answers: &[VersionAnswer]) -> Scene {
    let mut scene = Scene::new();
    scene.conduct.asks_again = Duration::from_millis(1);
    scene.conduct.parent = Some("/run".into());
    scene.images_of_pod.answers.lock().unwrap().extend(answers);
    scene
}

fn answers(scene: &Scene, answers: &[VersionAnswer]) {
    *scene.images_of_pod.answers.lock().unwrap() = answers.iter().copied().collect();
}

fn wanted(scene: &Scene) -> Vec<Option<String>> {
    scene.images_of_pod.wanted.lock().unwrap().clone()
}

fn some(version: &str) -> Option<String> {
    Some(version.to_owned())
}

async fn until_asked(scene: &Scene, times: usize) {
    while scene.images_of_pod.asked.load(Ordering::Relaxed) < times {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_tag_s_version_is_planned_and_kept_for_later_configurations() {
    let scene = scene(&[VersionAnswer::Tag("535")]);
    scene.die_when_ready(plan("535")).await;
    assert_eq!(wanted(&scene), [some("535")]);
    assert_eq!(*scene.images_of_pod.kept.lock().unwrap(), some("535"));
}

#[tokio::test]
async fn a_refusal_ends_the_agent_and_leaves_an_installed_driver() {
    let scene = scene(&[VersionAnswer::Tag("535")]);
    scene.die_when_ready(plan("535")).await;
    answers(&scene, &[VersionAnswer::Refused]);
    let failure = scene.live(At::Never, vec![Ok(plan("550"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
    assert_eq!(wanted(&scene).len(), 1, "nothing is planned without a version");
}

#[tokio::test]
async fn without_an_answer_the_question_is_repeated_and_the_status_has_the_reason() {
    let scene = scene(&[
        VersionAnswer::Away,
        VersionAnswer::Away,
        VersionAnswer::Away,
        VersionAnswer::Tag("535"),
    ]);
    let watch = async {
        until_asked(&scene, 2).await;
        let live = scene.telemetry.live();
        let cause = live.last_failure.map(|failure| failure.cause);
        assert!(cause.is_some_and(|cause| cause.contains("no answer")));
        assert_eq!((live.phase, live.failures), (Some(Phase::Probing), 1));
        scene.stop_at_ready().await;
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(wanted(&scene), [some("535")]);
    assert_eq!(scene.images_of_pod.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn a_cluster_that_refuses_is_asked_again_for_a_while() {
    let denied = scene(&[VersionAnswer::Denied]);
    let failure = denied.live(At::Never, vec![Ok(plan("535"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    assert!(denied.images_of_pod.asked.load(Ordering::Relaxed) > 2);
    assert!(wanted(&denied).is_empty());
    let scene = scene(&[VersionAnswer::Denied, VersionAnswer::Denied, VersionAnswer::Tag("535")]);
    scene.die_when_ready(plan("535")).await;
    answers(&scene, &[VersionAnswer::Denied]);
    scene.die_when_ready(plan("535")).await;
    assert_eq!(wanted(&scene), [some("535"), some("535")], "the record's driver is served");
}

#[rstest]
#[case::answered(VersionAnswer::Tag("550"), "550")]
#[case::not_answered(VersionAnswer::Away, "535")]
#[case::refused(VersionAnswer::Refused, "535")]
#[tokio::test]
async fn a_configuration_that_names_no_driver_any_more_takes_the_tag_s_or_is_not_taken(
    #[case] answer: VersionAnswer,
    #[case] driver: &str,
) {
    let scene = scene(&[answer]);
    let mut named = config(&scene.paths);
    (named.driver.version, named.driver.is_named) = (some("535"), true);
    let agent = scene.live_by(named, At::Never, vec![Ok(plan("535")), Ok(plan("550"))]);
    let watch = async {
        scene.until_ready().await;
        scene.configs.lock().unwrap().push_back(Ok(config(&scene.paths)));
        scene.renewal.ask();
        until_asked(&scene, 1).await;
        while scene.live_driver().as_deref() != Some(driver) || scene.phase() != Some(Phase::Ready)
        {
            tokio::task::yield_now().await;
        }
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    let planned = wanted(&scene);
    assert_eq!(planned.last().unwrap().as_deref(), Some(driver), "{planned:?}");
}

#[tokio::test]
async fn a_stop_ends_the_wait_for_an_answer() {
    let scene = scene(&[VersionAnswer::Away]);
    let before = scene.host.state();
    let watch = async {
        until_asked(&scene, 3).await;
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.phase(), Some(Phase::Removed));
}

#[tokio::test]
async fn a_setting_that_names_the_driver_ends_the_wait_for_an_answer() {
    let scene = scene(&[VersionAnswer::Away]);
    let mut next = config(&scene.paths);
    (next.driver.version, next.driver.is_named) = (some("535"), true);
    scene.configs.lock().unwrap().push_back(Ok(next));
    let watch = async {
        until_asked(&scene, 2).await;
        scene.renewal.ask();
        scene.stop_at_ready().await;
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(wanted(&scene), [some("535")]);
}

#[tokio::test]
async fn without_an_answer_the_record_s_driver_is_served_until_the_tag_names_another() {
    let scene = scene(&[VersionAnswer::Tag("535")]);
    scene.die_when_ready(plan("535")).await;
    let loads = scene.module_verbs();
    answers(&scene, &[VersionAnswer::Away, VersionAnswer::Away, VersionAnswer::Tag("550")]);
    let mut next = config(&scene.paths);
    next.driver.version = some("550");
    scene.configs.lock().unwrap().push_back(Ok(next));
    let watch = async {
        scene.until_ready().await;
        while scene.live_driver().as_deref() != Some("535") || wanted(&scene).len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.module_verbs(), loads, "535 is adopted");
        while scene.live_driver().as_deref() != Some("550") || scene.phase() != Some(Phase::Ready) {
            tokio::task::yield_now().await;
        }
        scene.stop.set();
    };
    let plans = vec![Ok(plan("535")), Ok(plan("550"))];
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(wanted(&scene), [some("535"), some("535"), some("550")]);
}

#[tokio::test]
async fn a_driver_that_another_program_unloaded_is_not_the_record_s_any_more() {
    let scene = scene(&[VersionAnswer::Tag("535")]);
    scene.die_when_ready(plan("535")).await;
    scene.host.change(|state| {
        state.loaded.clear();
        state.instances.clear();
        state.mounts.clear();
    });
    answers(&scene, &[VersionAnswer::Away, VersionAnswer::Away, VersionAnswer::Tag("550")]);
    let watch = async { scene.stop_at_ready().await };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("550"))]), watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(wanted(&scene), [some("535"), some("550")]);
}

#[tokio::test]
async fn a_named_driver_asks_for_no_tag() {
    let scene = scene(&[VersionAnswer::Refused]);
    let mut named = config(&scene.paths);
    named.driver = DriverConfig { version: some("535"), is_named: true, ..named.driver };
    let agent = scene.live_by(named, At::Never, vec![Ok(plan("535"))]);
    let (ended, ()) = tokio::join!(agent, scene.stop_at_ready());
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.images_of_pod.asked.load(Ordering::Relaxed), 0);
}
