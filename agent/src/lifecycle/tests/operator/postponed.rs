//! A change by SIGHUP while the driver is in use: made when its users are gone.

use super::*;

/// Returns a scene, and whoever is told of waits.
pub(super) fn telling() -> (Scene, Arc<Reported>) {
    let mut scene = scene();
    let reported = Arc::new(Reported::default());
    scene.conduct.held = Arc::clone(&reported) as Arc<dyn HeldChange>;
    (scene, reported)
}

/// Runs an agent that is Ready with 535, which a pod uses; `act` follows a SIGHUP that wants 550.
pub(super) async fn postponed(scene: &Scene, reported: &Reported, act: impl Future<Output = ()>) {
    postponed_by(scene, reported, vec![Ok(announced("535")), Ok(announced("550"))], act).await;
}

async fn postponed_by(
    scene: &Scene,
    reported: &Reported,
    plans: Vec<Result<Plan, FailureKind>>,
    act: impl Future<Output = ()>,
) {
    let agent = scene.live(At::Never, plans);
    let watch = async {
        scene.until_ready().await;
        assert_eq!(reported.over.swap(0, Ordering::Relaxed), 1, "535 became ready");
        used(scene, true);
        sighup(scene, Config { jobs: Some(7), ..scene.config() }).await;
        until_reported(reported).await;
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
        act.await;
        used(scene, false);
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(reported.over.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn it_is_made_without_another_sighup() {
    let (scene, reported) = telling();
    let before = scene.host.state();
    postponed(&scene, &reported, async {
        assert!(reported.waits.lock().unwrap()[0].to_string().contains("pid 77 (train)"));
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
    let (scene, reported) = telling();
    let plans = ["535", "550"].map(|version| Ok(announced(version)));
    let failed = [Err(FailureKind::Download), Err(FailureKind::Download), Ok(announced("550"))];
    let plans = plans.into_iter().chain(failed).collect();
    postponed_by(&scene, &reported, plans, async {
        used(&scene, false);
        while reported.over.load(Ordering::Relaxed) == 0 {
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
    let (scene, reported) = telling();
    let plans = ["535", "550", "refused", "550"].map(|version| Ok(announced(version)));
    let is_tried = |line: &String| line == "init_module nvidia_refused";
    postponed_by(&scene, &reported, plans.into_iter().collect(), async {
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
    let (scene, reported) = telling();
    postponed(&scene, &reported, async {
        sighup(&scene, scene.config()).await;
        assert_eq!(reported.over.load(Ordering::Relaxed), 1);
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
async fn not_waiting(change: fn(&mut Config), act: impl AsyncFnOnce(&Scene, &Reported)) {
    let (mut scene, reported) = telling();
    scene.conduct.waits = false;
    scene.settings = |config| config.operator.enabled = true;
    let mut next = scene.config();
    change(&mut next);
    let agent = scene.live(At::Never, vec![Ok(announced("535")), Ok(announced("550"))]);
    let watch = async {
        scene.until_ready().await;
        used(&scene, true);
        sighup(&scene, next).await;
        act(&scene, &reported).await;
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}

#[tokio::test]
async fn without_wait_to_change_it_is_not_tried_again() {
    not_waiting(
        |config| config.jobs = Some(7),
        async |scene, reported| {
            assert!(reported.waits.lock().unwrap().is_empty());
            used(scene, false);
        },
    )
    .await;
}

#[tokio::test]
async fn sighup_switches_waiting_on() {
    not_waiting(
        |config| config.operator.wait_to_change = true,
        async |scene, reported| {
            until_reported(reported).await;
            used(scene, false);
            while scene.live_driver().as_deref() != Some("550") {
                tokio::task::yield_now().await;
            }
            scene.until_ready().await;
        },
    )
    .await;
}
