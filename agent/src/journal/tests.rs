use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rstest::rstest;

use super::*;
use crate::steps::{
    LoadModule, MakeDir, MissingDirs, ModuleOrigin, MountTmpfs, Mounts, NotLoaded, Recorded,
};
use longshore_host::facts::LoadedModule;

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
    let Place::Dir { file, .. } = &journal.place else { panic!("it is on disk") };
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
        [Entry { seq, step: step(), state: EntryState::Intended, instance: None }]
    );
    journal.mark(seq, EntryState::Done).unwrap();
    assert_eq!(read_state(&scene.paths).unwrap().unwrap().entries[0].state, EntryState::Done);
}

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
fn what_cannot_be_understood_is_refused_and_left_alone() {
    let cases: [(&[u8], ExitCode, &str); 7] = [
        (b"", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 1, \"boot", ExitCode::Verification, "cannot be understood"),
        (b"\x00\xff\xfe", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 1}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": -3}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 0, \"boot_id\": null}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 5, \"new\": []}", ExitCode::Preflight, "has format 5"),
    ];
    for (bytes, code, text) in cases {
        let scene = Scene::new();
        fs::create_dir_all(&scene.paths.state).unwrap();
        fs::write(scene.state_file(), bytes).unwrap();
        let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
        assert_eq!(failure.code(), code, "{failure}");
        assert!(failure.to_string().contains(text), "{failure}");
        assert!(failure.remedy_text().is_some());
        assert_eq!(fs::read(scene.state_file()).unwrap(), bytes);
    }
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

/// State of an agent of format 1, which is replaced by this one while its driver is installed.
const FORMAT_1: &str = include_str!("tests/format-1.json");

#[test]
fn the_state_of_an_older_agent_is_understood_and_written_anew() {
    let scene = Scene::new();
    fs::create_dir_all(&scene.paths.state).unwrap();
    fs::write(scene.state_file(), FORMAT_1).unwrap();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let live: Vec<_> = journal.live().map(|e| (e.seq, e.instance)).collect();
    assert_eq!(live, [(2, None)]);
    journal.record_done(2, Some(77));
    journal.flush().unwrap();
    drop(journal);
    let state = read_state(&scene.paths).unwrap().unwrap();
    assert_eq!((state.format, state.entries[1].instance), (FORMAT, Some(77)));
}

/// Records of all formats, with an entry of every kind in the newest.
#[rstest]
#[case(include_str!("tests/format-1.json"), 1)]
#[case(include_str!("tests/format-2.json"), 2)]
#[case(include_str!("tests/format-3.json"), 3)]
#[case(include_str!("tests/format-4.json"), FORMAT)]
fn a_record_of_every_format_is_read_and_its_entries_are_written_the_same(
    #[case] text: &str,
    #[case] format: u32,
) {
    let state = parse_state(Path::new("state.json"), text.as_bytes()).unwrap();
    assert_eq!(state.format, format);
    let again = serde_json::to_string_pretty(&state).unwrap();
    if format == FORMAT {
        assert_eq!(again, text.trim_end(), "byte for byte");
        let kinds: BTreeSet<_> = state.entries.iter().map(|entry| entry.step.kind()).collect();
        assert_eq!(kinds, crate::steps::Step::KINDS.iter().copied().collect());
    }
    let entries = |text: &str| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        value["entries"].clone()
    };
    assert_eq!(entries(&again), entries(text));
}

#[test]
fn a_step_with_the_state_before_another_kind_of_step_is_refused_when_it_is_read() {
    let text = include_str!("tests/format-3.json");
    let forged = text.replacen(r#""was": "mounts""#, r#""was": "not-loaded""#, 1);
    for any_entry in [true, false] {
        let mut scene = Scene::new();
        scene.paths.any_entry = any_entry;
        fs::create_dir_all(&scene.paths.state).unwrap();
        fs::write(scene.state_file(), &forged).unwrap();
        let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Verification);
        let why = "entry 4 (bind): no such step has this state before it";
        assert!(failure.to_string().ends_with(why), "{failure}");
        assert_eq!(fs::read_to_string(scene.state_file()).unwrap(), forged, "it is left alone");
    }
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
        let step = MountTmpfs { target: path.into() };
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

/// Kinds of files in the place of one of ours: they are refused, without blocking.
#[derive(Debug, Clone, Copy)]
enum InTheWay {
    Pipe,
    Directory,
    Link,
    DeadLink,
    Socket,
}

impl InTheWay {
    const ALL: [InTheWay; 5] =
        [InTheWay::Pipe, InTheWay::Directory, InTheWay::Link, InTheWay::DeadLink, InTheWay::Socket];

    fn put(self, path: &Path) {
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

mod place {
    //! Record in a place where others can write, and the move from there.

    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// Record as an agent before the move wrote it, with an entry of an attacker.
    const FORGED: &str = r#"{
      "format": 2, "boot_id": "one", "agent": 7, "phase": "ready", "plan": null,
      "entries": [{"seq": 1,
        "step": {"do": "write-parameter", "path": "/proc/sys/kernel/core_pattern", "value": "core"},
        "before": {"was": "value", "value": "|/evil"}, "state": "done"}]
    }"#;

    /// The same, with a step that agents make.
    const EARLIER: &str = r#"{
      "format": 2, "boot_id": "one", "agent": 7, "phase": "ready", "plan": null,
      "entries": [{"seq": 1, "step": {"do": "mount-tmpfs", "target": "/run/nvidia/driver/dev"},
        "before": {"was": "mounts", "count": 0}, "state": "done"}]
    }"#;

    impl Scene {
        /// Returns an agent with a record that others can write to.
        fn sealed() -> Self {
            let mut scene = Self::new();
            scene.paths.sealed = true;
            scene.paths.any_entry = false;
            scene
        }

        /// Returns an agent after which an agent from before the move left its record.
        fn moved() -> Self {
            let mut scene = Self::new();
            scene.paths.any_entry = false;
            scene.paths.earlier_state = Some(scene.earlier().parent().unwrap().to_path_buf());
            fs::create_dir_all(&scene.paths.store).unwrap();
            scene
        }

        fn earlier(&self) -> PathBuf {
            self.paths.root.join("shared/longshore/state.json")
        }

        fn put(&self, path: &Path, text: &str) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn refuses(&self, why: &str) {
            for failure in [
                Journal::open(&self.paths, Disk::default()).unwrap_err(),
                read_state(&self.paths).unwrap_err(),
            ] {
                assert_eq!(failure.code(), ExitCode::Verification, "{failure}");
                assert!(failure.to_string().contains(why), "{failure}");
                assert!(failure.remedy_text().is_some());
            }
        }
    }

    fn tmpfs() -> Recorded {
        let target = PathBuf::from("/run/nvidia/driver/dev");
        MountTmpfs { target }.observed(Mounts { count: 0 })
    }

    #[test]
    fn a_sealed_record_is_read_again_and_one_byte_makes_it_nobodys() {
        let scene = Scene::sealed();
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        journal.intend(tmpfs()).unwrap();
        drop(journal);
        assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 1);
        let text = fs::read_to_string(scene.state_file()).unwrap();
        fs::write(scene.state_file(), text.replace("intended", "undone")).unwrap();
        scene.refuses("its seal is not by the key in this store");
        fs::write(scene.state_file(), text.split("seal ").next().unwrap()).unwrap();
        scene.refuses("it has no seal");
        fs::write(scene.state_file(), &text).unwrap();
        assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 1);
        fs::remove_dir_all(&scene.paths.store).unwrap();
        scene.refuses("this store has no key");
        assert_eq!(fs::read_to_string(scene.state_file()).unwrap(), text, "it is left alone");
    }

    #[test]
    fn a_forged_record_is_refused_with_the_entry_named_and_left_alone() {
        let mut private = Scene::new();
        private.paths.any_entry = false;
        for scene in [Scene::sealed(), private] {
            scene.put(&scene.state_file(), FORGED);
            scene.refuses("entry 1 (write-parameter)");
            assert_eq!(fs::read_to_string(scene.state_file()).unwrap(), FORGED);
        }
    }

    /// Root in a container with /run/nvidia can put anything there before the first agent starts.
    #[test]
    fn what_is_forged_in_the_earlier_place_is_passed_over_and_keeps_no_agent_from_its_work() {
        for text in [FORGED, "{", "{\"format\": 99}"] {
            let scene = Scene::moved();
            scene.put(&scene.earlier(), text);
            assert_eq!(read_state(&scene.paths).unwrap(), None);
            let why = believed::passed_over(&scene.paths).unwrap();
            assert!(why.to_string().contains("state.json"), "{why}");
            assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 0);
            assert_eq!(fs::read_to_string(scene.earlier()).unwrap(), text, "it is left alone");
        }
        let why = {
            let scene = Scene::moved();
            scene.put(&scene.earlier(), FORGED);
            believed::passed_over(&scene.paths).unwrap().to_string()
        };
        assert!(why.contains("entry 1 (write-parameter)"), "{why}");
        for what in InTheWay::ALL {
            let scene = Scene::moved();
            what.put(&scene.earlier());
            Journal::open(&scene.paths, Disk::default()).unwrap();
            let scene = Scene::moved();
            scene.put(&scene.earlier(), EARLIER);
            what.put(&scene.earlier().with_file_name("lock"));
            assert_eq!(
                Journal::open(&scene.paths, Disk::default()).unwrap().live().count(),
                0,
                "{what:?}"
            );
        }
    }

    #[test]
    fn an_earlier_record_is_taken_over_once() {
        let scene = Scene::moved();
        scene.put(&scene.earlier(), EARLIER);
        assert_eq!(read_state(&scene.paths).unwrap().unwrap().entries.len(), 1);
        assert!(scene.earlier().exists(), "who only looks moves nothing");
        let journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        assert_eq!(journal.live().count(), 1);
        assert!(!scene.earlier().exists());
        drop(journal);
        // As after a reboot, when another process is there first.
        fs::remove_file(scene.state_file()).unwrap();
        scene.put(&scene.earlier(), EARLIER);
        assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 0);
        assert!(scene.earlier().exists(), "it is passed over");
    }

    /// Root in a container can write a whole record there before the first agent that seals has
    /// run.
    #[test]
    fn an_earlier_record_without_a_seal_brings_neither_directories_nor_steps_to_come() {
        let made_for =
            r#""made_for": [{"driver_root": "/home", "store": "/home/store"}], "entries""#;
        let scene = Scene::moved();
        let elsewhere = EARLIER.replace("/run/nvidia/driver/dev", "/home/dev");
        scene.put(&scene.earlier(), &elsewhere.replace("\"entries\"", made_for));
        assert!(read_state(&scene.paths).unwrap().is_none(), "an entry below /home is no agent's");
        let planned = r#""whole": false, "previous": [
            {"do": "mount-tmpfs", "target": "/run/nvidia/driver/run"}], "entries""#;
        scene.put(&scene.earlier(), &EARLIER.replace("\"entries\"", planned));
        let state = read_state(&scene.paths).unwrap().unwrap();
        assert!(state.previous.is_empty() && state.made_for.is_empty());
        assert_eq!(state.entries.len(), 1);
    }

    /// Unloading an idle one, such as a network filter, takes effect on the host.
    #[test]
    fn an_earlier_record_without_a_seal_names_no_module_of_the_hosts_kernel() {
        let scene = Scene::moved();
        let load = r#"[{"seq": 1, "state": "intended", "before": {"was": "not-loaded"},
            "step": {"do": "load-module", "name": "br_netfilter", "parameters": "",
                "version": null, "srcversion": null,
                "origin": {"kernel": {"file": "kernel/net/bridge/br_netfilter.ko"}}}}, {"seq": 2"#;
        let forged = EARLIER.replace("[{\"seq\": 1", load);
        assert_ne!(forged, EARLIER);
        scene.put(&scene.earlier(), &forged);
        let entries = read_state(&scene.paths).unwrap().unwrap().entries;
        let kinds: Vec<_> = entries.iter().map(|entry| entry.step.kind()).collect();
        assert_eq!(kinds, ["mount-tmpfs"]);
    }

    #[test]
    fn the_record_of_an_agent_that_seals_is_taken_over_whenever_it_is_found() {
        let moved = Scene::moved();
        let dir = moved.paths.earlier_state.clone().unwrap();
        let sealing =
            Paths { state: dir, earlier_state: None, sealed: true, ..moved.paths.clone() };
        for _ in 0..2 {
            let mut journal = Journal::open(&sealing, Disk::default()).unwrap();
            journal.intend(tmpfs()).unwrap();
            let held = Journal::try_open(&moved.paths, Disk::default()).unwrap().unwrap_err();
            assert_eq!(held.pid, Some(std::process::id()), "it is at work");
            drop(journal);
            assert_eq!(Journal::open(&moved.paths, Disk::default()).unwrap().live().count(), 1);
            assert!(!moved.earlier().exists());
            fs::remove_file(moved.state_file()).unwrap();
        }
    }

    /// Changes an earlier record and its directory so that not only root can write to it.
    type Change = fn(&Path);

    #[test]
    fn an_earlier_record_that_is_not_roots_alone_is_passed_over() {
        let cases: [(&str, Change); 5] = [
            ("belongs to user 4711", |file| chown(file, Some(4711), None).unwrap()),
            ("others can write", |file| {
                fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
            }),
            ("others can write", |file| {
                let dir = file.parent().unwrap();
                fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
            }),
            ("belongs to user 4711", |file| {
                chown(file.parent().unwrap(), Some(4711), None).unwrap();
            }),
            ("2 names", |file| fs::hard_link(file, file.with_extension("link")).unwrap()),
        ];
        for (why, change) in cases {
            let scene = Scene::moved();
            scene.put(&scene.earlier(), EARLIER);
            change(&scene.earlier());
            let finding = believed::passed_over(&scene.paths).unwrap().to_string();
            assert!(finding.contains(why), "{finding}");
            assert_eq!(
                Journal::open(&scene.paths, Disk::default()).unwrap().live().count(),
                0,
                "{why}"
            );
            assert_eq!(fs::read_to_string(scene.earlier()).unwrap(), EARLIER, "it is left alone");
        }
    }

    #[test]
    fn the_record_is_its_owners_alone_and_nobody_else_reads_the_mark() {
        let scene = Scene::new();
        // Made as `mkdir`, a runtime or the kubelet makes it.
        fs::create_dir(&scene.paths.state).unwrap();
        fs::set_permissions(&scene.paths.root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&scene.paths.state, fs::Permissions::from_mode(0o755)).unwrap();
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        journal.intend(step()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&scene.paths.state), mode(&scene.state_file())), (0o700, 0o600));
        let read =
            Command::new("cat").arg(scene.state_file()).uid(4711).gid(4711).output().unwrap();
        assert!(!read.status.success() && read.stdout.is_empty());
    }

    #[test]
    fn a_state_directory_that_others_can_have_written_is_refused() {
        let scene = Scene::new();
        fs::create_dir(&scene.paths.state).unwrap();
        fs::set_permissions(&scene.paths.state, fs::Permissions::from_mode(0o777)).unwrap();
        scene.put(&scene.state_file(), EARLIER);
        scene.refuses("others can write to it (mode 0777)");
    }

    #[test]
    fn a_step_that_the_next_agent_would_not_believe_is_not_begun() {
        let mut scene = Scene::new();
        scene.paths.any_entry = false;
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        let failure = journal.intend(step()).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Bug);
        assert_eq!(journal.live().count(), 0);
        journal.intend(tmpfs()).unwrap();
    }
}
