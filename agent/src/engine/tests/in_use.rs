//! A driver that is in use when it is to go.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::journal::EntryState;
use longshore_host::fake::FakeState;
use longshore_host::values::DriverUser;

#[test]
fn a_driver_in_use_stays_whole_and_its_user_is_named() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| state.references.insert("nvidia_uvm".to_owned(), 2));
    host.used_by(vec![DriverUser {
        pid: 4711,
        namespace_pid: None,
        comm: "python3".to_owned(),
        container: None,
        pod: None,
        devices: vec!["/dev/nvidia-uvm".to_owned()],
    }]);
    // Daemons are ended, and their settings removed, before other users are looked for.
    let before = FakeState { daemons: BTreeMap::new(), files: BTreeMap::new(), ..host.state() };
    let mut entries: Vec<_> = journal.live().cloned().collect();
    entries.retain(|entry| StartDaemon::recorded(&entry.step).is_none());
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    assert_eq!(failure.code(), ExitCode::InUse);
    assert_eq!(
        failure.to_string(),
        "the driver is in use: nvidia_uvm is held by 2 references of open devices; pid 4711 (python3) \
         holds /dev/nvidia-uvm"
    );
    assert_eq!(host.state(), before);
    assert_eq!(journal.live().cloned().collect::<Vec<_>>(), entries);
    host.change(|state| state.references.clear());
    engine(&host).undo(&mut journal).unwrap();
    assert!(host.state().loaded.is_empty());
}

#[test]
fn a_module_of_others_on_top_of_the_driver_is_a_user() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.knows("gdrdrv", module(&["nvidia"], &[]));
    host.change(|state| state.loaded.insert("gdrdrv".to_owned(), String::new()));
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    let text = failure.to_string();
    let expected = "the driver is in use: nvidia is held by module gdrdrv (GDRCopy's driver: ";
    assert!(text.starts_with(expected), "{text}");
    host.used_by(vec![DriverUser {
        pid: 812,
        namespace_pid: None,
        comm: "nvidia-persiste".to_owned(),
        container: None,
        pod: None,
        devices: vec!["/dev/nvidia0".to_owned()],
    }]);
    let text = engine(&host).undo(&mut journal).unwrap_err().to_string();
    let expected = "pid 812 (nvidia-persiste) holds /dev/nvidia0 (a persistence daemon that is";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_user_who_goes_in_time_is_waited_for() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    host.on_look(|state, look| {
        if look > 12 {
            state.references.clear();
        }
    });
    let in_use_wait = InUseWait { deadline: Duration::from_secs(60), interval: Duration::ZERO };
    Engine { in_use_wait, ..engine(&host) }.undo(&mut journal).unwrap();
    assert!(host.state().loaded.is_empty());
}

/// The references change between the check and the removal of the second module.
#[test]
fn a_user_who_comes_while_modules_go_gets_the_driver_back() {
    let host = gpu_host();
    let mut journal = installed(&host);
    let before = host.state();
    host.on_look(|state, _| {
        if !state.loaded.contains_key("nvidia_uvm") {
            state.references.insert("nvidia".to_owned(), 1);
        }
    });
    let not = engine(&host).undo(&mut journal).unwrap_err();
    assert!(matches!(not, NotUndone::InUse(_)), "{not}");
    assert_eq!(host.state().loaded, before.loaded);
    assert_eq!(host.state().nodes, before.nodes);
    assert_eq!(host.state().mounts, before.mounts);
    assert!(journal.live().all(|entry| entry.state == EntryState::Done));
    host.on_look(|state, _| state.references.clear());
    engine(&host).undo(&mut journal).unwrap();
    assert!(host.state().loaded.is_empty());
}

#[test]
fn a_module_of_the_kernels_own_that_others_came_to_use_is_left_to_them() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| state.loaded.insert("ipmi_devintf".to_owned(), String::new()));
    engine(&host).undo(&mut journal).unwrap();
    let state = host.state();
    let loaded: Vec<_> = state.loaded.keys().map(String::as_str).collect();
    assert_eq!(loaded, ["ipmi_devintf", "ipmi_msghandler"]);
    assert!(state.mounts.is_empty() && state.nodes.is_empty());
    assert_eq!(journal.live().count(), 0);
}
