//! Modules whose init or exit function hangs.

use longshore_core::failure::ExitCode;
use std::path::Path;

use super::{engine, failed, gpu_host, install};
use crate::engine::*;
use longshore_host::fake::{FakeHost, FakeModule};
use longshore_host::verbs::Stage;

/// Returns a GPU host whose nvidia module hangs.
fn hanging(at: Stage) -> FakeHost {
    let host = gpu_host();
    host.teach("nvidia", |nvidia| *nvidia = FakeModule { hangs: Some(at), ..nvidia.clone() });
    host
}

/// Ends the hang: the exit function removes the module, or the init function loads it.
fn comes_back(host: &FakeHost) {
    host.change(|state| {
        for (name, stage) in std::mem::take(&mut state.wedged) {
            if stage == Stage::Going {
                state.loaded.remove(&name);
                state.instances.remove(&name);
            }
        }
    });
    host.teach("nvidia", |nvidia| nvidia.hangs = None);
}

fn assert_needs_reboot(failure: &Failure, expected: &str) {
    assert_eq!(failure.code(), ExitCode::RolledBack, "{}", failure.report());
    let text = failure.report();
    assert!(text.contains(expected), "{text}");
    assert!(failure.remedy_text().is_some_and(|remedy| remedy.contains("reboot")), "{text}");
}

#[test]
fn an_unload_that_hangs_is_given_up_and_the_rest_is_undone() {
    let host = hanging(Stage::Going);
    let before = host.state();
    let mut journal = Journal::in_memory();
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    assert_needs_reboot(&failure, "delete_module nvidia: no answer from the kernel within 20s");
    // Such a driver is unusable: it is no longer exposed, and nothing is loaded on top of it.
    let state = host.state();
    assert_eq!((&state.mounts, &state.nodes), (&before.mounts, &before.nodes));
    assert_eq!((&state.parameters, &state.dirs), (&before.parameters, &before.dirs));
    let loaded: Vec<_> = state.loaded.keys().map(String::as_str).collect();
    assert_eq!(loaded, ["drm", "ipmi_msghandler", "nvidia"]);
    // The next undo finds the module being unloaded, and does not wait for users.
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    assert_needs_reboot(&failure, "its exit function has not come back");
    comes_back(&host);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
    assert_eq!(journal.live().count(), 0);
}

#[test]
fn a_load_that_hangs_is_given_up_and_the_rest_is_undone() {
    let host = hanging(Stage::Coming);
    let before = host.state();
    let mut journal = Journal::in_memory();
    let stopped = engine(&host).apply(&install(), &mut journal, &CancelFlag::default());
    let failure = failed(stopped);
    assert_needs_reboot(&failure, "nvidia: its init function hangs");
    assert_needs_reboot(&failure, "init_module nvidia: no answer from the kernel within 20s");
    let state = host.state();
    assert!(state.mounts.is_empty() && state.nodes.is_empty());
    assert!(state.loaded.contains_key("nvidia") && !state.loaded.contains_key("nvidia_uvm"));
    comes_back(&host);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_module_that_hangs_while_it_is_put_back_is_said() {
    let host = gpu_host();
    let mut journal = Journal::in_memory();
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    host.teach("nvidia_uvm", |uvm| uvm.hangs = Some(Stage::Coming));
    host.on_look(|state, _| {
        if !state.loaded.contains_key("nvidia_uvm") {
            state.references.insert("nvidia".to_owned(), 1);
        }
    });
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    assert_needs_reboot(&failure, "unloaded, and cannot be loaded again");
    assert!(host.state().mounts.iter().any(|(_, on)| on == Path::new("/run/nvidia/driver")));
}
