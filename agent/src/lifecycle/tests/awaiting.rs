//! Wait for modules that no registry has yet.

use super::*;

/// Scripted answers of the registries; the last one holds for ever.
#[derive(Default)]
pub(super) struct Offers {
    answers: Mutex<VecDeque<Vec<String>>>,
    asked: AtomicUsize,
}

impl Offers {
    pub(super) fn next(&self) -> Vec<String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut answers = self.answers.lock().unwrap();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        next.unwrap_or_default()
    }
}

/// Returns the modules that a plan waits for: those that nothing built.
pub(super) fn awaited(plan: &Plan) -> Option<Awaited> {
    plan.findings.iter().any(|finding| finding.code == Code::NothingBuilt).then(|| Awaited {
        driver: plan.driver_version.clone(),
        flavour: "open".to_owned(),
        kernel: "6.1.0-51-amd64".to_owned(),
        registries: vec!["registry.example.com/nvidia/modules".to_owned()],
        since: jiff::Timestamp::UNIX_EPOCH,
    })
}

/// A plan without modules.
fn unbuilt() -> Result<Plan, FailureKind> {
    let finding = Finding::refusal(Code::NothingBuilt, "no signed set of 535 is available");
    Ok(Plan { findings: vec![finding], ..plan("535") })
}

fn scene(answers: &[&[&str]]) -> Scene {
    let mut scene = Scene::new();
    scene.settings = |config| config.registry_wait = Duration::from_secs(600);
    let owned = |all: &&[&str]| all.iter().map(ToString::to_string).collect();
    scene.offers.answers.lock().unwrap().extend(answers.iter().map(owned));
    scene
}

#[tokio::test]
async fn an_agent_waits_for_a_set_says_for_which_and_installs_it_once_it_is_offered() {
    let scene = scene(&[&[], &["sha256:1"]]);
    let watch = async {
        while scene.telemetry.live().awaited.is_none() {
            tokio::task::yield_now().await;
        }
        let live = scene.telemetry.live();
        let text = live.awaited.as_ref().unwrap().to_string();
        assert_eq!(
            text,
            "modules of driver 535 (open) for kernel 6.1.0-51-amd64 in registry.example.com/nvidia/modules"
        );
        assert_eq!((live.phase, live.failures), (Some(Phase::Acquiring), 0));
        scene.until_ready().await;
        assert_eq!(scene.telemetry.live().awaited, None);
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![unbuilt(), Ok(plan("535"))]), watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.offers.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_set_that_does_not_suffice_is_not_planned_for_again_and_again() {
    let scene = scene(&[&["sha256:1"], &["sha256:1"], &["sha256:2"]]);
    let plans = vec![unbuilt(), unbuilt(), Ok(plan("535"))];
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), scene.stop_at_ready());
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.offers.asked.load(Ordering::Relaxed), 3);
    assert_eq!(scene.gathered.load(Ordering::Relaxed), 3, "each new offer is planned for once");
}

#[tokio::test]
async fn after_the_time_it_ends_as_without_it_and_the_host_is_untouched() {
    let mut scene = scene(&[&[]]);
    scene.settings = |config| config.registry_wait = Duration::from_millis(30);
    let before = scene.host.state();
    let failure = scene.live(At::Never, vec![unbuilt()]).await.unwrap_err();
    assert!(failure.to_string().contains("no signed set of 535"), "{failure}");
    assert_eq!(failure.code(), ExitCode::Download);
    assert_eq!((scene.host.state(), scene.telemetry.live().awaited), (before, None));
}

#[tokio::test]
async fn a_stop_ends_the_wait() {
    let scene = scene(&[&[]]);
    let before = scene.host.state();
    let watch = async {
        while scene.telemetry.live().awaited.is_none() {
            tokio::task::yield_now().await;
        }
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![unbuilt()]), watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
}
