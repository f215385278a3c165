//! Tests of the engine, and the hosts and steps that they share.

mod crashes;
mod features;
mod handover;
mod in_use;
mod labels;
mod leftover;
mod links;
mod nodes;
mod nouveau;
mod of_others;
mod properties;
mod rivals;
mod spec;
mod unrecorded;
mod waiting;
mod wedged;

use longshore_core::failure::ExitCode;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use nix::errno::Errno;

use super::*;
use crate::config::DriverCapability;
use crate::engine::fake_images::FakeImages;
use crate::engine::image::ModuleFile;
use crate::steps::{
    Bind, LinkNodes, LoadModule, MakeDir, MakeNodes, ModuleOrigin, MountRoot, MountSysfs,
    MountTmpfs, PublishSpec, Share, StartDaemon, WriteParameter, WriteStatus,
};
use longshore_host::daemon::{Daemon, Settings};
use longshore_host::facts::gpus::{Gpu, Taken};
use longshore_host::fake::{FakeHost, FakeModule, Fault};
use longshore_host::values::{Node, Owner};

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
        Step::MountRoot(MountRoot { target: "/run/nvidia/driver".into(), label: None }),
        Step::Bind(Bind { source: "/store/tree".into(), target: "/run/nvidia/driver/usr".into() }),
        Step::MountSysfs(MountSysfs { target: "/run/nvidia/driver/sys".into() }),
        Step::WriteParameter(WriteParameter { path: FIRMWARE.into(), value: "/fw".to_owned() }),
    ];
    steps.extend(["drm", "ipmi_msghandler"].map(load));
    // Without effect on a host without nouveau.
    steps.extend(nouveau::steps());
    steps.extend(["nvidia", "nvidia_uvm", "nvidia_modeset"].map(load));
    steps.push(Step::MountTmpfs(MountTmpfs { target: "/store/tree/dev".into(), label: None }));
    steps.push(Step::MakeNodes(MakeNodes {
        dirs: vec!["/dev".into(), "/store/tree/dev".into()],
        left_to_admin: false,
    }));
    steps.push(Step::LinkNodes(LinkNodes { dev: "/dev".into() }));
    let (source, target) = ("/run/nvidia/daemon".into(), "/run/daemon".into());
    steps.push(Step::MakeDir(MakeDir { path: "/run/nvidia/daemon".into() }));
    steps.push(Step::MakeDir(MakeDir { path: "/run/daemon".into() }));
    steps.push(Step::Share(Share { source, target }));
    steps.push(Step::MakeDir(MakeDir { path: "/run/daemons".into() }));
    let settings = Some(Settings {
        template: "/run/nvidia/driver/usr/share/nvidia/daemon.cfg".into(),
        set: vec![("STATE_FILE_NAME".to_owned(), "/run/daemons/state".to_owned())],
        file: "/run/daemons/daemon.cfg".into(),
    });
    let daemon = Daemon { settings, ..daemon("nvidia-persistenced") };
    steps.push(Step::StartDaemon(StartDaemon { daemon }));
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
