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
    let made_for = r#""made_for": [{"driver_root": "/home", "store": "/home/store"}], "entries""#;
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
