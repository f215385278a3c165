//! Death of an agent while it brings a driver back that is in use.

use super::*;

/// Runs an agent that wants 550 until its change waits; false if it dies of a fault before.
async fn waits(scene: &Scene, reported: &Reported) -> bool {
    tokio::select! {
        ended = scene.live(At::Never, vec![Ok(announced("550"))]) => {
            assert_eq!(ended.unwrap_err().code(), ExitCode::Bug);
            false
        }
        () = until_reported(reported) => true,
    }
}

#[tokio::test]
async fn the_next_agent_brings_it_back_whole_at_any_point() {
    let (scene, reported) = held().await;
    let (before, wanted) = {
        scene.host.fails(None);
        assert!(waits(&scene, &reported).await);
        (scene.host.state(), scene.host.changes())
    };
    assert!(wanted >= 8, "{wanted}");
    for fault in (0..wanted).flat_map(|n| [Fault::DieBefore(n), Fault::DieAfter(n)]) {
        let (scene, reported) = held().await;
        scene.host.fails(Some(fault));
        let died = !waits(&scene, &reported).await;
        scene.host.fails(None);
        reported.waits.lock().unwrap().clear();
        assert!(waits(&scene, &reported).await, "{fault:?}");
        let now = scene.host.state();
        assert_eq!((&now.nodes, &now.mounts), (&before.nodes, &before.mounts), "{fault:?} {died}");
        assert_eq!(now.statuses, before.statuses, "{fault:?}");
        let state = scene.state();
        assert!(state.whole && state.previous.is_empty(), "{fault:?}");
        used(&scene, false);
        scene.die_when_ready(announced("550")).await;
        scene.uninstall().await;
        assert_eq!(announcements(&scene), [], "{fault:?}");
        assert_eq!(scene.host.state().mounts, [], "{fault:?}");
    }
}
