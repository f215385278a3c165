//! Runs that end before they are Ready: stopped, or failed.

use super::*;

#[tokio::test]
async fn a_stop_before_installing_changes_nothing_and_is_no_failure() {
    for at in [At::Gather, At::GatherDone, At::Acquire, At::AcquireDone] {
        let scene = Scene::new();
        // Without a plan to be refused or carried out if it is stopped before that.
        let planned = if at == At::GatherDone { Err(FailureKind::NoDevice) } else { Ok(()) };
        let ended = scene.live(at, vec![planned.map(|()| wanting(plan("535")))]).await;
        assert_eq!(ended.unwrap(), ExitCode::Done);
        assert!(scene.host.log().is_empty());
        assert_eq!(scene.phase(), Some(Phase::Removed));
    }
}

#[tokio::test]
async fn a_stop_while_installing_undoes_and_is_no_failure() {
    let scene = Scene::new();
    let before = scene.host.state();
    let stop = scene.stop.clone();
    scene.host.on_look(move |state, _| {
        if state.loaded.contains_key("nvidia_uvm") {
            stop.set();
        }
    });
    assert_eq!(scene.live(At::Never, vec![Ok(plan("535"))]).await.unwrap(), ExitCode::Done);
    assert!(scene.host.log().contains(&"init_module nvidia_uvm".to_owned()));
    assert!(!scene.host.log().contains(&"mknod /dev/nvidiactl".to_owned()));
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.phase(), Some(Phase::Removed));
}

#[tokio::test]
async fn failures_before_installing_end_it_untouched_with_their_code() {
    let not_exact = Plan { exact: false, ..plan("535") };
    let cases = [
        (At::Never, vec![Err(FailureKind::NoDevice)], ExitCode::NoDevice),
        (At::Never, vec![Ok(refusing(plan("535")))], ExitCode::Preflight),
        (At::AcquireFails, vec![Ok(wanting(plan("535")))], ExitCode::Compile),
        (At::Never, vec![Ok(wanting(plan("535"))), Ok(refusing(plan("535")))], ExitCode::Preflight),
        (At::Never, vec![Ok(wanting(plan("535")))], ExitCode::Bug),
        (At::Never, vec![Ok(not_exact)], ExitCode::Bug),
    ];
    for (at, plans, code) in cases {
        let scene = Scene::new();
        let failure = scene.live(at, plans).await.unwrap_err();
        assert_eq!(failure.code(), code, "{failure}");
        assert!(scene.host.log().is_empty());
        assert_eq!(scene.phase(), Some(Phase::Failed));
    }
}

#[tokio::test]
async fn a_failed_installation_is_rolled_back() {
    let scene = Scene::new();
    let refused = Some(nix::errno::Errno::ENODEV);
    scene.host.knows("nvidia_uvm", FakeModule { refused, ..FakeModule::default() });
    let before = scene.host.state();
    let failure = scene.live(At::Never, vec![Ok(plan("535"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::NoDevice);
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.phase(), Some(Phase::Failed));
}

#[tokio::test]
async fn a_dead_agents_driver_stays_where_no_plan_can_be_made() {
    let scene = Scene::new();
    scene.die_when_ready(plan("535")).await;
    let there = scene.host.state();
    let failure = scene.live(At::Never, vec![Err(FailureKind::Download)]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::Download);
    assert_eq!(scene.host.state(), there);
}
