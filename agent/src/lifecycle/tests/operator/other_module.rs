//! A change while another module holds the driver, and no process: it is not tried in vain.

use super::*;

const OTHER: &str = "nvidia_fs";

/// Makes another module hold the driver, or not.
fn held_by_module(scene: &Scene, is: bool) {
    let depends = vec!["nvidia".to_owned()];
    scene.host.knows(OTHER, FakeModule { depends, ..FakeModule::default() });
    scene.host.change(|state| match is {
        true => drop(state.loaded.insert(OTHER.to_owned(), String::new())),
        false => drop(state.loaded.remove(OTHER)),
    });
}

/// Lets the users of the driver go, and then the module that holds it.
async fn freed(scene: &Scene, reported: &Reported) {
    held_by_module(scene, true);
    used(scene, false);
    let is_named = || {
        let waits = reported.waits.lock().unwrap();
        waits.last().is_some_and(|in_use| in_use.to_string().contains(OTHER))
    };
    while !is_named() {
        tokio::task::yield_now().await;
    }
    let tries = scene.gathered.load(Ordering::Relaxed);
    let looks = scene.host.counts().users;
    while scene.host.counts().users < looks + 5 {
        tokio::task::yield_now().await;
    }
    assert_eq!(scene.gathered.load(Ordering::Relaxed), tries, "not tried in vain");
    assert_eq!(scene.live_driver().as_deref(), Some("535"));
    held_by_module(scene, false);
    while scene.live_driver().as_deref() != Some("550") {
        tokio::task::yield_now().await;
    }
    scene.until_ready().await;
}

#[tokio::test]
async fn a_postponed_change_leaves_the_driver_ready_meanwhile() {
    let (scene, reported) = postponed::telling();
    postponed::postponed(&scene, &reported, freed(&scene, &reported)).await;
}

#[tokio::test]
async fn a_change_at_the_start_waits_for_it() {
    let (scene, reported) = held().await;
    let agent = scene.live(At::Never, vec![Ok(announced("550"))]);
    let watch = async {
        until_reported(&reported).await;
        freed(&scene, &reported).await;
        scene.stop.set();
    };
    let (ended, ()) = tokio::join!(agent, watch);
    assert_eq!(ended.unwrap(), ExitCode::Done);
}
