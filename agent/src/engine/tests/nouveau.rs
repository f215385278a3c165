//! A host whose GPUs are bound to nouveau.

use longshore_core::failure::ExitCode;
use nix::errno::Errno;
use rstest::rstest;

use super::{engine, failed, gpu_host, install, installed, module};
use crate::engine::*;
use crate::steps::{ReserveDevice, UnloadConflicting};
use longshore_host::Host;
use longshore_host::fake::{FakeHost, FakeModule};
use longshore_host::verbs::{Binding, Image, Stage};

const GPUS: [&str; 2] = ["0000:01:00.0", "0000:02:00.0"];
const PARAMETERS: &str = "modeset=1 runpm=0";

pub(super) fn steps() -> Vec<Step> {
    let reserve = |address: &str| {
        Step::ReserveDevice(ReserveDevice { address: address.into(), driver: "nouveau".into() })
    };
    let mut steps: Vec<Step> = GPUS.map(reserve).into();
    steps.push(Step::UnloadConflicting(UnloadConflicting {
        name: "nouveau".into(),
        file: "kernel/drivers/gpu/drm/nouveau/nouveau.ko".into(),
        parameters: PARAMETERS.into(),
    }));
    steps
}

pub(super) fn host() -> FakeHost {
    let host = gpu_host();
    host.knows("nouveau", FakeModule { drives: true, ..module(&["drm"], &[]) });
    host.teach("nvidia", |nvidia| nvidia.drives = true);
    host.change(|state| {
        state.loaded.insert("drm".into(), String::new());
        state.loaded.insert("nouveau".into(), PARAMETERS.into());
        let bound = || Binding { driver: Some("nouveau".into()), only: String::new() };
        state.bindings.extend(GPUS.map(|address| (address.to_owned(), bound())));
    });
    host
}

fn drivers(host: &FakeHost) -> Vec<String> {
    let state = host.state();
    let name = |it: &Binding| it.driver.clone().unwrap_or_default();
    state.bindings.values().map(name).collect()
}

#[test]
fn it_is_unloaded_for_the_driver_and_brought_back() {
    let host = host();
    let before = host.state();
    let mut journal = installed(&host);
    assert_eq!(drivers(&host), ["nvidia", "nvidia"]);
    assert!(!host.state().loaded.contains_key("nouveau"));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().whichever_loading(), before);
    assert_eq!(journal.live().count(), 0);
}

/// A driver that another program loads again gets no GPU, also where NVIDIA's is not yet loaded.
#[test]
fn it_gets_no_gpu_if_another_program_loads_it_again() {
    let host = host();
    let mut journal = Journal::in_memory();
    engine(&host).apply(&steps(), &mut journal, &CancelFlag::default()).unwrap();
    host.load_module("nouveau", Image::Bytes(b"nouveau"), "").unwrap();
    assert_eq!(drivers(&host), ["", ""]);
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    assert_eq!(drivers(&host), ["nvidia", "nvidia"]);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(drivers(&host), ["nouveau", "nouveau"]);
}

#[test]
fn one_that_came_into_use_is_left_as_it_is() {
    let host = host();
    host.change(|state| state.references.insert("nouveau".into(), 1));
    let before = host.state();
    let mut journal = Journal::in_memory();
    let stopped = engine(&host).apply(&install(), &mut journal, &CancelFlag::default());
    let failure = failed(stopped);
    assert_eq!(failure.code(), ExitCode::Preflight);
    assert!(failure.to_string().contains("nouveau is held by 1 reference"), "{failure}");
    assert_eq!(host.state(), before);
}

#[test]
fn an_unload_that_hangs_is_given_up() {
    let host = host();
    host.teach("nouveau", |nouveau| nouveau.hangs = Some(Stage::Going));
    let mut journal = Journal::in_memory();
    let failure = failed(engine(&host).apply(&install(), &mut journal, &CancelFlag::default()));
    assert_eq!(failure.code(), ExitCode::RolledBack);
    assert!(failure.remedy_text().is_some_and(|remedy| remedy.contains("reboot")), "{failure}");
    assert!(host.state().bindings.values().all(|it| it.only.is_empty()));
}

/// Changes by others between installing and removing; the driver of the first GPU in the end.
#[rstest]
#[case::unplugged(|host: &FakeHost| drop(host.change(|state| state.bindings.remove(GPUS[0]))), "nouveau")]
#[case::loaded_again(
    |host: &FakeHost| host.change(|state| drop(state.loaded.insert("nouveau".into(), String::new()))),
    "nouveau"
)]
#[case::reserved_by_another(
    |host: &FakeHost| host.change(|state| {
        state.bindings.get_mut(GPUS[0]).expect("there").only = "vfio-pci".into();
    }),
    ""
)]
fn changes_of_others_are_respected(#[case] change: fn(&FakeHost), #[case] driver: &str) {
    let host = host();
    let mut journal = installed(&host);
    change(&host);
    let undone = engine(&host).undo(&mut journal);
    assert_eq!(drivers(&host)[0], driver);
    // A device that its driver may not have any more is named.
    assert_eq!(undone.is_ok(), !driver.is_empty(), "{undone:?}");
}

#[test]
fn a_file_that_is_gone_is_reported_and_loading_it_by_hand_suffices() {
    let host = host();
    let mut journal = installed(&host);
    host.teach("nouveau", |nouveau| nouveau.refused = Some(Errno::ENOEXEC));
    let failure = engine(&host).undo(&mut journal).unwrap_err().into_failure();
    assert!(failure.to_string().contains("unload nouveau"), "{failure}");
    host.teach("nouveau", |nouveau| nouveau.refused = None);
    host.load_module("nouveau", Image::Bytes(b"nouveau"), PARAMETERS).unwrap();
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(drivers(&host), ["nouveau", "nouveau"]);
}

/// A console that is attached after the facts were read: the kernel counts no reference for it.
#[rstest]
#[case::before_the_step(false)]
#[case::after_its_intent(true)]
fn a_module_with_a_console_is_not_unloaded(#[case] late: bool) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_path_buf();
    let device = root.join("sys/bus/pci/devices/0000:01:00.0");
    let put = |path: &std::path::Path, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for (file, text) in [
        ("vendor", "0x10de"),
        ("class", "0x030000"),
        ("device", "0x1eb8"),
        ("subsystem_device", "0x12a2"),
        ("graphics/fb0/dev", "29:0"),
    ] {
        put(&device.join(file), text);
    }
    std::os::unix::fs::symlink("/drivers/nouveau", device.join("driver")).unwrap();
    put(&root.join("sys/class/vtconsole/vtcon1/name"), "(M) frame buffer device");
    let bind = root.join("sys/class/vtconsole/vtcon1/bind");
    put(&bind, if late { "0" } else { "1" });
    let host = host();
    let before = host.state();
    let host = host.with_files_below(&root);
    let mut journal = Journal::in_memory();
    let step = steps().pop().unwrap();
    let failure = match late {
        false => failed(engine(&host).apply(&[step], &mut journal, &CancelFlag::default())),
        true => {
            let recorded = step.observe(&host).unwrap().unwrap();
            let seq = journal.intend(recorded.clone()).unwrap();
            put(&bind, "1");
            let cancel = CancelFlag::default();
            engine(&host).carry_out(&recorded, seq, &mut journal, &cancel).unwrap_err()
        }
    };
    assert_eq!(failure.code(), ExitCode::Preflight);
    let text = failure.to_string();
    assert!(text.contains("console vtcon1 (frame buffer device) on fb0"), "{text}");
    assert!(failure.remedy_text().unwrap().contains("/sys/class/vtconsole/vtcon1/bind"));
    assert_eq!(host.state(), before);
    assert_eq!(journal.live().count(), 0);
}
