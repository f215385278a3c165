//! Hosts without a GPU, with no-gpu = wait.

use super::*;

/// Plan of a host without a GPU.
fn idle() -> Plan {
    let findings = vec![Finding {
        severity: crate::plan::Severity::Note,
        ..Finding::refusal(Code::NoDevice, "none")
    }];
    Plan { install: Vec::new(), findings, idle: true, ..plan("535") }
}

async fn until_idle(scene: &Scene) {
    while scene.telemetry.phase() != Some(Phase::Idle) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_gpu_that_appears_gets_its_driver() {
    let scene = Scene::new();
    let before = scene.host.state();
    let appears = async {
        until_idle(&scene).await;
        let live = scene.telemetry.live();
        assert!(live.ready && live.driver.is_none(), "{live:?}");
        assert_eq!(
            scene.phase(),
            Some(Phase::Removed),
            "the record is one that earlier agents know"
        );
        assert!(scene.host.log().is_empty(), "{:?}", scene.host.log());
        scene.again.ask();
        scene.stop_at(Phase::Ready).await;
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
    };
    let plans = vec![Ok(idle()), Ok(plan("535"))];
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), appears);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.phase(), Some(Phase::Removed));
}

/// Other functions of NVIDIA's come and go, for example audio.
#[tokio::test]
async fn an_event_without_a_gpu_leads_back_to_the_wait() {
    let scene = Scene::new();
    let events = async {
        until_idle(&scene).await;
        for planned in [2, 3] {
            scene.again.ask();
            while scene.gathered.load(Ordering::Relaxed) < planned {
                tokio::task::yield_now().await;
            }
            until_idle(&scene).await;
        }
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(idle())]), events);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(scene.host.log().is_empty(), "{:?}", scene.host.log());
    assert_eq!(scene.phase(), Some(Phase::Removed));
}

#[tokio::test]
async fn a_renewal_is_followed_while_it_waits() {
    let scene = Scene::new();
    let next = Config { jobs: Some(7), ..config(&scene.paths) };
    scene.configs.lock().unwrap().push_back(Ok(next));
    let renews = async {
        until_idle(&scene).await;
        scene.renewal.ask();
        scene.stop_at(Phase::Ready).await;
    };
    let plans = vec![Ok(idle()), Ok(plan("550"))];
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), renews);
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(scene.configs.lock().unwrap().is_empty(), "the configuration was read");
}

/// A record with changes is not one of a host that nothing was done to: the agent does not wait beside them.
#[tokio::test]
async fn beside_an_earlier_agents_changes_it_does_not_wait() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    let ended = scene.live(At::Never, vec![Ok(idle())]).await.unwrap_err();
    assert_eq!(ended.code(), ExitCode::NoDevice);
    assert_eq!(scene.live_driver().as_deref(), Some("535"), "a whole driver stays");
}

/// A GPU that appears after the bus was read for the plan, and before events are received, causes none any more.
#[tokio::test]
async fn a_gpu_that_appeared_before_the_wait_is_not_missed() {
    let scene = Scene::new();
    scene.host.change(|state| {
        state.gpus.push(longshore_host::facts::gpus::Gpu {
            address: "0000:01:00.0".into(),
            device: 0x1eb8,
            taken: longshore_host::facts::gpus::Taken::Nobody,
            kernel_message: None,
        });
    });
    let plans = vec![Ok(idle()), Ok(plan("535"))];
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), scene.stop_at(Phase::Ready));
    assert_eq!(ended.unwrap(), ExitCode::Done);
}
