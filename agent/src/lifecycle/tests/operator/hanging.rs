//! An agent under the operator that ends because a step hangs.

use std::sync::mpsc;

use super::*;
use longshore_core::disk::Disk;

#[tokio::test]
async fn it_leaves_not_ready_without_the_journal() {
    let scene = Scene { step_limit: Duration::from_secs(1), ..scene() };
    let (answers, hangs) = mpsc::channel::<()>();
    let hangs = Mutex::new(Some(hangs));
    scene.host.at_point(move |host| {
        let statuses = host.state().statuses;
        let is_announced = statuses.get(&daemons_file()).is_some_and(|text| text == "Ready");
        let hangs = if is_announced { hangs.lock().unwrap().take() } else { None };
        if let Some(hangs) = hangs {
            // Blocks until the test ends.
            let _ = hangs.recv();
        }
    });
    let failure = scene.live(At::Never, vec![Ok(announced("535"))]).await.unwrap_err();
    assert_eq!(failure.code(), ExitCode::RolledBack);
    let statuses = scene.host.state().statuses;
    assert_eq!(statuses.get(&daemons_file()).map(String::as_str), Some("NotReady"));
    drop(answers);
    while Journal::open(&scene.paths, Disk::default()).is_err() {
        tokio::task::yield_now().await;
    }
    scene.uninstall().await;
    assert_eq!(scene.host.state().loaded.get("nvidia"), None);
}
