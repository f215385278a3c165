//! Locks that a local user holds: `flock /var/lib/longshore/tmp sleep inf`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use longshore_core::store::Store;
use longshore_core::testing::Holder;
use nix::sys::signal::Signal;

use longshore_tests::packages;
use longshore_tests::scene::disk;
use longshore_tests::scene::{Scene, finish, fixture, send, start, until, wait};

/// Makes a scene with a store that another program made, which everybody may enter, and a lock in
/// it that everybody may open, as earlier releases made some.
fn open_to_all() -> Scene {
    let scene = Scene::with(packages::buildable(&[]));
    Store::open(&scene.path("store"), disk()).expect("store");
    fs::write(scene.path("store/lock"), "").expect("write");
    for (path, mode) in [("", 0o755), ("store", 0o755), ("store/lock", 0o644)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(scene.path(path), mode).expect("mode");
    }
    scene
}

/// Returns an import that unpacks a file which is not a bundle.
fn import(scene: &Scene) -> Command {
    fs::write(scene.path("bundle.tar"), "no bundle").expect("write");
    scene.agent(&["import", &scene.path("bundle.tar").display().to_string()])
}

#[test]
fn a_lock_on_the_directory_of_unfinished_files_keeps_nobody_waiting() {
    let scene = open_to_all();
    let _holder = Holder::start(&scene.path("store/tmp"));
    let since = Instant::now();
    let ended = finish(&mut import(&scene));
    // It reached the file.
    ended.assert_failed(13, &["bundle.tar".to_owned()]);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}: {ended}", since.elapsed());
}

#[test]
fn a_lock_that_a_stranger_holds_is_waited_for_no_longer_than_its_deadline() {
    let scene = open_to_all();
    let holder = Holder::start(&scene.path("store/lock"));
    let mut command = import(&scene);
    let ended = finish(command.env("LONGSHORE_LOCK_DEADLINE", "500ms"));
    let who = format!("held by pid {}, perl", holder.0.id());
    ended.assert_failed(15, &["store/lock".to_owned(), who, "end that process".to_owned()]);
}

#[test]
fn whoever_waits_for_a_lock_ends_on_sigterm_within_a_second() {
    for run in [false, true] {
        let scene = open_to_all();
        let lock = scene.path("store/lock");
        let _holder = Holder::start(&lock);
        let child = start(&mut match run {
            true => scene.agent(&["run", "--root", &fixture("bookworm-t4")]),
            false => import(&scene),
        });
        let open = format!("/proc/{}/fd", child.id());
        let is_lock = |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|to| to == lock);
        until("it waits for the lock", || {
            fs::read_dir(&open).into_iter().flatten().flatten().any(is_lock)
        });
        let since = Instant::now();
        send(&child, Signal::SIGTERM);
        let ended = wait(child);
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}: {ended}", since.elapsed());
        ended.assert_no_panic();
        assert_eq!(
            (ended.code, ended.signal),
            if run { (Some(0), None) } else { (None, Some(15)) }
        );
    }
}
