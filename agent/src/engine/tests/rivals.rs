//! Other programs that load the driver's modules, too: their modules stay loaded
//! (docs/internals/decisions/whose-module.md).

use longshore_core::failure::ExitCode;
use nix::errno::Errno;

use super::{engine, failed, gpu_host, install, load};
use crate::engine::*;
use crate::journal::EntryState;
use crate::steps::{LoadModule, NotLoaded};
use longshore_host::fake::{FakeHost, FakeModule, Fault};

/// Returns the plan with a parameter for nvidia.
fn install_with(parameter: &str) -> Vec<Step> {
    let mut steps = install();
    for step in &mut steps {
        if let Step::LoadModule(LoadModule { name, parameters, .. }) = step
            && name == "nvidia"
        {
            parameter.clone_into(parameters);
        }
    }
    steps
}

fn loaded(host: &FakeHost) -> Vec<String> {
    host.state().loaded.into_keys().collect()
}

fn applied(host: &FakeHost, steps: &[Step]) -> (Result<(), Stopped>, Journal) {
    let mut journal = Journal::in_memory();
    (engine(host).apply(steps, &mut journal, &CancelFlag::default()), journal)
}

#[test]
fn a_module_that_others_load_just_before_us_serves_and_stays_theirs() {
    let host = gpu_host();
    host.rival_load("nvidia", "NVreg_A=1");
    let (applied, mut journal) = applied(&host, &install_with("NVreg_A=1"));
    applied.unwrap();
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(loaded(&host), ["drm", "ipmi_msghandler", "nvidia"], "with what it stands on");
    assert_eq!(journal.live().count(), 0);
}

#[test]
fn one_with_other_parameters_is_refused_and_stays_theirs() {
    let host = gpu_host();
    host.rival_load("nvidia", "NVreg_A=0");
    let (applied, journal) = applied(&host, &install_with("NVreg_A=1"));
    let failure = failed(applied);
    assert_eq!(failure.code(), ExitCode::KernelRefused);
    assert!(failure.to_string().contains("NVreg_A was given as \"1\" and is \"0\""), "{failure}");
    assert_eq!(loaded(&host), ["drm", "ipmi_msghandler", "nvidia"]);
    assert_eq!(journal.live().count(), 0);
}

#[test]
fn what_the_kernel_refused_us_is_not_ours_when_others_load_it() {
    let host = gpu_host();
    let refuse = |refused| host.teach("nvidia", |nvidia| nvidia.refused = refused);
    refuse(Some(Errno::ENODEV));
    host.fails(None);
    let mut journal = Journal::in_memory();
    let steps = ["drm", "ipmi_msghandler", "nvidia"].map(load);
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap_err();
    let entry = journal.state().entries.iter().find(|e| e.step.step() == load("nvidia")).unwrap();
    assert_eq!(entry.state, EntryState::Undone);
    refuse(None);
}

#[test]
fn the_same_build_loaded_anew_by_others_is_theirs() {
    let host = gpu_host();
    let (done, mut journal) = applied(&host, &install());
    done.unwrap();
    for module in ["nvidia", "nvidia_uvm", "nvidia_modeset"] {
        host.reload(module);
    }
    // The next agent can use it as well, and it is not that agent's own.
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    host.change(|state| state.references.insert("nvidia_uvm".to_owned(), 1));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(loaded(&host), ["drm", "ipmi_msghandler", "nvidia", "nvidia_modeset", "nvidia_uvm"]);
    assert_eq!(journal.live().count(), 0);
}

/// Ownership of a loaded module by an intent whose agent died.
#[test]
fn an_intent_is_taken_for_carried_out_where_what_is_there_is_what_it_was_to_load() {
    let other = |version: &str| FakeModule { version: Some(version.into()), ..Default::default() };
    let cases = [
        ("NVreg_A=1", other("535.1"), true),
        ("NVreg_A=0", other("535.1"), false),
        ("NVreg_A=1", other("550.9"), false),
    ];
    for (given, module, ours) in cases {
        let host = gpu_host();
        host.knows("nvidia", module);
        let step = install_with("NVreg_A=1")
            .iter()
            .filter_map(LoadModule::from_step)
            .find(|step| step.name == "nvidia")
            .cloned()
            .unwrap();
        let mut journal = Journal::in_memory();
        journal.intend(step.observed(NotLoaded {})).unwrap();
        host.change(|state| state.loaded.insert("nvidia".to_owned(), given.to_owned()));
        engine(&host).undo(&mut journal).unwrap();
        assert_eq!(loaded(&host).is_empty(), ours, "{given}");
    }
}

/// An older longshore recorded no number of the loading.
#[test]
fn an_entry_without_a_number_is_known_by_its_versions() {
    for (version, ours) in [("535.1", true), ("550.9", false)] {
        let host = gpu_host();
        host.teach("nvidia", |nvidia| nvidia.version = Some(version.to_owned()));
        let mut journal = Journal::in_memory();
        let nvidia = LoadModule::from_step(&load("nvidia")).cloned().unwrap();
        let seq = journal.intend(nvidia.observed(NotLoaded {})).unwrap();
        journal.record_done(seq, None);
        host.change(|state| state.loaded.insert("nvidia".to_owned(), String::new()));
        engine(&host).undo(&mut journal).unwrap();
        assert_eq!(loaded(&host).is_empty(), ours, "{version}");
    }
}

/// nvidia-smi opens /dev/nvidiactl between the check and the unload, and closes it again.
#[test]
fn who_opens_the_driver_for_a_moment_while_it_goes_is_waited_for() {
    let host = gpu_host();
    let before = host.state();
    let (done, mut journal) = applied(&host, &install());
    done.unwrap();
    let loads = |host: &FakeHost| host.log().iter().filter(|l| l.contains("init_module")).count();
    let first = loads(&host);
    // The third removal, which is nvidia's.
    host.fails(Some(Fault::Refuse(2, Errno::EAGAIN)));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
    assert_eq!(loads(&host), first, "nothing was put back in between");
}

/// The kernel reports the module as used, and no inspection ever finds the user.
#[test]
fn who_opens_the_driver_again_and_again_keeps_it() {
    let host = gpu_host();
    let (done, mut journal) = applied(&host, &install());
    done.unwrap();
    let there = host.state();
    host.on_look(|state, _| {
        state.references.remove("nvidia");
        if !state.loaded.contains_key("nvidia_uvm") {
            state.references.insert("nvidia".to_owned(), 1);
        }
    });
    let not = engine(&host).undo(&mut journal).unwrap_err();
    assert!(matches!(not, NotUndone::InUse(_)), "{not}");
    assert!(not.to_string().starts_with("the driver is in use: "), "{not}");
    assert_eq!(host.state().loaded, there.loaded);
    assert_eq!(host.state().mounts, there.mounts);
}

#[test]
fn a_stop_during_the_rollback_neither_hastens_nor_hinders_it() {
    let host = gpu_host();
    host.teach("nvidia_modeset", |modeset| modeset.refused = Some(Errno::ENODEV));
    let before = host.state();
    let (cancel, mut journal) = (CancelFlag::default(), Journal::in_memory());
    let flag = cancel.clone();
    // Cancelling during the unload of nvidia_uvm: the rollback goes on.
    host.at_point(move |host| {
        if host.log().last().is_some_and(|line| line == "delete_module nvidia_uvm") {
            flag.set();
        }
    });
    let stopped = engine(&host).apply(&install(), &mut journal, &cancel);
    assert_eq!(failed(stopped).code(), ExitCode::NoDevice);
    assert!(cancel.is_set());
    assert_eq!(host.state(), before);
}
