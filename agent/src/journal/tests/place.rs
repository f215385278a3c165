//! Record in a place where others can write, and the move from there.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::in_the_way::InTheWay;
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

    fn set_aside(&self) -> PathBuf {
        self.paths.state.join("state.json.unsealed")
    }

    /// Checks that a record in its place is passed over for a reason that names it, and kept.
    fn passes_over(&self, text: &str, why: &str) {
        self.put(&self.state_file(), text);
        assert_eq!(read_state(&self.paths).unwrap(), None);
        let failure = believed::passed_over(&self.paths).unwrap();
        let named = format!("{} is passed over: {why}", self.state_file().display());
        assert_eq!(failure.to_string(), named);
        assert_eq!(fs::read_to_string(self.state_file()).unwrap(), text, "it is left alone");
        assert_eq!(Journal::open(&self.paths, Disk::default()).unwrap().live().count(), 0);
        assert_eq!(fs::read_to_string(self.set_aside()).unwrap(), text, "it is kept");
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
    MountTmpfs { target, label: None }.observed(Mounts { count: 0 })
}

#[test]
fn a_sealed_record_is_read_again_and_one_byte_makes_it_nobodys() {
    let scene = Scene::sealed();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    journal.intend(tmpfs()).unwrap();
    drop(journal);
    assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 1);
    let text = fs::read_to_string(scene.state_file()).unwrap();
    let changed = text.replace("intended", "undone");
    scene.passes_over(&changed, "its seal is not by the key in this store");
    scene.passes_over(text.split("seal ").next().unwrap(), "it has no seal");
    fs::write(scene.state_file(), &text).unwrap();
    assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 1);
    // The next store of an agent whose container ended.
    fs::remove_dir_all(&scene.paths.store).unwrap();
    scene.passes_over(&text, "it is sealed, and this store has no key");
}

/// Root in a container can put it there at any time: it must neither be obeyed nor end the agent.
#[test]
fn what_has_no_seal_is_passed_over_set_aside_and_named_and_the_agent_writes_its_own() {
    for text in [FORGED, EARLIER, "{", "{\"format\": 99}"] {
        let scene = Scene::sealed();
        fs::create_dir_all(&scene.paths.store).unwrap();
        scene.passes_over(text, "it has no seal");
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        journal.intend(tmpfs()).unwrap();
        drop(journal);
        assert_eq!(read_state(&scene.paths).unwrap().unwrap().entries.len(), 1);
        let why = believed::passed_over(&scene.paths).unwrap();
        assert!(why.to_string().contains("state.json.unsealed"), "{why}");
    }
}

#[test]
fn a_forged_record_is_refused_with_the_entry_named_and_left_alone() {
    let mut scene = Scene::new();
    scene.paths.any_entry = false;
    scene.put(&scene.state_file(), FORGED);
    scene.refuses("entry 1 (write-parameter)");
    assert_eq!(fs::read_to_string(scene.state_file()).unwrap(), FORGED);
}

/// Root in a container with /run/nvidia can put anything there before the first agent starts.
#[test]
fn what_is_forged_in_the_earlier_place_is_passed_over_and_keeps_no_agent_from_its_work() {
    for text in [FORGED, EARLIER, "{", "{\"format\": 99}"] {
        let scene = Scene::moved();
        scene.put(&scene.earlier(), text);
        assert_eq!(read_state(&scene.paths).unwrap(), None);
        let why = believed::passed_over(&scene.paths).unwrap();
        assert!(why.to_string().contains("state.json"), "{why}");
        assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 0);
        let remedy = why.remedy_text().unwrap();
        assert!(remedy.contains("unload --take-over-unsealed"), "{remedy}");
        assert_eq!(fs::read_to_string(scene.earlier()).unwrap(), text, "it is left alone");
    }
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

/// Takes over, as `longshore unload --take-over-unsealed` does.
fn taken_over(scene: &Scene) -> Result<Option<Journal>, Failure> {
    let mut journal = Journal::open(&scene.paths, Disk::default())?;
    let taken = journal.take_over_unsealed(&scene.paths)?;
    Ok(taken.then_some(journal))
}

/// Both places of a record without a seal, with a record in them.
fn unsealed(text: &str) -> [Scene; 2] {
    let (sealed, moved) = (Scene::sealed(), Scene::moved());
    sealed.put(&sealed.state_file(), text);
    moved.put(&moved.earlier(), text);
    [sealed, moved]
}

#[test]
fn an_unsealed_record_is_taken_over_once_and_by_a_person_alone() {
    for scene in unsealed(EARLIER) {
        assert_eq!(Journal::open(&scene.paths, Disk::default()).unwrap().live().count(), 0);
        let journal = taken_over(&scene).unwrap().unwrap();
        assert_eq!(journal.live().count(), 1);
        drop(journal);
        assert!(!scene.earlier().exists() && !scene.set_aside().exists());
        // From now on it is the agent's own, also if the command is killed.
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        assert_eq!(journal.live().count(), 1);
        let failure = journal.take_over_unsealed(&scene.paths).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Preflight, "{failure}");
        journal.mark(1, EntryState::Undone).unwrap();
        assert!(!journal.take_over_unsealed(&scene.paths).unwrap(), "there is no other one");
        drop(journal);
        assert!(believed::passed_over(&scene.paths).is_none());
    }
    assert!(taken_over(&Scene::moved()).unwrap().is_none());
    assert!(taken_over(&Scene::new()).unwrap().is_none());
}

#[test]
fn a_record_of_another_boot_or_of_an_agent_at_work_is_not_taken_over() {
    for scene in unsealed(&EARLIER.replace("\"one\"", "\"zero\"")) {
        assert_eq!(taken_over(&scene).unwrap().unwrap().live().count(), 0);
    }
    let [_, scene] = unsealed(EARLIER);
    let held = Lock::take(scene.earlier().parent().unwrap()).unwrap().unwrap();
    assert_eq!(taken_over(&scene).unwrap_err().code(), ExitCode::Preflight);
    drop(held);
    assert!(taken_over(&scene).unwrap().is_some());
}

/// A record as root in a container of a new node writes it before the first agent: undone, it leads the
/// kernel's firmware search into a pod's directory, and opens another driver's devices to everybody.
const OF_A_POD: &str = r#"{
  "format": 2, "boot_id": null, "agent": 7, "phase": "ready", "plan": null,
  "entries": [
    {"seq": 1, "state": "done", "step": {"do": "write-parameter",
        "path": "/sys/module/firmware_class/parameters/path", "value": "/run/nvidia/driver/lib/firmware"},
     "before": {"was": "value",
        "value": "/var/lib/kubelet/pods/6b1e/volumes/kubernetes.io~empty-dir/fw"}},
    {"seq": 2, "state": "done", "step": {"do": "make-nodes", "dirs": ["/dev"]},
     "before": {"was": "nodes", "missing_dirs": [], "nodes": [{"path": "/dev/nvidia9",
        "made": {"major": 195, "minor": 9, "mode": 438},
        "was": {"major": 243, "minor": 1, "mode": 511, "owner": {"uid": 65534, "gid": 65534}}}]}}]
}"#;

#[test]
fn a_record_of_a_pod_on_a_new_node_changes_nothing_of_the_host() {
    use crate::engine::fake_images::FakeImages;
    use crate::engine::{Engine, InUseWait};
    use crate::telemetry::Telemetry;
    use longshore_host::fake::FakeHost;

    let host = FakeHost::with_dirs(["/dev"]);
    host.change(|state| {
        state.parameters.insert(FIRMWARE_PATH.into(), "/run/nvidia/driver/lib/firmware".into());
    });
    let before = host.state();
    let (in_use_wait, telemetry) = (InUseWait::with_deadline(Duration::ZERO), Telemetry::default());
    let engine = Engine {
        host: &host,
        images: &FakeImages,
        in_use_wait,
        telemetry: &telemetry,
        refuses_missing_gpus: false,
    };
    for scene in unsealed(OF_A_POD) {
        // A new node: there is no store yet.
        assert!(!scene.paths.sealed || !scene.paths.store.exists());
        assert_eq!(read_state(&scene.paths).unwrap(), None);
        let changes = recorded(&scene.paths);
        assert!(changes.mounts.is_empty() && changes.files.is_empty() && !changes.firmware_path);
        let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
        engine.undo(&mut journal).unwrap();
        assert_eq!(host.state(), before);
        drop(journal);
        // Nor does a person's word have it obeyed.
        let refused = taken_over(&scene).unwrap_err();
        assert_eq!(refused.code(), ExitCode::Verification);
        assert!(refused.to_string().contains("entry 1 (write-parameter)"), "{refused}");
    }
}

/// Root in a container can write a whole record there.
#[test]
fn an_unsealed_record_brings_neither_directories_nor_steps_to_come_nor_a_whole_driver() {
    let made_for = r#""made_for": [{"driver_root": "/home", "store": "/home/store"}], "entries""#;
    let elsewhere = EARLIER.replace("/run/nvidia/driver/dev", "/home/dev");
    for scene in unsealed(&elsewhere.replace("\"entries\"", made_for)) {
        let refused = taken_over(&scene).unwrap_err();
        assert_eq!(refused.code(), ExitCode::Verification, "an entry below /home is no agent's");
    }
    let planned = r#""whole": true, "previous": [
        {"do": "mount-tmpfs", "target": "/run/nvidia/driver/run"}], "entries""#;
    for scene in unsealed(&EARLIER.replace("\"entries\"", planned)) {
        drop(taken_over(&scene).unwrap().unwrap());
        let state = read_state(&scene.paths).unwrap().unwrap();
        let own = MadeFor {
            driver_root: scene.paths.driver_root.clone(),
            store: scene.paths.store.clone(),
        };
        assert!(state.previous.is_empty() && !state.whole);
        assert_eq!(state.made_for, [own]);
        assert_eq!(state.entries.len(), 1);
    }
}

/// Unloading an idle one, such as a network filter, takes effect on the host.
#[test]
fn an_unsealed_record_names_no_module_of_the_hosts_kernel() {
    let load = r#"[{"seq": 1, "state": "intended", "before": {"was": "not-loaded"},
        "step": {"do": "load-module", "name": "br_netfilter", "parameters": "",
            "version": null, "srcversion": null,
            "origin": {"kernel": {"file": "kernel/net/bridge/br_netfilter.ko"}}}}, {"seq": 2"#;
    let forged = EARLIER.replace("[{\"seq\": 1", load);
    assert_ne!(forged, EARLIER);
    for scene in unsealed(&forged) {
        drop(taken_over(&scene).unwrap().unwrap());
        let entries = read_state(&scene.paths).unwrap().unwrap().entries;
        let kinds: Vec<_> = entries.iter().map(|entry| entry.step.kind()).collect();
        assert_eq!(kinds, ["mount-tmpfs"]);
    }
}

#[test]
fn the_record_of_an_agent_that_seals_is_taken_over_whenever_it_is_found() {
    let moved = Scene::moved();
    let dir = moved.paths.earlier_state.clone().unwrap();
    let sealing = Paths { state: dir, earlier_state: None, sealed: true, ..moved.paths.clone() };
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
    let read = Command::new("cat").arg(scene.state_file()).uid(4711).gid(4711).output().unwrap();
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
