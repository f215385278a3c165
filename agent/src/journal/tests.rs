use std::path::Path;
use std::path::PathBuf;

use super::*;

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

fn step() -> Step {
    Step::MakeDir { path: PathBuf::from("/a") }
}

fn before() -> Before {
    Before::MissingDirs { dirs: vec![PathBuf::from("/a")] }
}

#[test]
fn an_intent_is_on_disk_when_intend_returns() {
    let scene = Scene::new();
    let mut journal = Journal::open(&scene.paths).unwrap();
    let seq = journal.intend(step(), before()).unwrap();
    let seen = read_state(&scene.paths.state).unwrap().unwrap();
    assert_eq!(
        seen.entries,
        [Entry { seq, step: step(), before: before(), state: EntryState::Intended }]
    );
    journal.mark(seq, EntryState::Done).unwrap();
    assert_eq!(read_state(&scene.paths.state).unwrap().unwrap().entries[0].state, EntryState::Done);
}

#[test]
fn nobody_else_may_open_the_lock_and_so_take_it() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let mode = || {
        let lock = fs::metadata(scene.paths.state.join("lock")).unwrap();
        lock.permissions().mode() & 0o777
    };
    drop(Journal::open(&scene.paths).unwrap());
    assert_eq!(mode(), 0o600);
    // One that an earlier agent made.
    let lock = scene.paths.state.join("lock");
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    drop(Journal::open(&scene.paths).unwrap());
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_second_agent_is_refused_and_the_first_is_named() {
    let scene = Scene::new();
    let first = Journal::open(&scene.paths).unwrap();
    let failure = Journal::open(&scene.paths).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    let pid = std::process::id();
    assert!(
        failure.to_string().contains(&format!("another longshore runs (pid {pid})")),
        "{failure}"
    );
    assert_eq!(holder(&scene.paths.state), Some(pid));
    drop(first);
    assert_eq!(holder(&scene.paths.state), None);
    Journal::open(&scene.paths).unwrap();
}

#[test]
fn another_boot_voids_the_entries() {
    let scene = Scene::new();
    let mut journal = Journal::open(&scene.paths).unwrap();
    journal.intend(step(), before()).unwrap();
    drop(journal);
    assert_eq!(Journal::open(&scene.paths).unwrap().live().count(), 1);
    fs::remove_dir_all(scene.paths.root.join("proc")).unwrap();
    assert_eq!(
        Journal::open(&scene.paths).unwrap().live().count(),
        1,
        "an unknown boot voids nothing"
    );
    scene.boot("two");
    let journal = Journal::open(&scene.paths).unwrap();
    assert_eq!(journal.live().count(), 0);
    assert_eq!(journal.phase(), Phase::Removed);
}

#[test]
fn what_cannot_be_understood_is_refused_and_left_alone() {
    let cases: [(&[u8], ExitCode, &str); 6] = [
        (b"", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 1, \"boot", ExitCode::Verification, "cannot be understood"),
        (b"\x00\xff\xfe", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 1}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": -3}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 2, \"new\": []}", ExitCode::Preflight, "has format 2"),
    ];
    for (bytes, code, text) in cases {
        let scene = Scene::new();
        fs::create_dir_all(&scene.paths.state).unwrap();
        fs::write(scene.state_file(), bytes).unwrap();
        let failure = Journal::open(&scene.paths).unwrap_err();
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
    assert_eq!(Journal::open(&scene.paths).unwrap_err().code(), ExitCode::Preflight);
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
    let first = journal.intend(step(), before()).unwrap();
    let second = journal.intend(step(), before()).unwrap();
    journal.mark(first, EntryState::Undone).unwrap();
    journal.begin(Phase::Probing).unwrap();
    assert_eq!(journal.live().map(|e| e.seq).collect::<Vec<_>>(), [second]);
    assert_eq!(journal.next_seq(), second + 1);
}

#[test]
fn there_is_no_state_where_no_agent_ever_was() {
    assert_eq!(read_state(Path::new("/nonexistent/longshore")).unwrap(), None);
    assert_eq!(holder(Path::new("/nonexistent/longshore")), None);
}

#[test]
fn entries_below_another_host_root_are_not_taken_for_undone() {
    let mut scene = Scene::new();
    let (host, other) = (scene.paths.root.join("host"), scene.paths.root.join("other"));
    fs::create_dir_all(&host).unwrap();
    scene.paths.host_root = host.clone();
    let mut journal = Journal::open(&scene.paths).unwrap();
    let seq = journal.intend(step(), before()).unwrap();
    drop(journal);
    drop(Journal::open(&scene.paths).unwrap());
    scene.paths.host_root = scene.paths.root.clone();
    let failure = Journal::open(&scene.paths).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    // The same path, and another directory.
    fs::rename(&host, &other).unwrap();
    fs::create_dir(&host).unwrap();
    scene.paths.host_root = host.clone();
    assert!(Journal::open(&scene.paths).is_err());
    fs::remove_dir(&host).unwrap();
    fs::rename(&other, &host).unwrap();
    let mut journal = Journal::open(&scene.paths).unwrap();
    journal.mark(seq, EntryState::Undone).unwrap();
    drop(journal);
    scene.paths.host_root = scene.paths.root.clone();
    assert_eq!(Journal::open(&scene.paths).unwrap().state().host_root, None);
}

#[test]
fn a_pipe_in_the_place_of_the_state_is_refused_and_not_waited_for() {
    let scene = Scene::new();
    fs::create_dir_all(&scene.paths.state).unwrap();
    let mode = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
    nix::unistd::mkfifo(&scene.state_file(), mode).unwrap();
    let failure = read_state(&scene.paths.state).unwrap_err();
    assert_eq!(failure.code(), ExitCode::Preflight);
    assert!(failure.report().contains("it is no file"), "{}", failure.report());
    assert!(failure.remedy_text().is_some());
}

fn load(name: &str, version: &str) -> Step {
    Step::LoadModule {
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
    let kernels = Step::LoadModule {
        name: "drm".to_owned(),
        origin: ModuleOrigin::Kernel { file: "drm.ko".into() },
        parameters: String::new(),
        version: None,
        srcversion: None,
    };
    for step in [kernels, load("nvidia", "535"), load("nvidia_uvm", "535"), load("gone", "535")] {
        let seq = journal.intend(step, Before::NotLoaded).unwrap();
        journal.mark(seq, EntryState::Done).unwrap();
    }
    // Whether this one came to be loaded is not known: what is there counts as ours.
    journal.intend(load("nvidia_modeset", "535"), Before::NotLoaded).unwrap();
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
    let mut journal = Journal::open(&scene.paths).unwrap();
    let on_disk = || read_state(&scene.paths.state).unwrap().unwrap();
    journal.begin(Phase::Probing).unwrap();
    let seq = journal.intend(step(), before()).unwrap();
    journal.mark(seq, EntryState::Done).unwrap();
    assert!(!on_disk().whole);
    for phase in [Phase::Planning, Phase::Installing, Phase::Ready, Phase::Changing] {
        journal.enter(phase).unwrap();
    }
    assert!(on_disk().whole, "nothing is undone yet");
    assert_eq!(on_disk().previous, [step()]);
    journal.mark(seq, EntryState::Undone).unwrap();
    drop(journal);
    // The next agent begins where this one died, and has less to go by.
    let mut journal = Journal::open(&scene.paths).unwrap();
    journal.begin(Phase::Probing).unwrap();
    for phase in [Phase::Planning, Phase::Changing] {
        journal.enter(phase).unwrap();
    }
    assert!(!on_disk().whole);
    assert_eq!(on_disk().previous, [step()]);
    journal.enter(Phase::Ready).unwrap();
    assert!(on_disk().whole && on_disk().previous.is_empty());
}
