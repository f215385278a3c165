//! The startup probe's confirmation: written again after a change, because the probe runs once.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use super::*;

const FOUND: &str = "GDS_ENABLED: true\nsomething else";
const WRITTEN: &str = "GDRCOPY_ENABLED: false\nGDS_ENABLED: true\nGPU_DIRECT_RDMA_ENABLED: false";

fn ready_and(confirmation: Option<&str>) -> BTreeMap<PathBuf, String> {
    let mut wanted =
        BTreeMap::from([(state_file(), DIGEST.to_owned()), (daemons_file(), "Ready".to_owned())]);
    wanted.extend(confirmation.map(|text| (probes_file(), text.to_owned())));
    wanted
}

/// Runs an agent that is Ready with 535, which the probe confirmed; `prepare` follows, a SIGHUP that wants 550,
/// and `check`.
async fn changed(scene: &Scene, prepare: impl FnOnce(&Scene), check: impl FnOnce(&Scene)) {
    let agent = scene.live(At::Never, vec![Ok(announced("535")), Ok(announced("550"))]);
    let watch = async {
        scene.until_ready().await;
        scene.host.change(|state| state.statuses.insert(probes_file(), FOUND.to_owned()));
        prepare(scene);
        sighup(scene, Config { jobs: Some(7), ..scene.config() }).await;
        check(scene);
        used(scene, false);
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}

#[tokio::test]
async fn it_is_there_again_after_a_change_and_gone_after_the_end() {
    let scene = scene();
    let before = scene.host.state();
    changed(
        &scene,
        |_| {},
        |scene| {
            assert_eq!(scene.live_driver().as_deref(), Some("550"));
            assert_eq!(scene.host.state().statuses, ready_and(Some(WRITTEN)));
        },
    )
    .await;
    assert_eq!(scene.host.state(), before);
}

#[tokio::test]
async fn it_stays_where_the_driver_is_in_use_from_the_start() {
    let scene = scene();
    changed(
        &scene,
        |scene| used(scene, true),
        |scene| {
            assert_eq!(scene.live_driver().as_deref(), Some("535"));
            assert_eq!(scene.host.state().statuses, ready_and(Some(WRITTEN)));
        },
    )
    .await;
}

#[tokio::test]
async fn it_is_there_again_where_a_process_opens_the_driver_during_the_unload() {
    let scene = scene();
    let opens = |scene: &Scene| {
        scene.host.at_point(|host| {
            if !host.state().statuses.contains_key(&daemons_file()) {
                host.change(|state| state.references.insert("nvidia_uvm".to_owned(), 1));
            }
        });
    };
    changed(&scene, opens, |scene| {
        scene.host.at_point(|_| {});
        assert!(scene.host.log().iter().any(|line| line.contains(".driver-ctr-ready")));
        assert_eq!(scene.live_driver().as_deref(), Some("535"));
        assert_eq!(scene.host.state().statuses, ready_and(Some(WRITTEN)));
    })
    .await;
}

#[tokio::test]
async fn one_that_the_operator_removed_before_the_change_is_not_written() {
    let scene = scene();
    let removed = |scene: &Scene| {
        scene.host.change(|state| state.statuses.remove(&probes_file()));
    };
    changed(&scene, removed, |scene| {
        assert_eq!(scene.host.state().statuses, ready_and(None));
    })
    .await;
}

/// Kills an agent at a point of a change by SIGHUP of a confirmed driver; None if it comes to its end
/// before that point.
async fn killed(fault: Fault) -> Option<Scene> {
    let mut scene = scene();
    let agent = scene.live(At::Never, vec![Ok(announced("535")), Ok(announced("550"))]);
    let watch = async {
        scene.until_ready().await;
        scene.host.change(|state| state.statuses.insert(probes_file(), FOUND.to_owned()));
        scene.host.fails(Some(fault));
        sighup(&scene, Config { jobs: Some(7), ..scene.config() }).await;
    };
    let is_killed = tokio::select! {
        ended = agent => {
            assert_eq!(ended.unwrap_err().code(), ExitCode::Bug);
            true
        }
        () = watch => false,
    };
    scene.host.fails(None);
    scene.configs.lock().unwrap().clear();
    scene.renewal = Renewal::default();
    is_killed.then_some(scene)
}

#[tokio::test]
async fn the_next_agent_does_not_write_it_where_a_change_was_cut_off_at_any_point() {
    let mut recorded = 0;
    for n in 0.. {
        let mut reached = false;
        for fault in [Fault::DieBefore(n), Fault::DieAfter(n)] {
            let Some(scene) = killed(fault).await else { continue };
            reached = true;
            let is_it =
                |s: &Step| WriteStatus::from_step(s).is_some_and(WriteStatus::is_confirmation);
            recorded += usize::from(scene.state().previous.iter().any(is_it));
            scene.die_when_ready(announced("550")).await;
            assert_eq!(scene.host.state().statuses, ready_and(None), "{fault:?}");
            scene.uninstall().await;
            assert_eq!(announcements(&scene), [], "{fault:?}");
        }
        if !reached {
            break;
        }
    }
    assert!(recorded >= 16, "{recorded}");
}

#[tokio::test]
async fn the_next_agent_that_fails_leaves_not_ready_where_a_change_was_cut_off_at_any_point() {
    let mut brought_back = 0;
    for n in 0.. {
        let mut reached = false;
        for fault in [Fault::DieBefore(n), Fault::DieAfter(n)] {
            let Some(scene) = killed(fault).await else { continue };
            reached = true;
            let withdrawn = AtomicBool::new(false);
            scene.host.at_point(move |host| {
                let status = host.state().statuses.get(&daemons_file()).cloned();
                match status.as_deref() {
                    Some("NotReady") => withdrawn.store(true, Ordering::Relaxed),
                    Some("Ready") => assert!(!withdrawn.load(Ordering::Relaxed)),
                    _ => {}
                }
            });
            scene.live(At::Never, vec![Ok(announced("refused"))]).await.unwrap_err();
            scene.host.at_point(|_| {});
            let statuses = scene.host.state().statuses;
            let status = statuses.get(&daemons_file()).cloned();
            assert_eq!(status.as_deref(), Some("NotReady"), "{fault:?}");
            assert!(!statuses.contains_key(&probes_file()), "{fault:?}");
            brought_back += usize::from(scene.live_driver().as_deref() == Some("535"));
        }
        if !reached {
            break;
        }
    }
    assert!(brought_back >= 8, "{brought_back}");
}
