use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rstest::rstest;

use super::*;
use crate::config;

/// Change of a host's files.
enum Change {
    Write(&'static str, &'static str),
    Program(&'static str),
    Dir(&'static str),
    Link(&'static str, &'static str),
    Remove(&'static str),
    Pipe(&'static str),
}
use Change::{Dir, Link, Pipe, Program, Remove, Write};

const STATE: &str = "run/nvidia/nvidia-driver.state";
const READY: &str = "run/nvidia/validations/.driver-ctr-ready";
const DAEMONS: &str = "run/nvidia/validations/.driver-daemons-status";
const ML: &str = "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";
const SMI: &str = "run/nvidia/driver/usr/bin/nvidia-smi";
const INTERFACE: &str = "run/nvidia/driver/usr/src/nvidia-535.261.03/nvidia/nv-p2p.h";
const CUDA: &str = "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03";

/// Makes the files of a host with an installed driver, on which every gate passes.
fn ready(root: &Path) {
    let devices =
        "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n";
    let changes = [
        Write("sys/module/nvidia/refcnt", "3\n"),
        Write("sys/module/nvidia/version", "535.261.03\n"),
        Dir("sys/module/nvidia/holders/nvidia_uvm"),
        Write("proc/devices", devices),
        Write(STATE, "3141592653\n"),
        Write(
            READY,
            "GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: false\n",
        ),
        Write(DAEMONS, "Ready\n"),
        Write("run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03", "ELF"),
        Link(ML, "libnvidia-ml.so.535.261.03"),
        Write(CUDA, "ELF"),
        Program(SMI),
        Write("run/nvidia/driver/dev/nvidia0", ""),
        Write("run/nvidia/driver/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
        Write("run/nvidia/driver/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
        Link("dev/char/195:0", "/run/nvidia/driver/dev/nvidia0"),
        Link("dev/char/195:255", "../nvidiactl"),
        Link("dev/char/511:0", "../nvidia-uvm"),
        Link("dev/char/1:3", "../null"),
    ];
    for change in &changes {
        change.make(root);
    }
}

impl Change {
    fn make(&self, root: &Path) {
        let at = |path: &str| -> PathBuf {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            path
        };
        match self {
            Write(path, text) => fs::write(at(path), text).unwrap(),
            Program(path) => {
                fs::write(at(path), "ELF").unwrap();
                fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o755)).unwrap();
            }
            Dir(path) => fs::create_dir_all(root.join(path)).unwrap(),
            Link(path, target) => symlink(target, at(path)).unwrap(),
            Pipe(path) => {
                nix::unistd::mkfifo(&at(path), nix::sys::stat::Mode::S_IRWXU).unwrap();
            }
            Remove(path) => match root.join(path) {
                path if path.is_dir() => fs::remove_dir_all(path).unwrap(),
                path => fs::remove_file(path).unwrap(),
            },
        }
    }
}

fn seen(root: &Path, asked: Asked) -> GateInputs {
    let open = || ConfinedRoot::root(root).unwrap();
    GateInputs::read(open(), Some(open()), "/run/nvidia/driver".into(), asked).unwrap()
}

fn with_digest() -> Asked {
    Asked { digest: Some("3141592653".to_owned()), ..Asked::default() }
}

fn all_on() -> Asked {
    Asked { gds: true, gdrcopy: true, rdma: true, ..with_digest() }
}

/// Report of a Ready host with these changes.
fn changed(changes: &[Change], asked: Asked) -> OperatorReport {
    let dir = tempfile::tempdir().unwrap();
    ready(dir.path());
    for change in changes {
        change.make(dir.path());
    }
    report(&seen(dir.path(), asked))
}

/// Gates that fail, with the facts.
fn failing(report: &OperatorReport) -> Vec<(&'static str, String)> {
    let fact = |gate: &Gate| match &gate.answer {
        GateOutcome::Fails { fact, remedy, .. } => {
            assert!(!remedy.is_empty(), "{}", gate.name);
            Some((gate.name, fact.clone()))
        }
        _ => None,
    };
    report.gates.iter().filter_map(fact).collect()
}

#[test]
fn a_ready_host_passes_every_gate_that_is_asked() {
    let report = changed(&[], with_digest());
    assert_eq!(failing(&report), []);
    assert_eq!(report.exit_code.number(), 0);
    let passing =
        report.gates.iter().filter(|gate| matches!(gate.answer, GateOutcome::Passes { .. }));
    assert_eq!(passing.count(), 14);
}

#[test]
fn a_fresh_host_fails_only_until_a_driver_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(&seen(dir.path(), Asked::default()));
    assert_eq!(report.exit_code, ExitCode::NotReady);
    let names: Vec<&str> = failing(&report).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "nvidia is loaded",
            "nvidia-smi in the image",
            "startup probe has passed",
            "libnvidia-ml.so.1",
            "nvidia-smi",
            "majors of the driver",
            "GPUs in the device root",
            "driver library with its version",
            "other libraries of the same version",
        ]
    );
}

/// One change of a Ready host, the gate that fails by it, part of its fact, and the exit code.
#[rstest]
#[case::preinstalled(&[Program("usr/local/bin/nvidia-smi")], "no driver of the host", "/usr/local/bin/nvidia-smi", 15)]
#[case::state_gone(&[Remove(STATE)], "digest of the last pod", "does not exist", 30)]
#[case::state_of_another(&[Write(STATE, "27\u{1b}\n")], "digest of the last pod", "`27\\u{1b}`", 30)]
#[case::state_a_pipe(&[Pipe(STATE)], "digest of the last pod", "is no file", 15)]
#[case::drm(&[Write(STATE, "1"), Dir("sys/module/nvidia_modeset/holders/nvidia_drm")], "unload of the modules", "nvidia_drm", 15)]
#[case::nouveau(&[Write("sys/module/nouveau/refcnt", "4\n")], "unload of nouveau", "4", 15)]
#[case::daemons(&[Write(DAEMONS, "NotReady\n")], "daemons are ready", "`NotReady`", 30)]
#[case::root_a_circle(&[Remove("run/nvidia/driver"), Link("run/nvidia/driver", "driver")], "nvidia-smi", "cannot be opened", 30)]
#[case::tool_gone(&[Remove(SMI)], "nvidia-smi in the image", "no executable", 30)]
#[case::tool_not_executable(&[Write(SMI, "ELF")], "nvidia-smi in the image", "no executable", 30)]
#[case::tool_leads_out(&[Link(SMI, "/bin/sh")], "nvidia-smi", "leads out", 15)]
#[case::wsl(&[Program("usr/lib/wsl/lib/nvidia-smi")], "no driver of the host", "wsl", 15)]
#[case::probe(&[Remove(READY)], "startup probe has passed", "does not exist", 30)]
#[case::library_gone(&[Remove(ML)], "libnvidia-ml.so.1", "has no libnvidia-ml.so.1 in /, usr/lib64", 30)]
#[case::library_leads_out(&[Link(ML, "/usr/lib/libnvidia-ml.so.1")], "libnvidia-ml.so.1", "leads out", 15)]
#[case::library_climbs(&[Link(ML, "../../../../../../etc/passwd")], "libnvidia-ml.so.1", "leads out", 15)]
#[case::feature(&[Write(READY, "GDS_ENABLED: true\n"), Write(INTERFACE, "")], "features of the pod", "nvidia_fs is not loaded", 15)]
#[case::no_map(&[Write(READY, "no map")], "features of the pod", "`no map` is no switch", 15)]
#[case::uvm(&[Write("proc/devices", "195 nvidia-frontend\n"), Remove("dev/char/511:0")], "majors of the driver", "no nvidia-uvm", 30)]
#[case::caps(&[Write("proc/driver/nvidia-caps/mig-minors", "")], "majors of the driver", "no nvidia-caps", 30)]
#[case::no_sysfs(&[Remove("run/nvidia/driver/sys")], "GPUs in the device root", "/run/nvidia/driver/sys/bus/pci/devices does not exist", 30)]
#[case::stale_major(&[Link("dev/char/510:0", "../nvidia-uvm")], "links in /dev/char", "510:0", 30)]
#[case::stale_target(&[Link("dev/char/195:0", "../nvidia1")], "links in /dev/char", "195:0", 30)]
#[case::no_version(&[Remove(CUDA), Remove("run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03")], "driver library with its version", "has no libcuda.so", 30)]
#[case::another_version(&[Write("sys/module/nvidia/version", "550.163.01\n")], "driver library with its version", "`550.163.01`", 15)]
#[case::two_versions(&[Write("run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01", "ELF")], "other libraries of the same version", "550.163.01", 15)]
fn one_change_fails_its_gate(
    #[case] changes: &[Change],
    #[case] gate: &str,
    #[case] fact: &str,
    #[case] exit_code: u8,
) {
    let report = changed(changes, with_digest());
    let failing = failing(&report);
    let is_it = |(name, why): &&(&str, String)| *name == gate && why.contains(fact);
    assert!(failing.iter().any(|failure| is_it(&failure)), "{failing:?}");
    assert_eq!(report.exit_code.number(), exit_code, "{failing:?}");
}

/// Gates of features that are on: the change, and the failing gates.
#[rstest]
#[case::nothing(&[], &["sources for GDS and GDRCopy", "nvidia_peermem loads"])]
#[case::other_sources(&[Dir("run/nvidia/driver/usr/src/nvidia-550.163.01")], &["sources for GDS and GDRCopy", "nvidia_peermem loads"])]
#[case::empty_sources(&[Dir("run/nvidia/driver/usr/src/nvidia-535.261.03")], &["sources for GDS and GDRCopy", "nvidia_peermem loads"])]
#[case::two_drivers(&[Write(INTERFACE, ""), Dir("run/nvidia/driver/usr/src/nvidia-550.163.01")], &["sources for GDS and GDRCopy", "nvidia_peermem loads"])]
#[case::interface_leads_out(&[Link(INTERFACE, "/etc/passwd")], &["sources for GDS and GDRCopy", "nvidia_peermem loads"])]
#[case::sources(&[Write(INTERFACE, "")], &["nvidia_peermem loads"])]
#[case::adapter(
    &[Write(INTERFACE, ""), Write("sys/module/mlx5_core/refcnt", "1\n")],
    &["nvidia_peermem loads", "nvidia_peermem stays"]
)]
#[case::adapter_of_the_operator(
    &[Write(INTERFACE, ""), Write("run/mellanox/drivers/.driver-ready", "")],
    &["nvidia_peermem loads"]
)]
#[case::all(
    &[
        Write(INTERFACE, ""),
        Write("sys/module/mlx5_core/refcnt", "1\n"),
        Write("sys/module/nvidia_peermem/refcnt", "0\n"),
    ],
    &[]
)]
fn features(#[case] changes: &[Change], #[case] wanted: &[&str]) {
    let report = changed(changes, all_on());
    let names: Vec<&str> = failing(&report).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, wanted);
}

/// Changes that fail no gate.
#[rstest]
#[case::not_executable_on_the_host(&[Write("usr/bin/nvidia-smi", "")])]
#[case::no_daemons(&[Remove(DAEMONS)])]
#[case::idle_nouveau(&[Write("sys/module/nouveau/refcnt", "0\n")])]
#[case::only_the_driver_s_own_modules_hold_it(&[Write("sys/module/nvidia_modeset/refcnt", "1\n"), Dir("sys/module/nvidia/holders/nvidia_modeset")])]
#[case::drm_and_the_same_digest(&[Dir("sys/module/nvidia_modeset/holders/nvidia_drm")])]
#[case::features_that_are_loaded(&[
    Write(READY, "GDS_ENABLED: true\n"),
    Write("sys/module/nvidia_fs/refcnt", "0\n"),
    Write(INTERFACE, ""),
])]
#[case::the_device_root_of_the_host(&[Remove("run/nvidia/driver/dev"), Dir("sys/bus/pci/devices"), Remove("dev/char/195:0")])]
#[case::no_links(&[Remove("dev/char")])]
#[case::links_of_other_nodes(&[
    Link("dev/char/240:0", "../nvidia-nvswitchctl"),
    Link("dev/char/195:1", "../nvidia1"),
    Link("dev/char/236:1", "../nvidia-caps/nvidia-cap1"),
])]
fn no_gate_fails(#[case] changes: &[Change]) {
    let report = changed(changes, with_digest());
    assert_eq!(failing(&report), []);
}

#[test]
fn the_text_has_a_line_for_each_gate_and_a_remedy_for_each_failure() {
    let report = changed(&[Remove(STATE)], with_digest());
    let text = render(&report, crate::console::Form::UNBROKEN);
    assert!(text.starts_with("1 of 20 gates of the GPU operator fail (exit code 30)\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("  ")).count(), 21);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["exit_code"], 30);
    assert_eq!(json["gates"][1]["asked_by"], "driver-manager");
    assert_eq!(json["gates"][1]["answer"], "fails");
    assert_eq!(json["gates"][1]["until_ready"], true);
}

#[test]
fn the_pod_s_environment_gives_the_digest_and_the_features() {
    let env = |name: &str| match name {
        "DRIVER_CONFIG_DIGEST" => Some("27".to_owned()),
        "GDS_ENABLED" => Some("true".to_owned()),
        "GDRCOPY_ENABLED" => Some("false".to_owned()),
        _ => None,
    };
    let asked = Asked { digest: Some("27".to_owned()), gds: true, ..Asked::default() };
    assert_eq!(Asked::from_env(&env, None), asked);
    assert_eq!(Asked::from_env(&env, Some("28".to_owned())).digest.as_deref(), Some("28"));
}

#[test]
fn a_captured_host_is_read_as_a_whole() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4-live");
    let root = Some(tree.to_str().unwrap().parse().unwrap());
    let flags = config::Fragment { root, ..config::Fragment::default() };
    let config = config::load(flags, &|_| None, None).unwrap();
    let report = diagnose(&config, Asked::default()).unwrap();
    assert_eq!(report.exit_code, ExitCode::NotReady);
    let loaded = report.gates.iter().find(|gate| gate.name == "nvidia is loaded").unwrap();
    assert!(matches!(loaded.answer, GateOutcome::Passes { .. }));
}
