//! `longshore unload` after an agent that has died.

use super::*;
use crate::status::status;
use crate::steps::MissingDirs;

#[tokio::test]
async fn unloading_where_nothing_is_left_says_so_and_touches_nothing() {
    let scene = Scene::new();
    let config = config(&scene.paths);
    assert_eq!(unload(&config, false, &Telemetry::default()).await.unwrap(), ExitCode::Done);
    assert!(!scene.paths.state.exists());
    let journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    assert_eq!(
        unload(&config, false, &Telemetry::default()).await.unwrap_err().code(),
        ExitCode::Preflight
    );
    drop(journal);
    assert_eq!(unload(&config, false, &Telemetry::default()).await.unwrap(), ExitCode::Done);
}

#[tokio::test]
async fn unloading_undoes_what_a_dead_agent_did() {
    let scene = Scene::new();
    let made = scene.paths.root.join("made");
    std::fs::create_dir_all(&made).unwrap();
    std::fs::create_dir_all(scene.paths.root.join("proc")).unwrap();
    std::fs::write(scene.paths.root.join("proc/devices"), "Character devices:\n").unwrap();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    // RealHost takes paths below its root, which is this scene's directory.
    let path = Path::new("/made");
    let dirs = vec![path.to_path_buf()];
    let step = MakeDir { path: path.to_path_buf() };
    journal.intend(step.observed(MissingDirs { dirs })).unwrap();
    drop(journal);
    // An unusable store is no reason to leave the driver on the host.
    std::fs::write(&scene.paths.store, "in the way").unwrap();
    assert_eq!(
        unload(&config(&scene.paths), false, &Telemetry::default()).await.unwrap(),
        ExitCode::Done
    );
    assert!(!made.exists());
    assert_eq!(scene.phase(), Some(Phase::Removed));
    assert_eq!(status(&config(&scene.paths)).unwrap().0.phase, Some(Phase::Removed));
}

/// An agent whose store is lost left it, or root in a container did: only a person can know.
#[tokio::test]
async fn an_unsealed_record_is_undone_where_a_person_asks_for_it_and_nowhere_else() {
    const RECORD: &str = r#"{"format": 2, "boot_id": null, "agent": 7, "phase": "ready", "plan": null,
        "entries": [{"seq": 1, "step": {"do": "make-dir", "path": "/made"},
            "before": {"was": "missing-dirs", "dirs": ["/made"]}, "state": "done"}]}"#;
    let mut scene = Scene::new();
    let (made, shared) = (scene.paths.root.join("made"), scene.paths.root.join("shared"));
    for dir in [&made, &shared, &scene.paths.root.join("proc")] {
        std::fs::create_dir_all(dir).unwrap();
    }
    std::fs::write(scene.paths.root.join("proc/devices"), "Character devices:\n").unwrap();
    std::fs::write(shared.join("state.json"), RECORD).unwrap();
    scene.paths.earlier_state = Some(shared.clone());
    let config = config(&scene.paths);
    assert_eq!(unload(&config, false, &Telemetry::default()).await.unwrap(), ExitCode::Done);
    assert!(made.exists() && shared.join("state.json").exists());
    for _ in 0..2 {
        assert_eq!(unload(&config, true, &Telemetry::default()).await.unwrap(), ExitCode::Done);
        assert!(!made.exists() && !shared.join("state.json").exists());
        assert_eq!(scene.phase(), Some(Phase::Removed));
    }
}
