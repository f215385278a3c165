//! Other files in the place of the record, of the lock or of their directory.

use super::formats::FORMAT_1;
use super::*;

/// Kinds of files in the place of one of ours: they are refused, without blocking.
#[derive(Debug, Clone, Copy)]
pub(super) enum InTheWay {
    Pipe,
    Directory,
    Link,
    DeadLink,
    Socket,
}

impl InTheWay {
    pub(super) const ALL: [InTheWay; 5] =
        [InTheWay::Pipe, InTheWay::Directory, InTheWay::Link, InTheWay::DeadLink, InTheWay::Socket];

    pub(super) fn put(self, path: &Path) {
        use std::os::unix::fs::symlink;
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let elsewhere = path.with_extension("elsewhere");
        match self {
            InTheWay::Pipe => {
                let mode = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
                nix::unistd::mkfifo(path, mode).unwrap();
            }
            InTheWay::Directory => fs::create_dir(path).unwrap(),
            InTheWay::Link => {
                fs::write(&elsewhere, FORMAT_1).unwrap();
                symlink(&elsewhere, path).unwrap();
            }
            InTheWay::DeadLink => symlink("/nonexistent/state", path).unwrap(),
            InTheWay::Socket => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        }
    }
}

#[test]
fn what_is_no_file_in_the_place_of_the_state_is_refused() {
    for what in InTheWay::ALL {
        let scene = Scene::new();
        what.put(&scene.state_file());
        let failure = read_state(&scene.paths).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Preflight, "{what:?}");
        assert!(failure.remedy_text().is_some(), "{what:?}");
        assert_eq!(
            Journal::open(&scene.paths, Disk::default()).unwrap_err().code(),
            ExitCode::Preflight
        );
        assert!(fs::symlink_metadata(scene.state_file()).is_ok(), "{what:?} was left alone");
    }
}

#[test]
fn what_is_no_file_in_the_place_of_the_lock_is_refused() {
    for what in InTheWay::ALL {
        let scene = Scene::new();
        what.put(&scene.paths.state.join("lock"));
        assert_eq!(holder(&scene.paths.state), Ok(None), "{what:?}");
        assert_eq!(
            Journal::open(&scene.paths, Disk::default()).unwrap_err().code(),
            ExitCode::Preflight
        );
    }
}

#[test]
fn what_lies_under_the_temporary_name_is_no_hindrance() {
    for what in [InTheWay::Pipe, InTheWay::Link, InTheWay::DeadLink, InTheWay::Socket] {
        let scene = Scene::new();
        let next = scene.paths.state.join("state.json.next");
        what.put(&next);
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        journal.intend(step()).unwrap();
        assert!(fs::symlink_metadata(&next).is_err(), "{what:?}");
        assert_eq!(read_state(&scene.paths).unwrap().unwrap().entries.len(), 1);
    }
}

#[test]
fn a_state_directory_that_is_a_link_is_refused_and_one_that_is_replaced_is_noticed() {
    let mut scene = Scene::new();
    let real = scene.paths.root.join("real");
    fs::create_dir_all(&real).unwrap();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    // While it runs: entries would be recorded elsewhere.
    fs::rename(&scene.paths.state, scene.paths.root.join("moved")).unwrap();
    for replaced in [false, true] {
        if replaced {
            std::os::unix::fs::symlink(&real, &scene.paths.state).unwrap();
        }
        let failure = journal.intend(step()).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert_eq!(journal.live().count(), 0);
    }
    drop(journal);
    let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    assert!(failure.report().contains("it is a symbolic link"), "{}", failure.report());
    assert_eq!(fs::read_dir(&real).unwrap().count(), 0);
    // A link in the path is allowed, as /var/run leads to /run.
    std::os::unix::fs::symlink(&real, scene.paths.root.join("way")).unwrap();
    scene.paths.state = scene.paths.root.join("way/run");
    Journal::open(&scene.paths, Disk::default()).unwrap();
}

#[test]
fn a_state_that_is_far_too_large_is_refused() {
    let scene = Scene::new();
    fs::create_dir_all(&scene.paths.state).unwrap();
    File::create(scene.state_file()).unwrap().set_len(1 << 40).unwrap();
    let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
    assert!(failure.report().contains("far too large"), "{}", failure.report());
}

#[test]
fn pipes_in_the_places_of_state_and_lock_are_not_opened() {
    let scene = Scene::new();
    let places = [scene.state_file(), scene.paths.state.join("lock")];
    places.iter().for_each(|place| InTheWay::Pipe.put(place));
    let writers = places.map(|place| longshore_core::testing::Waiting::at(&place));
    read_state(&scene.paths).unwrap_err();
    assert_eq!(holder(&scene.paths.state), Ok(None));
    assert!(writers.iter().all(longshore_core::testing::Waiting::is_waiting));
}
