//! Death of an agent during a change of the driver.

use super::*;
use longshore_core::disk::Disk;
use longshore_host::fake::Fault;
use rstest::rstest;

/// Returns every point at which an agent can die that changes the former driver to `to`: before and
/// after each verb.
async fn deaths(former: Plan, to: &str) -> Vec<Fault> {
    let scene = Scene::new();
    scene.die_when_ready(former).await;
    scene.host.fails(None);
    let reached = scene.reach_ready(plan(to)).await;
    assert_eq!(reached.is_ok(), to == "550");
    let changes = scene.host.changes();
    assert!(changes >= 8, "{changes}");
    (0..changes).flat_map(|n| [Fault::DieBefore(n), Fault::DieAfter(n)]).collect()
}

/// Returns a scene in which an agent died of `fault` while it changed the former driver to `to`; None if it did
/// not reach that point.
async fn died(former: Plan, to: &str, fault: Fault) -> Option<(Scene, FakeState)> {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.die_when_ready(former).await;
    scene.host.fails(Some(fault));
    let reached = scene.reach_ready(plan(to)).await;
    scene.host.fails(None);
    reached.is_err_and(|failure| failure.code() == ExitCode::Bug).then_some((scene, before))
}

#[rstest]
#[case::of_this_agent(plan("535"))]
#[case::of_format_3(plan_of_format_3("535"))]
#[tokio::test]
async fn the_next_agent_goes_on(#[case] former: Plan) {
    let mut died_at = 0;
    for fault in deaths(former.clone(), "550").await {
        let Some((scene, before)) = died(former.clone(), "550", fault).await else { continue };
        died_at += 1;
        scene.die_when_ready(plan("550")).await;
        assert_eq!(scene.live_driver().as_deref(), Some("550"), "{fault:?}");
        let state = scene.state();
        assert!(state.whole && state.previous.is_empty(), "{fault:?}");
        assert_eq!(scene.host.state().mounts.len(), 4, "{fault:?}");
        scene.uninstall().await;
        assert_eq!(scene.host.state(), before, "{fault:?}");
    }
    assert!(died_at >= 16, "{died_at}");
}

#[rstest]
#[case::of_this_agent(plan("535"))]
#[case::of_format_3(plan_of_format_3("535"))]
#[tokio::test]
async fn the_next_agent_that_wants_the_former_driver_goes_back(#[case] former: Plan) {
    for fault in deaths(former.clone(), "550").await {
        let Some((scene, before)) = died(former.clone(), "550", fault).await else { continue };
        scene.die_when_ready(plan("535")).await;
        assert_eq!(scene.live_driver().as_deref(), Some("535"), "{fault:?}");
        scene.uninstall().await;
        assert_eq!(scene.host.state(), before, "{fault:?}");
    }
}

#[rstest]
#[case::of_this_agent(plan("535"))]
#[case::of_format_3(plan_of_format_3("535"))]
#[tokio::test]
async fn where_the_wanted_driver_is_refused_the_next_agent_brings_the_former_one_back(
    #[case] former: Plan,
) {
    for fault in deaths(former.clone(), "refused").await {
        let Some((scene, before)) = died(former.clone(), "refused", fault).await else { continue };
        let failure = scene.live(At::Never, vec![Ok(plan("refused"))]).await.unwrap_err();
        assert_eq!(failure.code(), ExitCode::KernelRefused, "{fault:?}: {failure}");
        assert_eq!(scene.live_driver().as_deref(), Some("535"), "{fault:?}: {failure}");
        assert!(scene.state().whole, "{fault:?}");
        scene.uninstall().await;
        assert_eq!(scene.host.state(), before, "{fault:?}");
    }
}

#[rstest]
#[case::of_this_agent(plan("535"))]
#[case::of_format_3(plan_of_format_3("535"))]
#[tokio::test]
async fn an_unload_takes_everything_off(#[case] former: Plan) {
    for fault in deaths(former.clone(), "550").await {
        let Some((scene, before)) = died(former.clone(), "550", fault).await else { continue };
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        journal.begin(Phase::Removing).unwrap();
        let (_, ended) = agent::remove(&scene.context(), journal).await;
        assert_eq!(ended.unwrap(), ExitCode::Done, "{fault:?}");
        assert_eq!(scene.host.state(), before, "{fault:?}");
        assert!(scene.state().previous.is_empty());
    }
}

#[rstest]
#[case::of_this_agent(plan("535"))]
#[case::of_format_3(plan_of_format_3("535"))]
#[tokio::test]
async fn a_second_death_in_the_recovery_is_survived_too(#[case] former: Plan) {
    // Half of all pairs.
    for fault in deaths(former.clone(), "550").await.into_iter().step_by(2) {
        for second in (0..12).map(Fault::DieAfter) {
            let Some((scene, before)) = died(former.clone(), "550", fault).await else { continue };
            scene.host.fails(Some(second));
            // It may come to Ready before it would die.
            let _ = scene.reach_ready(plan("550")).await;
            scene.host.fails(None);
            scene.die_when_ready(plan("550")).await;
            assert_eq!(scene.live_driver().as_deref(), Some("550"), "{fault:?} {second:?}");
            scene.uninstall().await;
            assert_eq!(scene.host.state(), before, "{fault:?} {second:?}");
        }
    }
}
