//! Runs from Probing to Removed.

use super::*;

#[tokio::test]
async fn a_life_installs_and_takes_off() {
    let scene = Scene::new();
    let before = scene.host.state();
    let plans = vec![Ok(wanting(plan("535"))), Ok(plan("535"))];
    let (ended, ()) = tokio::join!(scene.live(At::Never, plans), scene.stop_at(Phase::Ready));
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert!(scene.host.log().contains(&"init_module nvidia_uvm".to_owned()));
    assert_eq!(scene.host.state(), before);
    assert_eq!(scene.phase(), Some(Phase::Removed));
}

#[tokio::test]
async fn the_host_is_read_once_for_each_plan() {
    let installs = || vec![Ok(plan("535"))];
    let acquires = || vec![Ok(wanting(plan("535"))), Ok(plan("535"))];
    for (plans, wanted) in [(installs(), 1), (acquires(), 2)] {
        let scene = Scene::new();
        let (ended, ()) = tokio::join!(scene.live(At::Never, plans), scene.stop_at(Phase::Ready));
        assert_eq!(ended.unwrap(), ExitCode::Done);
        assert_eq!(scene.gathered.load(Ordering::Relaxed), wanted);
    }
}

#[tokio::test]
async fn what_is_installed_is_told_and_a_stop_does_not_wait_for_what_follows() {
    let scene = Scene::new();
    let before = scene.host.state();
    let ended = scene.live(At::Installed, vec![Ok(plan("535"))]).await;
    assert_eq!(ended.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
    let installed = scene.installed.lock().unwrap().clone();
    // All but the directory, which was there.
    let ours = plan("535").install.split_off(1);
    assert_eq!(installed, [(PlanSummary::from(&plan("535")), ours)]);
    // A failed acquisition is not reported.
    let scene = Scene::new();
    scene.live(At::AcquireFails, vec![Ok(wanting(plan("535")))]).await.unwrap_err();
    assert!(scene.installed.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_record_that_can_no_longer_be_written_does_not_keep_the_driver_on_the_host() {
    let scene = Scene::new();
    let before = scene.host.state();
    let (ended, ()) = tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), async {
        while scene.phase() != Some(Phase::Ready) {
            tokio::task::yield_now().await;
        }
        std::fs::remove_dir_all(&scene.paths.state).unwrap();
        scene.stop.set();
    });
    assert_eq!(ended.unwrap_err().code(), ExitCode::Preflight);
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn a_driver_in_use_outlives_the_agent_and_the_next_one_takes_it_off() {
    let scene = Scene::new();
    let before = scene.host.state();
    scene.die_when_ready(plan("535")).await;
    scene.host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    let used = scene.host.state();
    let (ended, ()) =
        tokio::join!(scene.live(At::Never, vec![Ok(plan("535"))]), scene.stop_at(Phase::Ready));
    assert_eq!(ended.unwrap_err().code(), ExitCode::InUse);
    assert_eq!(scene.host.state(), used);
    assert_eq!(scene.phase(), Some(Phase::InUse));
    scene.host.change(|state| state.references.clear());
    assert_eq!(scene.live(At::Never, vec![Ok(plan("535"))]).await.unwrap(), ExitCode::Done);
    assert_eq!(scene.host.state(), before);
}
