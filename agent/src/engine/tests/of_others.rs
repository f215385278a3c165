//! Changes by other programs, which are not undone.

use super::*;
use crate::steps::EntryState;

#[test]
fn what_somebody_else_did_is_not_undone() {
    let host = gpu_host();
    host.change(|state| {
        state.loaded.insert("ipmi_msghandler".to_owned(), String::new());
        state.loaded.insert("ipmi_devintf".to_owned(), String::new());
        state.parameters.insert(FIRMWARE.into(), "/fw".to_owned());
        state.dirs.extend(["/run/nvidia".into(), "/run/nvidia/driver".into()]);
        state.mounts.push(("theirs".to_owned(), "/run/nvidia/driver".into()));
        state.nodes.insert(
            "/dev/nvidiactl".into(),
            Node { major: 195, minor: 255, mode: 0o600, owner: Owner::default() },
        );
    });
    let before = host.state();
    let mut journal = installed(&host);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_busy_mount_is_detached_and_one_below_another_is_left() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.busy("/run/nvidia/driver");
    host.change(|state| state.mounts.push(("theirs".to_owned(), "/store/tree/dev".into())));
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    assert_eq!(failure.code(), ExitCode::RolledBack);
    assert!(failure.to_string().contains("something else is mounted on top"), "{failure}");
    assert!(host.log().contains(&"detach /run/nvidia/driver".to_owned()));
    host.change(|state| state.mounts.pop());
    engine(&host).undo(&mut journal).unwrap();
    assert!(host.state().mounts.is_empty());
}

#[test]
fn a_directory_into_which_others_put_a_file_stays_with_it() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let dir = Path::new("/run/nvidia/driver");
    host.change(|state| state.published.insert(dir.join("theirs"), b"theirs".to_vec()));
    engine(&host).undo(&mut journal).unwrap();
    assert!(host.state().dirs.contains(dir));
    assert_eq!(host.state().published.keys().collect::<Vec<_>>(), [&dir.join("theirs")]);
    assert_eq!(journal.live().count(), 0, "neither is ours any more");
    let kept = journal.state().entries.iter().filter(|e| matches!(e.state, EntryState::Kept(_)));
    assert_eq!(kept.map(|entry| entry.step.kind()).collect::<Vec<_>>(), ["make-dir"]);
}

#[test]
fn a_tmpfs_that_others_mounted_in_the_place_of_ours_stays_theirs() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let dev = Path::new("/store/tree/dev");
    host.change(|state| {
        let ours = state.mounts.iter_mut().find(|(_, on)| on == dev).unwrap();
        "theirs".clone_into(&mut ours.0);
    });
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().mounts, [("theirs".to_owned(), dev.to_path_buf())]);
    assert_eq!(journal.live().count(), 0);
}

#[test]
fn a_directory_in_a_tmpfs_of_ours_goes_with_it_and_with_the_files_of_a_daemon() {
    let host = gpu_host();
    let tmpfs = Path::new("/store/tree/dev");
    let dir = tmpfs.join("nvidia-fabricmanager");
    let steps = [
        Step::MountTmpfs(MountTmpfs { target: tmpfs.into(), label: None }),
        Step::MakeDir(MakeDir { path: dir.clone() }),
    ];
    let mut journal = Journal::in_memory();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    let file = Node { major: 0, minor: 0, mode: 0o600, owner: Owner::default() };
    host.change(|state| state.nodes.insert(dir.join("fabricmanager.cfg"), file));
    engine(&host).undo(&mut journal).unwrap();
    assert!(host.state().mounts.is_empty());
    let states: Vec<_> = journal.state().entries.iter().map(|entry| entry.state.clone()).collect();
    assert_eq!(states, [EntryState::Undone, EntryState::Undone]);
    assert!(!host.log().contains(&format!("rmdir {}", dir.display())), "{:?}", host.log());
}

#[test]
fn a_directory_in_a_tmpfs_that_stays_is_recorded_like_it() {
    let tmpfs = Path::new("/store/tree/dev");
    let steps = [
        Step::MountTmpfs(MountTmpfs { target: tmpfs.into(), label: None }),
        Step::MakeDir(MakeDir { path: tmpfs.join("nvidia-fabricmanager") }),
    ];
    let install = |host: &FakeHost| {
        let mut journal = Journal::in_memory();
        engine(host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
        journal
    };
    // Another mount is on it: both entries wait for the next undo.
    let host = gpu_host();
    let mut journal = install(&host);
    host.change(|state| state.mounts.push(("theirs".to_owned(), tmpfs.to_path_buf())));
    assert!(engine(&host).undo(&mut journal).is_err());
    assert_eq!(journal.live().count(), 2);
    host.change(|state| state.mounts.pop());
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!((journal.live().count(), host.state().mounts.len()), (0, 0));
    // Another one is in its place: neither is ours any more.
    let mut journal = install(&host);
    host.change(|state| "theirs".clone_into(&mut state.mounts[0].0));
    engine(&host).undo(&mut journal).unwrap();
    let kept = |entry: &crate::journal::JournalEntry| matches!(entry.state, EntryState::Kept(_));
    assert!(journal.state().entries.iter().all(kept), "{:?}", journal.state().entries);
}

#[test]
fn a_parameter_that_others_changed_since_stays_theirs() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| state.parameters.insert(FIRMWARE.into(), "/theirs".to_owned()));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().parameters[Path::new(FIRMWARE)], "/theirs");
}

#[test]
fn a_driver_that_was_put_in_the_place_of_ours_is_neither_waited_for_nor_removed() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.knows("nvidia", FakeModule { version: Some("550.9".to_owned()), ..module(&[], &[]) });
    host.change(|state| {
        state.loaded.remove("nvidia_uvm");
        state.loaded.remove("nvidia_modeset");
        state.references.insert("nvidia".to_owned(), 1);
    });
    host.reload("nvidia");
    engine(&host).undo(&mut journal).unwrap();
    let loaded: Vec<String> = host.state().loaded.into_keys().collect();
    assert_eq!(loaded, ["nvidia"]);
    assert_eq!(journal.live().count(), 0);
}

#[test]
fn what_was_mounted_in_the_place_of_ours_stays() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let theirs = ("theirs".to_owned(), std::path::PathBuf::from("/run/nvidia/driver"));
    host.change(|state| {
        state.detach(&theirs.1).unwrap();
        state.mounts.push(theirs.clone());
    });
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().mounts, [theirs]);
}
