use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::steps::{
    LoadModule, MakeDir, MissingDirs, ModuleOrigin, MountTmpfs, Mounts, NotLoaded, Recorded,
};
use longshore_host::facts::LoadedModule;

mod formats;
mod in_the_way;
mod lock;
mod place;

struct Scene {
    _dir: tempfile::TempDir,
    paths: Paths,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::below(dir.path());
        let scene = Self { _dir: dir, paths };
        scene.boot("one");
        scene
    }

    fn boot(&self, id: &str) {
        let dir = self.paths.root.join("proc/sys/kernel/random");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("boot_id"), format!("{id}\n")).unwrap();
    }

    fn state_file(&self) -> PathBuf {
        self.paths.state.join("state.json")
    }
}

fn step() -> Recorded {
    let before = MissingDirs { dirs: vec![PathBuf::from("/a")] };
    MakeDir { path: PathBuf::from("/a") }.observed(before)
}

#[test]
fn another_disk_deadline_is_followed_without_opening_it_again() {
    let scene = Scene::new();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let disk = Disk::within(Duration::from_secs(7));
    journal.follow_disk(disk);
    journal.begin(Phase::Probing).unwrap();
    let Backing::Dir { file, .. } = &journal.place else { panic!("it is on disk") };
    assert_eq!(file.disk, disk);
}

#[test]
fn an_intent_is_on_disk_when_intend_returns() {
    let scene = Scene::new();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let seq = journal.intend(step()).unwrap();
    let seen = read_state(&scene.paths).unwrap().unwrap();
    assert_eq!(
        seen.entries,
        [JournalEntry { seq, step: step(), state: EntryState::Intended, instance: None }]
    );
    journal.mark(seq, EntryState::Done).unwrap();
    assert_eq!(read_state(&scene.paths).unwrap().unwrap().entries[0].state, EntryState::Done);
}

#[test]
fn another_boot_voids_the_entries() {
    let scene = Scene::new();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    journal.intend(step()).unwrap();
    drop(journal);
    assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 1);
    fs::remove_dir_all(scene.paths.root.join("proc")).unwrap();
    assert_eq!(
        Journal::open(&scene.paths, Disk::default()).unwrap().live().count(),
        1,
        "an unknown boot voids nothing"
    );
    scene.boot("two");
    let journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    assert_eq!(journal.live().count(), 0);
    assert_eq!(journal.phase(), Phase::Removed);
}

#[test]
fn a_state_directory_that_cannot_be_made_is_a_failure() {
    let mut scene = Scene::new();
    fs::write(scene.paths.root.join("file"), "").unwrap();
    scene.paths.state = scene.paths.root.join("file/run");
    assert_eq!(
        Journal::open(&scene.paths, Disk::default()).unwrap_err().code(),
        ExitCode::Preflight
    );
}

#[test]
fn illegal_transitions_are_faults_and_change_nothing() {
    let mut journal = Journal::in_memory();
    assert_eq!(journal.enter(Phase::Ready).unwrap_err().code(), ExitCode::Bug);
    assert_eq!(journal.begin(Phase::Ready).unwrap_err().code(), ExitCode::Bug);
    assert_eq!(journal.phase(), Phase::Removed);
    journal.begin(Phase::Probing).unwrap();
    journal.enter(Phase::Planning).unwrap();
    assert_eq!(journal.phase(), Phase::Planning);
}

#[test]
fn a_new_life_forgets_what_is_undone_but_counts_on() {
    let mut journal = Journal::in_memory();
    let first = journal.intend(step()).unwrap();
    let second = journal.intend(step()).unwrap();
    journal.mark(first, EntryState::Undone).unwrap();
    journal.begin(Phase::Probing).unwrap();
    assert_eq!(journal.live().map(|e| e.seq).collect::<Vec<_>>(), [second]);
    assert_eq!(journal.next_seq(), second + 1);
}

#[test]
fn there_is_no_state_where_no_agent_ever_was() {
    let paths = Paths::below(Path::new("/nonexistent/longshore"));
    assert_eq!(read_state(&paths).unwrap(), None);
    assert_eq!(holder(Path::new("/nonexistent/longshore")), Ok(None));
}

#[test]
fn entries_below_another_host_root_are_not_taken_for_undone() {
    let mut scene = Scene::new();
    let (host, other) = (scene.paths.root.join("host"), scene.paths.root.join("other"));
    fs::create_dir_all(&host).unwrap();
    scene.paths.host_root = host.clone();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let seq = journal.intend(step()).unwrap();
    drop(journal);
    drop(Journal::open(&scene.paths, Disk::default()).unwrap());
    scene.paths.host_root = scene.paths.root.clone();
    let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    // The same path, but another directory.
    fs::rename(&host, &other).unwrap();
    fs::create_dir(&host).unwrap();
    scene.paths.host_root = host.clone();
    assert!(Journal::open(&scene.paths, Disk::default()).is_err());
    fs::remove_dir(&host).unwrap();
    fs::rename(&other, &host).unwrap();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    journal.mark(seq, EntryState::Undone).unwrap();
    drop(journal);
    scene.paths.host_root = scene.paths.root.clone();
    assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().state().host_root, None);
}

#[test]
fn that_a_step_acted_is_written_with_the_next_intent_or_when_asked() {
    let scene = Scene::new();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let on_disk = || {
        let state = read_state(&scene.paths).unwrap().unwrap();
        state.entries.into_iter().map(|entry| entry.state).collect::<Vec<_>>()
    };
    let intend = |journal: &mut Journal, path: &str| {
        let step = MountTmpfs { target: path.into(), label: None };
        journal.intend(step.observed(Mounts { count: 0 })).unwrap()
    };
    let first = intend(&mut journal, "/one");
    journal.record(first, EntryState::Done);
    assert_eq!(on_disk(), [EntryState::Intended]);
    let second = intend(&mut journal, "/two");
    assert_eq!(on_disk(), [EntryState::Done, EntryState::Intended]);
    journal.record(second, EntryState::Done);
    journal.flush().unwrap();
    assert_eq!(on_disk(), [EntryState::Done, EntryState::Done]);
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&writes);
    journal.at_point(Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }));
    journal.flush().unwrap();
    assert_eq!(writes.load(Ordering::Relaxed), 0, "nothing is left to be written");
}

fn load(name: &str, version: &str) -> LoadModule {
    LoadModule {
        name: name.to_owned(),
        origin: ModuleOrigin::Driver { sha256: "0".repeat(64) },
        parameters: "a=1".to_owned(),
        version: Some(version.to_owned()),
        srcversion: None,
    }
}

#[test]
fn the_modules_that_are_ours_are_told_from_what_took_their_place() {
    let mut journal = Journal::in_memory();
    let kernels = LoadModule {
        name: "drm".to_owned(),
        origin: ModuleOrigin::Kernel { file: "drm.ko".into() },
        parameters: String::new(),
        version: None,
        srcversion: None,
    };
    for step in [kernels, load("nvidia", "535"), load("nvidia_uvm", "535"), load("gone", "535")] {
        let seq = journal.intend(step.observed(NotLoaded {})).unwrap();
        journal.mark(seq, EntryState::Done).unwrap();
    }
    // This module may or may not have been loaded: if it is there, it counts as ours.
    journal.intend(load("nvidia_modeset", "535").observed(NotLoaded {})).unwrap();
    let version = |version: &str| LoadedModule {
        version: Some(version.to_owned()),
        ..LoadedModule::default()
    };
    let loaded =
        [("drm", "6"), ("nvidia", "535"), ("nvidia_uvm", "550"), ("nvidia_modeset", "550")];
    let loaded = loaded.map(|(name, is)| (name.to_owned(), version(is))).into();
    let ours = journal.state().driver_modules(&loaded);
    let ours: Vec<_> = ours.iter().map(|(name, given)| (name.as_str(), given.as_str())).collect();
    assert_eq!(ours, [("nvidia", "a=1"), ("nvidia_modeset", "a=1")]);
}

#[test]
fn what_is_to_come_back_is_on_disk_from_before_the_change_until_it_is_decided() {
    let scene = Scene::new();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let on_disk = || read_state(&scene.paths).unwrap().unwrap();
    journal.begin(Phase::Probing).unwrap();
    let seq = journal.intend(step()).unwrap();
    journal.mark(seq, EntryState::Done).unwrap();
    assert!(!on_disk().whole);
    for phase in [Phase::Planning, Phase::Installing, Phase::Ready, Phase::Changing] {
        journal.enter(phase).unwrap();
    }
    assert!(on_disk().whole, "nothing is undone yet");
    assert_eq!(on_disk().previous, [step().step()]);
    journal.mark(seq, EntryState::Undone).unwrap();
    drop(journal);
    // The next agent begins in the state of this one's death, and has less information.
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    journal.begin(Phase::Probing).unwrap();
    for phase in [Phase::Planning, Phase::Changing] {
        journal.enter(phase).unwrap();
    }
    assert!(!on_disk().whole);
    assert_eq!(on_disk().previous, [step().step()]);
    journal.enter(Phase::Ready).unwrap();
    assert!(on_disk().whole && on_disk().previous.is_empty());
}
