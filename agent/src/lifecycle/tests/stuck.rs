//! Step that hangs for good in the thread that changes the host.

use std::sync::mpsc;

use super::*;
use crate::steps::MakeDir;
use longshore_core::disk::Disk;

#[tokio::test]
async fn a_step_that_hangs_is_left_behind_and_the_next_agent_goes_on_from_the_record() {
    let scene = Scene { step_limit: Duration::from_secs(2), ..Scene::new() };
    let before = scene.host.state();
    let (answers, hangs) = mpsc::channel::<()>();
    let hangs = Mutex::new(Some(hangs));
    scene.host.at_point(move |host| {
        // The mount of the tree, after the modules.
        let at_mount = host.log().last().is_some_and(|verb| verb == "init_module nvidia_uvm");
        let hangs = if at_mount { hangs.lock().unwrap().take() } else { None };
        if let Some(hangs) = hangs {
            // Blocks until the disk answers again, here when the test ends.
            let _ = hangs.recv();
        }
    });
    let failure = scene.live(At::Never, vec![Ok(plan("535"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::RolledBack);
    let text = failure.report();
    assert!(text.contains("nvidia_uvm has not come to its end in"), "{text}");
    assert!(failure.remedy_text().unwrap().contains("longshore unload"), "{text}");
    // The record is that of the step, and the hanging thread holds the lock: no other agent begins
    // meanwhile.
    assert_eq!(scene.phase(), Some(Phase::Installing));
    assert!(Journal::open(&scene.paths, Disk::default()).is_err());
    drop(answers);
    while Journal::open(&scene.paths, Disk::default()).is_err() {
        tokio::task::yield_now().await;
    }
    scene.uninstall().await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test(start_paused = true)]
async fn steps_that_come_to_their_end_are_waited_for() {
    let scene = Scene { step_limit: Duration::from_millis(1), ..Scene::new() };
    let telemetry = scene.telemetry.clone();
    assert_eq!(telemetry.in_progress(), None);
    let step = Step::MakeDir(MakeDir { path: "/run/x".into() });
    let timer = telemetry.begin(&step, true);
    let (what, _) = telemetry.in_progress().unwrap();
    assert_eq!(what, "undoing make-dir /run/x");
    timer.end(crate::telemetry::StepOutcome::Undone);
    let pending = super::super::stuck::stuck(&telemetry, Duration::from_secs(600));
    let none = tokio::time::timeout(Duration::from_secs(6000), pending).await;
    assert!(none.is_err(), "nothing is in progress");
    let failure = super::super::stuck::stuck(&telemetry, Duration::from_millis(1)).await;
    assert!(failure.report().contains("looking at the host has not come"), "{failure}");
}
