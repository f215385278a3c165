//! The lock, which one agent holds.

use super::*;

#[test]
fn nobody_else_may_open_the_lock_and_so_take_it() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let mode = || {
        let lock = fs::metadata(scene.paths.state.join("lock")).unwrap();
        lock.permissions().mode() & 0o777
    };
    drop(Journal::open(&scene.paths, Disk::default()).unwrap());
    assert_eq!(mode(), 0o600);
    // A directory that an earlier agent made.
    let lock = scene.paths.state.join("lock");
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    drop(Journal::open(&scene.paths, Disk::default()).unwrap());
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_second_agent_is_refused_and_the_first_is_named() {
    let scene = Scene::new();
    let first = Journal::open(&scene.paths, Disk::default()).unwrap();
    let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    let pid = std::process::id();
    assert!(
        failure.to_string().contains(&format!("another longshore runs (pid {pid} of ")),
        "{failure}"
    );
    assert_eq!(holder(&scene.paths.state), Ok(Some(pid)));
    drop(first);
    assert_eq!(holder(&scene.paths.state), Ok(None));
    Journal::open(&scene.paths, Disk::default()).unwrap();
}

/// A child that hangs in the kernel keeps the lock after its parent has ended.
#[test]
fn the_lock_is_held_until_the_last_who_shares_it_lets_go() {
    let scene = Scene::new();
    let journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let shared = journal.share_lock().unwrap();
    drop(journal);
    let held = Journal::try_open(&scene.paths, Disk::default()).unwrap().unwrap_err();
    assert_eq!(held.pid, Some(std::process::id()));
    assert_eq!(holder(&scene.paths.state), Ok(held.pid));
    let failure = held.into_failure(&scene.paths.state, Duration::from_secs(60));
    assert!(failure.to_string().ends_with(", for the 60 s that this one waited"), "{failure}");
    drop(shared);
    Journal::open(&scene.paths, Disk::default()).unwrap();
}
