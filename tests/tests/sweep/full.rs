//! A disk that becomes full while a source is fetched: at every new file, and at some bytes of a
//! download.
//!
//! The store lies on a tmpfs in a mount namespace that only the threads of one fetch are in.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::thread;

use longshore::upkeep::check::check;
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::store::Store;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::scene::{Scene, Source};
use longshore_tests::server::{Fault, Hook};

/// Has room for the reserved free space, too, beside the fetched files.
const SIZE: &str = "size=96m";
/// More than any of these fetches makes.
const INODES: u32 = 10_000;

const SOURCES: [Source; 3] = [Source::Package, Source::RunFile, Source::Module];

/// Runs `test` with mounts that no other test sees.
fn alone(test: impl FnOnce() + Send + 'static) {
    let aside = move || {
        unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace: these tests need root");
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("private");
        test();
    };
    if let Err(panic) = thread::spawn(aside).join() {
        std::panic::resume_unwind(panic);
    }
}

fn mount_store(dir: &Path, inodes: u32, flags: MsFlags) {
    let options = format!("{SIZE},nr_inodes={inodes}");
    mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some(options.as_str())).expect("a tmpfs");
}

/// Makes a scene whose store may have this many files and directories.
fn with_inodes(source: Source, inodes: u32) -> Scene {
    Scene::on(source, |store| mount_store(store, inodes, MsFlags::empty()))
}

/// Fetches with all threads in this thread's mount namespace.
fn fetch(scene: &Scene) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("runtime").block_on(scene.fetch())
}

/// Checks that the error names the cause, and nothing wrong is left; with space again the same
/// fetch succeeds.
fn assert_refused_until(scene: &Scene, failure: &Failure, case: &str, make_room: impl FnOnce()) {
    let report = failure.report();
    assert_eq!(failure.code(), ExitCode::Preflight, "{case}: {report}");
    assert!(report.contains("No space left on device"), "{case}: {report}");
    assert!(failure.remedy_text().is_some_and(|r| r.starts_with("free space")), "{case}: {report}");
    let (_, drivers, sets) = scene.assert_sound(case);
    assert_eq!((drivers, sets), (0, 0), "{case}");
    assert_whole(&scene.store, case);
    make_room();
    fetch(scene).unwrap_or_else(|e| panic!("{case}, with space again: {}", e.report()));
    scene.assert_fetched(case);
    assert_whole(&scene.store, case);
}

/// Checks the store as `longshore store verify` does.
fn assert_whole(store: &Store, case: &str) {
    let health = check(store).unwrap_or_else(|e| panic!("{case}: {}", e.report()));
    assert!(health.damaged.is_empty(), "{case}: {:?}", health.damaged);
}

fn at_every_file(source: Source) {
    // The entries of an empty store, and the root of the file system.
    let empty = with_inodes(source, INODES);
    let first = INODES - free_inodes(&empty);
    drop(empty);
    for inodes in first.. {
        let case = format!("{source:?} with {} files", inodes - first);
        let scene = with_inodes(source, inodes);
        match fetch(&scene) {
            Err(failure) => assert_refused_until(&scene, &failure, &case, || {
                mount_store(scene.store.root(), INODES, MsFlags::MS_REMOUNT);
            }),
            Ok(()) => {
                scene.assert_fetched(&case);
                assert!(inodes > first + 2, "{case}: it makes more than that");
                return;
            }
        }
    }
}

fn free_inodes(scene: &Scene) -> u32 {
    let found = nix::sys::statvfs::statvfs(scene.store.root()).expect("statvfs");
    u32::try_from(found.files_free()).expect("few")
}

fn at_some_bytes(source: Source) {
    for hundredths in [0, 1, 20, 50, 80, 95] {
        let case = format!("{source:?} when {hundredths} % were sent");
        let scene = with_inodes(source, INODES);
        let filler = scene.store.root().join("filler");
        let (full, once) = (filler.clone(), Once::new());
        // The first request may be for the beginning alone, which ends before this point.
        let fill = Hook::new(move || once.call_once(|| fill(&full)));
        scene.server.always(&scene.path, Fault::Meanwhile(hundredths, fill));
        match fetch(&scene) {
            Err(failure) => assert_refused_until(&scene, &failure, &case, || {
                fs::remove_file(&filler).expect("removed");
            }),
            Ok(()) => panic!("{case}: it was fetched all the same"),
        }
    }
}

/// Takes all free space.
fn fill(filler: &PathBuf) {
    let file = fs::File::create(filler).expect("a file");
    let mut step = 1 << 26;
    let mut length = 0;
    while step >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), length, step) {
            Ok(()) => length += step,
            Err(_) => step /= 2,
        }
    }
}

#[test]
fn a_disk_that_has_no_room_for_another_file() {
    for source in SOURCES {
        alone(move || at_every_file(source));
    }
}

#[test]
fn a_disk_that_becomes_full_while_a_package_comes() {
    alone(|| at_some_bytes(Source::Package));
}

#[test]
fn a_disk_that_becomes_full_while_a_run_file_is_unpacked() {
    alone(|| at_some_bytes(Source::RunFile));
}

#[test]
fn a_disk_that_becomes_full_while_a_module_is_pulled() {
    alone(|| at_some_bytes(Source::Module));
}
