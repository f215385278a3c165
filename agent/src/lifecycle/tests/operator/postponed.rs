//! A change by SIGHUP while the driver is in use: made when its users are gone.

use super::*;

/// Returns a scene, and whoever is told of waits.
pub(super) fn telling() -> (Scene, Arc<Told>) {
    let mut scene = scene();
    let told = Arc::new(Told::default());
    scene.conduct.held = Arc::clone(&told) as Arc<dyn HeldChange>;
    (scene, told)
}

/// Runs an agent that is Ready with 535, which a pod uses; `act` follows a SIGHUP that wants 550.
pub(super) async fn postponed(scene: &Scene, told: &Told, act: impl Future<Output = ()>) {
    postponed_by(scene, told, vec![Ok(announced("535")), Ok(announced("550"))], act).await;
}

async fn postponed_by(
    scene: &Scene,
    told: &Told,
    plans: Vec<Result<Plan, FailureKind>>,
    act: impl Future<Output = ()>,
) {
    let agent = scene.live(At::Never, plans);
    let watch = async {
        scene.until_ready().await;
        assert_eq!(told.over.swap(0, Ordering::Relaxed), 1, "535 became ready");
        used(scene, true);
        sighup(scene, Config { jobs: Some(7), ..scene.config() }).await;
        until_told(told).await;
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
        act.await;
        used(scene, false);
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(told.over.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn it_is_made_without_another_sighup() {
    let (scene, told) = telling();
    let before = scene.host.state();
    postponed(&scene, &told, async {
        assert!(told.waits.lock().unwrap()[0].to_string().contains("pid 77 (train)"));
        used(&scene, false);
        while scene.live_driver().as_deref() != Some("550") {
            tokio::task::yield_now().await;
        }
        scene.until_ready().await;
    })
    .await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn a_try_that_fails_before_the_driver_is_touched_is_followed_by_another() {
    let (scene, told) = telling();
    let plans = ["535", "550"].map(|version| Ok(announced(version)));
    let failed = [Err(FailureKind::Download), Err(FailureKind::Download), Ok(announced("550"))];
    let plans = plans.into_iter().chain(failed).collect();
    postponed_by(&scene, &told, plans, async {
        used(&scene, false);
        while told.over.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
        while scene.live_driver().as_deref() != Some("550") {
            tokio::task::yield_now().await;
        }
        scene.until_ready().await;
    })
    .await;
}

#[tokio::test]
async fn one_that_unloaded_the_driver_is_not_tried_again() {
    let (scene, told) = telling();
    let plans = ["535", "550", "refused", "550"].map(|version| Ok(announced(version)));
    let is_tried = |line: &String| line == "init_module nvidia_refused";
    postponed_by(&scene, &told, plans.into_iter().collect(), async {
        used(&scene, false);
        while !scene.host.log().iter().any(is_tried) {
            tokio::task::yield_now().await;
        }
        scene.until_ready().await;
        // Three times the pause after a try that failed for another reason: the agent checks the driver, and
        // rests for a moment, in which it would make another try.
        for _ in 0..90 {
            scene.until_checked().await;
            tokio::time::sleep(scene.conduct.interval).await;
        }
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
        assert_eq!(scene.host.log().iter().filter(|line| is_tried(line)).count(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_configuration_that_takes_it_back_ends_the_wait() {
    let (scene, told) = telling();
    postponed(&scene, &told, async {
        sighup(&scene, scene.config()).await;
        assert_eq!(told.over.load(Ordering::Relaxed), 1);
        used(&scene, false);
        scene.again.ask();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
    })
    .await;
}

/// Runs an agent without `wait-to-change` that is Ready with 535, which a pod uses; `act` follows a SIGHUP
/// that wants 550, with its configuration changed.
async fn not_waiting(change: fn(&mut Config), act: impl AsyncFnOnce(&Scene, &Told)) {
    let (mut scene, told) = telling();
    scene.conduct.waits = false;
    scene.settings = |config| config.operator.enabled = true;
    let mut next = scene.config();
    change(&mut next);
    let agent = scene.live(At::Never, vec![Ok(announced("535")), Ok(announced("550"))]);
    let watch = async {
        scene.until_ready().await;
        used(&scene, true);
        sighup(&scene, next).await;
        act(&scene, &told).await;
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}

#[tokio::test]
async fn without_wait_to_change_it_is_not_tried_again() {
    not_waiting(
        |config| config.jobs = Some(7),
        async |scene, told| {
            assert!(told.waits.lock().unwrap().is_empty());
            used(scene, false);
        },
    )
    .await;
}

#[tokio::test]
async fn sighup_switches_waiting_on() {
    not_waiting(
        |config| config.operator.wait_to_change = true,
        async |scene, told| {
            until_told(told).await;
            used(scene, false);
            while scene.live_driver().as_deref() != Some("550") {
                tokio::task::yield_now().await;
            }
            scene.until_ready().await;
        },
    )
    .await;
}
