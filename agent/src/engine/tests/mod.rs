//! Tests of the engine, and the hosts and steps that they share.

mod crashes;
mod handover;
mod leftover;
mod links;
mod nouveau;
mod properties;
mod rivals;
mod spec;
mod unrecorded;
mod waiting;
mod wedged;

use longshore_core::failure::ExitCode;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use nix::errno::Errno;
use rstest::rstest;

use super::*;
use crate::config::DriverCapability;
use crate::engine::fake_images::FakeImages;
use crate::engine::image::ModuleFile;
use crate::journal::EntryState;
use crate::steps::{
    Bind, LinkNodes, LoadModule, MakeDir, MakeNodes, ModuleOrigin, MountRoot, MountSysfs,
    MountTmpfs, NodeBefore, Nodes, PublishSpec, Share, StartDaemon, WriteParameter, WriteStatus,
};
use longshore_host::daemon::Daemon;
use longshore_host::fake::{FakeHost, FakeModule, FakeState, Fault};
use longshore_host::gpus::{Gpu, Taken};
use longshore_host::verbs::{DriverUser, Node, NodeKeeper, Owner};

pub(super) const FIRMWARE: &str = "/sys/module/firmware_class/parameters/path";

pub(super) const SHORT_WAIT: InUseWait =
    InUseWait { deadline: Duration::from_millis(20), interval: Duration::from_millis(1) };

pub(super) fn engine(host: &FakeHost) -> Engine<'_> {
    engine_over(host, &FakeImages)
}

/// Returns an engine with images of another kind. Its telemetry is not read.
pub(super) fn engine_over<'a>(host: &'a FakeHost, images: &'a dyn Images) -> Engine<'a> {
    let telemetry = Box::leak(Box::default());
    Engine { host, images, in_use_wait: SHORT_WAIT, telemetry, refuses_missing_gpus: false }
}

pub(super) fn module(depends: &[&str], nodes: &[(&str, u32, u32)]) -> FakeModule {
    let node = |(name, major, minor): &(&str, u32, u32)| {
        (
            (*name).into(),
            Node { major: *major, minor: *minor, mode: 0o666, owner: Owner::default() },
        )
    };
    FakeModule {
        depends: depends.iter().map(|d| (*d).to_owned()).collect(),
        version: Some("535.1".to_owned()),
        nodes: nodes.iter().map(node).collect(),
        ..FakeModule::default()
    }
}

/// Returns a directory with the exposed driver's CUDA library, and its list of GPUs.
fn exposed() -> &'static tempfile::TempDir {
    static EXPOSED: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        let triplet = longshore_core::machine::Machine::this().unwrap().triplet;
        let library = format!("run/nvidia/driver/usr/lib/{triplet}/libcuda.so.535.1");
        let information = "proc/driver/nvidia/gpus/0000:01:00.0/information".to_owned();
        for (path, text) in [(library, ""), (information, "Device Minor: \t 0\n")] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    });
    &EXPOSED
}

/// Returns a host like a Debian one with a GPU and no driver.
pub(super) fn gpu_host() -> FakeHost {
    let host = FakeHost::with_dirs(["/dev", "/run", "/store/tree/dev", "/var/run"])
        .with_files_below(exposed().path());
    host.change(|state| {
        state.gpus.push(Gpu {
            address: "0000:01:00.0".to_owned(),
            device: 0x1eb8,
            taken: Taken::Driver,
            kernel_message: None,
        });
    });
    host.change(|state| state.parameters.insert(FIRMWARE.into(), String::new()));
    host.knows("drm", module(&[], &[]));
    host.knows("ipmi_msghandler", module(&[], &[]));
    host.knows("ipmi_devintf", module(&["ipmi_msghandler"], &[]));
    let nodes = [("nvidiactl", 195, 255), ("nvidia0", 195, 0), ("nvidia-caps/nvidia-cap1", 236, 1)];
    host.knows("nvidia", module(&["drm", "ipmi_msghandler"], &nodes));
    host.knows("nvidia_uvm", module(&["nvidia"], &[("nvidia-uvm", 511, 0)]));
    host.knows("nvidia_modeset", module(&["nvidia"], &[("nvidia-modeset", 195, 254)]));
    host
}

pub(super) fn load(name: &str) -> Step {
    let driver = name.starts_with("nvidia");
    let origin = if driver {
        ModuleOrigin::Driver { sha256: "0".repeat(64) }
    } else {
        ModuleOrigin::Kernel { file: format!("kernel/{name}.ko").into() }
    };
    let version = driver.then(|| "535.1".to_owned());
    Step::LoadModule(LoadModule {
        name: name.to_owned(),
        origin,
        parameters: String::new(),
        version,
        srcversion: None,
    })
}

/// Returns the steps of a plan for [`gpu_host`].
pub(super) fn install() -> Vec<Step> {
    let parent = Path::new("/run/nvidia");
    let mut steps = vec![
        Step::WriteStatus(WriteStatus::not_ready(parent)),
        Step::MakeDir(MakeDir { path: "/run/nvidia/driver".into() }),
        Step::MountRoot(MountRoot { target: "/run/nvidia/driver".into() }),
        Step::Bind(Bind { source: "/store/tree".into(), target: "/run/nvidia/driver/usr".into() }),
        Step::MountSysfs(MountSysfs { target: "/run/nvidia/driver/sys".into() }),
        Step::WriteParameter(WriteParameter { path: FIRMWARE.into(), value: "/fw".to_owned() }),
    ];
    steps.extend(["drm", "ipmi_msghandler"].map(load));
    // Without effect on a host without nouveau.
    steps.extend(nouveau::steps());
    steps.extend(["nvidia", "nvidia_uvm", "nvidia_modeset"].map(load));
    steps.push(Step::MountTmpfs(MountTmpfs { target: "/store/tree/dev".into() }));
    steps.push(Step::MakeNodes(MakeNodes {
        dirs: vec!["/dev".into(), "/store/tree/dev".into()],
        left_to_admin: false,
    }));
    steps.push(Step::LinkNodes(LinkNodes { dev: "/dev".into() }));
    let (source, target) = ("/run/nvidia/daemon".into(), "/run/daemon".into());
    steps.push(Step::MakeDir(MakeDir { path: "/run/nvidia/daemon".into() }));
    steps.push(Step::MakeDir(MakeDir { path: "/run/daemon".into() }));
    steps.push(Step::Share(Share { source, target }));
    steps.push(Step::StartDaemon(StartDaemon { daemon: daemon("nvidia-persistenced") }));
    steps.push(spec());
    let announced = [WriteStatus::ready(parent), WriteStatus::digest(parent, "2166136261")];
    steps.extend(announced.map(Step::WriteStatus));
    steps
}

pub(super) fn spec() -> Step {
    Step::PublishSpec(PublishSpec {
        host_root: "/".into(),
        driver_root: "/run/nvidia/driver".into(),
        capabilities: vec![DriverCapability::Compute],
    })
}

pub(super) fn daemon(name: &str) -> Daemon {
    Daemon {
        name: name.to_owned(),
        program: "/run/nvidia/driver/usr/bin/daemon".into(),
        arguments: Vec::new(),
        libraries: "/run/nvidia/driver/usr/lib".into(),
        socket: "/run/daemon/socket".into(),
        settings: None,
        capabilities: Vec::new(),
        required: true,
        ready_within: 0,
    }
}

fn installed(host: &FakeHost) -> Journal {
    let mut journal = Journal::in_memory();
    engine(host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    journal
}

pub(super) fn failed(stopped: Result<(), Stopped>) -> Failure {
    match stopped.unwrap_err() {
        Stopped::Failed(failure) => failure,
        Stopped::Cancelled => panic!("cancelled"),
    }
}

#[test]
fn everything_is_installed_and_taken_off_again() {
    let host = gpu_host();
    let before = host.state();
    let mut journal = installed(&host);
    let state = host.state();
    let loaded: Vec<_> = state.loaded.keys().map(String::as_str).collect();
    assert_eq!(loaded, ["drm", "ipmi_msghandler", "nvidia", "nvidia_modeset", "nvidia_uvm"]);
    assert_eq!(state.parameters[Path::new(FIRMWARE)], "/fw");
    assert!(state.nodes.contains_key(Path::new("/dev/nvidia-caps/nvidia-cap1")));
    assert!(state.nodes.contains_key(Path::new("/store/tree/dev/nvidia-uvm")));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
    assert_eq!(journal.live().count(), 0);
    engine(&host).undo(&mut journal).unwrap();
}

/// A store whose tree was changed after it was assembled.
struct ChangedTree;

impl Images for ChangedTree {
    fn image(&self, name: &str, origin: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        FakeImages.image(name, origin)
    }

    fn file(&self, name: &str, origin: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure> {
        FakeImages.file(name, origin)
    }

    fn check_tree(&self, _: &Path) -> Result<(), Failure> {
        Err(Failure::new(FailureKind::Verification, "libcuda.so.1 differs"))
    }
}

#[test]
fn a_tree_that_does_not_verify_is_not_shown_and_the_rest_is_rolled_back() {
    let host = gpu_host();
    let before = host.state();
    let changed = engine_over(&host, &ChangedTree);
    let mut journal = Journal::in_memory();
    let stopped = changed.apply(&install(), &mut journal, &CancelFlag::default());
    assert_eq!(failed(stopped).code(), ExitCode::Verification);
    assert_eq!(host.state(), before);
}

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
fn directories_that_are_the_same_get_their_nodes_once() {
    let host = gpu_host();
    host.alias("/host/dev", "/dev");
    let dirs = vec!["/host/dev".into(), "/dev".into()];
    let steps: Vec<_> = ["drm", "ipmi_msghandler", "nvidia"].map(load).into();
    let steps = [steps, vec![Step::MakeNodes(MakeNodes { dirs, left_to_admin: false })]].concat();
    let before = host.state();
    let mut journal = Journal::in_memory();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    assert_eq!(host.log().iter().filter(|line| line.starts_with("mknod")).count(), 3);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_node_of_another_device_is_replaced_and_put_back() {
    let host = gpu_host();
    let stale = Node { major: 508, minor: 0, mode: 0o666, owner: Owner::default() };
    host.change(|state| state.nodes.insert("/dev/nvidia-uvm".into(), stale));
    let before = host.state();
    let mut journal = installed(&host);
    assert_eq!(host.state().nodes[Path::new("/dev/nvidia-uvm")].major, 511);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

/// Permissions wider than requested, or another group's: as an earlier driver or udev left them.
#[test]
fn a_node_with_other_permissions_is_put_right_and_gets_its_own_back() {
    let host = gpu_host();
    let (wide, group) = (0o666, Owner { uid: 0, gid: 44 });
    let wanted = Node { major: 195, minor: 255, mode: 0o660, owner: group };
    host.knows(
        "nvidia",
        FakeModule {
            nodes: vec![("nvidiactl".into(), wanted)],
            ..module(&["drm", "ipmi_msghandler"], &[])
        },
    );
    let theirs = Node { mode: wide, owner: Owner::default(), ..wanted };
    host.change(|state| state.nodes.insert("/dev/nvidiactl".into(), theirs));
    let before = host.state();
    let mut journal = installed(&host);
    assert_eq!(host.state().nodes[Path::new("/dev/nvidiactl")], wanted);
    assert!(!host.log().contains(&"unlink /dev/nvidiactl".to_owned()), "{:?}", host.log());
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

/// Death between chown(2) and chmod(2) leaves one of both set.
#[rstest]
#[case::owner_set(0o666, 44, true)]
#[case::all_set(0o660, 44, true)]
#[case::none_set(0o666, 0, true)]
#[case::by_somebody_after_us(0o600, 44, false)]
#[case::to_another_group(0o660, 27, false)]
fn permissions_are_given_back_wherever_setting_them_broke_off(
    #[case] mode: u32,
    #[case] gid: u32,
    #[case] ours: bool,
) {
    let host = gpu_host();
    let was = Node { major: 195, minor: 255, mode: 0o666, owner: Owner::default() };
    let made = Node { mode: 0o660, owner: Owner { uid: 0, gid: 44 }, ..was };
    let found = Node { mode, owner: Owner { uid: 0, gid }, ..was };
    let path = std::path::PathBuf::from("/dev/nvidiactl");
    host.change(|state| state.nodes.insert(path.clone(), found));
    let mut journal = Journal::in_memory();
    let node = NodeBefore { path: path.clone(), made, was: Some(was) };
    let before = Nodes { missing_dirs: Vec::new(), nodes: vec![node] };
    journal
        .intend(MakeNodes { dirs: vec!["/dev".into()], left_to_admin: false }.observed(before))
        .unwrap();
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().nodes[&path], if ours { was } else { found });
}

/// A device manager that sets its own permissions a moment after us does not get the driver
/// uninstalled.
#[test]
fn permissions_that_somebody_changes_after_us_leave_the_driver_ready() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| {
        for node in state.nodes.values_mut() {
            node.mode = 0o660;
        }
    });
    assert!(engine(&host).holds(&install(), &journal));
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    assert!(
        host.state().nodes.values().all(|node| node.mode == 0o666),
        "put right at the next start"
    );
}

#[test]
fn nodes_that_the_administrator_keeps_are_copied_into_the_driver_root_alone() {
    let host = gpu_host();
    for name in ["nvidiactl", "nvidia0", "nvidia-uvm"] {
        host.kept_by(name, NodeKeeper::Admin);
    }
    let owner = Owner { uid: 0, gid: 44 };
    let theirs = Node { major: 195, minor: 255, mode: 0o660, owner };
    let stale = Node { major: 400, minor: 0, mode: 0o600, owner };
    host.change(|state| {
        state.nodes.insert("/dev/nvidiactl".into(), theirs);
        state.nodes.insert("/dev/nvidia-uvm".into(), stale);
    });
    let before = host.state();
    let mut journal = installed(&host);
    let nodes = host.state().nodes;
    assert_eq!(nodes[Path::new("/dev/nvidiactl")], theirs);
    assert_eq!(nodes[Path::new("/store/tree/dev/nvidiactl")], theirs);
    assert_eq!(nodes[Path::new("/dev/nvidia-uvm")], stale, "another device's is theirs, too");
    for absent in ["/dev/nvidia0", "/store/tree/dev/nvidia0", "/store/tree/dev/nvidia-uvm"] {
        assert!(!nodes.contains_key(Path::new(absent)), "{absent}");
    }
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn nodes_of_the_kernels_own_are_made_where_they_are_missing_and_never_changed() {
    let host = gpu_host();
    host.knows("nvidia_uvm", module(&["nvidia"], &[("infiniband/umad0", 231, 0)]));
    host.kept_by("infiniband/umad0", NodeKeeper::Kernel);
    let udevs = Node { major: 231, minor: 0, mode: 0o664, owner: Owner { uid: 0, gid: 110 } };
    host.change(|state| {
        state.dirs.extend(["/host".into(), "/host/dev".into(), "/host/dev/infiniband".into()]);
        state.nodes.insert("/host/dev/infiniband/umad0".into(), udevs);
    });
    let before = host.state();
    let mut steps = install();
    for step in &mut steps {
        if let Step::MakeNodes(MakeNodes { dirs, .. }) = step {
            dirs.insert(0, "/host/dev".into());
        }
    }
    let mut journal = Journal::in_memory();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    let nodes = host.state().nodes;
    assert_eq!(nodes[Path::new("/host/dev/infiniband/umad0")], udevs);
    assert!(nodes[Path::new("/dev/infiniband/umad0")].same_device(&udevs));
    assert!(!nodes.contains_key(Path::new("/store/tree/dev/infiniband/umad0")));
    assert!(!host.state().dirs.contains(Path::new("/store/tree/dev/infiniband")));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_device_manager_that_is_faster_is_no_failure_unless_it_makes_another_device() {
    for (minor, code) in [(255, None), (7, Some(ExitCode::Expose))] {
        let host = gpu_host();
        host.rival(
            "/dev/nvidiactl",
            Node { major: 195, minor, mode: 0o660, owner: Owner::default() },
        );
        let mut journal = Journal::in_memory();
        let applied = engine(&host).apply(&install(), &mut journal, &CancelFlag::default());
        assert_eq!(applied.is_err().then(|| failed(applied).code()), code);
    }
}

#[test]
fn another_version_that_is_live_is_refused_and_left_alone() {
    let host = gpu_host();
    host.knows("nvidia", FakeModule { version: Some("550.9".to_owned()), ..module(&[], &[]) });
    host.change(|state| state.loaded.insert("nvidia".to_owned(), String::new()));
    let before = host.state();
    let failure =
        failed(engine(&host).apply(&install(), &mut Journal::in_memory(), &CancelFlag::default()));
    assert_eq!(failure.code(), ExitCode::KernelRefused);
    assert!(failure.to_string().contains("version 550.9, wanted is 535.1"), "{failure}");
    assert_eq!(host.state(), before);
}

#[test]
fn a_module_that_says_to_be_another_than_it_was_built_as_is_taken_off() {
    let host = gpu_host();
    host.knows("nvidia_uvm", FakeModule { version: None, ..module(&["nvidia"], &[]) });
    let before = host.state();
    let failure =
        failed(engine(&host).apply(&install(), &mut Journal::in_memory(), &CancelFlag::default()));
    assert_eq!(failure.code(), ExitCode::KernelRefused);
    assert_eq!(host.state(), before);
}

#[test]
fn cancelling_before_the_first_step_does_nothing() {
    let host = gpu_host();
    let cancel = CancelFlag::default();
    assert!(cancel.set());
    assert!(!cancel.set());
    let stopped = engine(&host).apply(&install(), &mut Journal::in_memory(), &cancel).unwrap_err();
    assert!(matches!(stopped, Stopped::Cancelled));
    assert!(host.log().is_empty());
}

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
    // Daemons are ended before other users are looked for.
    let before = FakeState { daemons: BTreeMap::new(), ..host.state() };
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
fn a_parameter_that_others_changed_since_stays_theirs() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| state.parameters.insert(FIRMWARE.into(), "/theirs".to_owned()));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().parameters[Path::new(FIRMWARE)], "/theirs");
}

#[test]
fn applying_again_keeps_what_is_ours_and_renews_what_was_taken_away() {
    let host = gpu_host();
    let before = host.state();
    let mut journal = installed(&host);
    let whole = host.state();
    host.change(|state| {
        state.mounts.clear();
        state.nodes.remove(Path::new("/dev/nvidia0"));
        state.parameters.insert(FIRMWARE.into(), String::new());
    });
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    assert_eq!(host.state(), whole);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_failure_whose_clean_up_fails_says_both() {
    let host = gpu_host();
    host.knows("nvidia", FakeModule { permanent: true, ..module(&["drm"], &[]) });
    host.knows("nvidia_uvm", FakeModule { refused: Some(Errno::ENODEV), ..module(&[], &[]) });
    let mut journal = Journal::in_memory();
    let failure = failed(engine(&host).apply(&install(), &mut journal, &CancelFlag::default()));
    assert_eq!(failure.code(), ExitCode::RolledBack);
    let text = failure.to_string();
    assert!(text.contains("nvidia_uvm: the driver finds no device"), "{text}");
    assert!(text.contains("load module nvidia 535.1: delete_module nvidia: EBUSY"), "{text}");
    assert!(journal.live().count() > 0);
}

#[test]
fn a_first_step_that_is_refused_leaves_nothing() {
    let host = gpu_host();
    host.fails(Some(Fault::Refuse(0, Errno::ENOSPC)));
    let before = host.state();
    // The status file before it is optional.
    let steps = install().split_off(1);
    let failure =
        failed(engine(&host).apply(&steps, &mut Journal::in_memory(), &CancelFlag::default()));
    assert_eq!(failure.code(), ExitCode::Expose);
    assert_eq!(host.state(), before);
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
