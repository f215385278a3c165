//! Preflight refusals of hosts that are not ready.

use super::*;
use crate::config::{NoGpu, StorePlace};
use crate::steps::MakeNodes;
use longshore_core::failure::ExitCode;
use longshore_host::facts::{PlacedFile, Platform};
use longshore_host::values::FileId;
use longshore_sources::runfile::{Pin, RunFileSource};

#[rstest]
#[case("bookworm-no-gpu", &["no-device"], ExitCode::NoDevice)]
#[case("bookworm-cloud-no-gpu", &["no-device"], ExitCode::NoDevice)]
#[case("bookworm-nouveau", &["gpu-bound-elsewhere"], ExitCode::Preflight)]
#[case("bookworm-vfio", &["gpu-bound-elsewhere"], ExitCode::Preflight)]
#[case("bookworm-secure-boot", &["signature-required"], ExitCode::Preflight)]
#[case("bookworm-t4-container", &["missing-capability", "run-nvidia-not-shared"], ExitCode::Preflight)]
fn a_host_that_is_not_ready(#[case] tree: &str, #[case] wanted: &[&str], #[case] exit: ExitCode) {
    let plan = plan(&config("535", "auto"), &facts(tree), &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), wanted);
    assert_eq!(plan.refusal().map(|f| f.code()), Some(exit));
}

#[test]
fn a_bound_device_is_named_with_its_driver_and_the_way_out() {
    let plan = plan(&config("535", "auto"), &facts("bookworm-nouveau"), &archives()).unwrap();
    let finding = &plan.findings[0];
    assert!(finding.detail.contains("0000:01:00.0 (10de:1eb8) by nouveau"), "{}", finding.detail);
    let who = "nouveau is in use: console vtcon1 (frame buffer device) on fb0";
    assert!(finding.detail.contains(who), "{}", finding.detail);
    for part in ["/sys/class/vtconsole/vtcon1/bind", "modprobe -r nouveau"] {
        assert!(finding.remedy.contains(part), "{}", finding.remedy);
    }
}

#[test]
fn one_gpu_set_aside_for_a_virtual_machine_is_a_warning() {
    let mut facts = facts("bookworm-h100-nvswitch");
    facts.devices[5].driver = Some("vfio-pci".into());
    let plan = plan(&config("550", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Warning), ["gpu-bound-elsewhere"]);
    assert!(plan.refusal().is_none());
    for device in &mut facts.devices {
        if device.kind == DeviceKind::Gpu {
            device.driver = Some("vfio-pci".into());
        }
    }
    let switches_left = self::plan(&config("550", "auto"), &facts, &archives()).unwrap();
    assert!(switches_left.refusal().is_none());
    facts.devices.retain(|d| d.kind == DeviceKind::Gpu);
    let none_left = self::plan(&config("550", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&none_left, Severity::Refusal), ["gpu-bound-elsewhere"]);
}

#[rstest]
#[case(
    "550",
    "auto",
    "driver 535.261.03 is loaded, held by nvidia_modeset, nvidia_uvm, and 550.163.01 is wanted"
)]
#[case("535", "open", "in the other flavour than open")]
fn another_live_driver_is_refused(#[case] driver: &str, #[case] flavour: &str, #[case] seen: &str) {
    let plan = plan(&config(driver, flavour), &facts("bookworm-t4-live"), &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["other-driver-live"]);
    assert!(plan.findings[0].detail.contains(seen), "{}", plan.findings[0].detail);
}

#[test]
fn another_build_of_the_same_version_is_refused() {
    let facts = facts("bookworm-t4-live");
    let catalog = stocked(&facts, Flavour::Proprietary);
    let refused = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert_eq!(codes(&refused, Severity::Refusal), ["other-driver-live"]);
    assert!(refused.findings[0].detail.contains("wanted SRCnvidia"));
    let mut same = facts.clone();
    for (name, module) in &mut same.loaded {
        module.srcversion = Some(format!("SRC{name}"));
    }
    let adopted = plan(&config("535", "auto"), &same, &catalog).unwrap();
    assert!(adopted.refusal().is_none(), "{:?}", adopted.findings);
    assert_eq!(loads(&adopted).last().map(String::as_str), Some("nvidia_modeset"));
}

#[rstest]
#[case::private("bookworm-t4-container", None, true)]
#[case::shared_with_the_host("bookworm-t4", None, false)]
#[case::shared_with_nobody("bookworm-t4", Some(4711), true)]
fn in_a_container_mounts_must_reach_the_host(
    #[case] tree: &str,
    #[case] other_group: Option<u32>,
    #[case] refused: bool,
) {
    let mut facts = facts(tree);
    if let Some(group) = other_group {
        facts.host_peer_groups = Probe::Read([group].into());
    }
    let mut config = config("535", "auto");
    config.paths.host_root = PathBuf::from("/proc/1/root");
    let plan = plan(&config, &facts, &archives()).unwrap();
    let found = codes(&plan, Severity::Refusal).contains(&"run-nvidia-not-shared");
    assert_eq!(found, refused, "{:?}", plan.findings);
    let Some(MakeNodes { dirs, .. }) = plan.install.iter().find_map(MakeNodes::from_step) else {
        panic!("nodes")
    };
    assert_eq!(dirs[0], PathBuf::from("/proc/1/root/dev"));
}

#[test]
fn a_kernel_that_loads_no_modules() {
    let mut facts = facts("bookworm-t4");
    for (state, code) in [
        (ModuleLoading::Disabled, "modules-disabled"),
        (ModuleLoading::Unsupported, "kernel-without-modules"),
    ] {
        facts.security.module_loading = Probe::Read(state);
        let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
        assert_eq!(codes(&plan, Severity::Refusal), [code]);
    }
}

#[test]
fn parameters_for_a_module_that_is_not_loaded_are_a_warning() {
    let mut config = config("535", "auto");
    config.driver.parameters.insert("nvidia_drm".into(), "modeset=1".into());
    let plan = plan(&config, &facts("bookworm-t4"), &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Warning), ["parameters-unused"]);
}

#[test]
fn a_realtime_kernel_is_warned_of() {
    let plan = plan(&config("535", "auto"), &facts("bookworm-rt-t4"), &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Warning), ["preempt-rt"]);
}

#[test]
fn another_containers_process_1_is_named() {
    let mut facts = facts("bookworm-t4-container");
    facts.foreign_first_process = true;
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    let finding = plan.findings.iter().find(|f| f.code == Code::HostRootHidden).unwrap();
    assert!(finding.detail.contains("shareProcessNamespace"), "{}", finding.detail);
    assert!(finding.remedy.contains("hostPID: true"), "{}", finding.remedy);
}

#[test]
fn a_store_in_the_containers_own_file_system_is_warned_of() {
    let facts = facts("bookworm-t4-container");
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Warning), ["host-root-hidden", "lost-with-container"]);
    let finding = plan.findings.iter().find(|f| f.code == Code::LostWithContainer).unwrap();
    // The state is on /run/nvidia, which is mounted from the host.
    assert_eq!(finding.detail, "in the container's own file system: /var/lib/longshore");
}

#[rstest]
#[case::attached(StorePlace::Attached, None)]
#[case::to_be_attached(StorePlace::ToAttach, None)]
#[case::refused(
    StorePlace::InContainer("a profile refuses it".into()),
    Some("/var/lib/longshore; the host's directory is not attached as the store: a profile refuses it")
)]
fn a_store_that_is_the_hosts_is_not_lost(#[case] place: StorePlace, #[case] detail: Option<&str>) {
    let facts = facts("bookworm-t4-container");
    let config = Config { store_place: place, ..config("535", "auto") };
    let plan = plan(&config, &facts, &archives()).unwrap();
    let lost = plan.findings.iter().find(|f| f.code == Code::LostWithContainer);
    let reason = plan.reasons.iter().find(|r| r.heading() == "store");
    assert_eq!(lost.is_none(), reason.is_some_and(|r| r.reason.contains("through process 1")));
    assert_eq!(lost.is_some(), detail.is_some());
    if let (Some(lost), Some(detail)) = (lost, detail) {
        assert!(lost.detail.ends_with(detail), "{}", lost.detail);
        assert!(lost.remedy.contains("-v /var/lib/longshore:/var/lib/longshore"));
    }
}

#[rstest]
#[case("nouveau", "modprobe -r nouveau")]
#[case("NovaCore", "modprobe -r nova_core")]
#[case("nova-core", "modprobe -r nova_core")]
#[case("nvidiafb", "modprobe -r nvidiafb")]
#[case("vfio-pci", "set aside for a virtual machine")]
#[case("nvgrace-gpu-vfio-pci", "set aside for a virtual machine")]
#[case("pci-stub", "set aside for a virtual machine")]
#[case("other", "/sys/bus/pci/drivers/other/unbind")]
fn every_driver_that_has_the_gpu_has_its_way_out(#[case] driver: &str, #[case] remedy: &str) {
    let mut facts = facts("bookworm-t4");
    facts.devices[0].driver = Some(driver.into());
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["gpu-bound-elsewhere"]);
    assert!(plan.findings[0].remedy.contains(remedy), "{}", plan.findings[0].remedy);
}

const GIB: u64 = 1 << 30;

#[rstest]
#[case::enough(GIB, None, 8 * GIB, None, None)]
#[case::run_is_full(0, Some(9), 8 * GIB, None, Some((Severity::Refusal, "/run/nvidia/longshore")))]
#[case::run_has_no_inodes(GIB, Some(0), 8 * GIB, None, Some((Severity::Refusal, "/run/nvidia/longshore")))]
#[case::run_is_nearly_full(2 << 20, None, 8 * GIB, None, Some((Severity::Warning, "/run/nvidia/longshore")))]
#[case::the_store_is_full(GIB, None, 1 << 20, None, Some((Severity::Refusal, "/var/lib/longshore")))]
#[case::no_room_to_compile(GIB, None, GIB, None, Some((Severity::Warning, "/var/lib/longshore")))]
#[case::no_inodes_to_compile(GIB, None, 8 * GIB, Some(20_000), Some((Severity::Warning, "/var/lib/longshore")))]
fn a_full_file_system_is_found_before_anything_is_touched(
    #[case] run: u64,
    #[case] run_inodes: Option<u64>,
    #[case] store: u64,
    #[case] store_inodes: Option<u64>,
    #[case] wanted: Option<(Severity, &str)>,
) {
    let mut facts = facts("bookworm-t4");
    let room = |path: &str, free_bytes, free_inodes| FreeSpace {
        path: path.into(),
        free_bytes,
        free_inodes,
    };
    facts.places.state_room = Some(room("/run/nvidia/longshore", run, run_inodes));
    facts.places.store_room = Some(room("/var/lib/longshore", store, store_inodes));
    let compiling = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    let found = compiling.findings.iter().find(|f| f.code == Code::SpaceShort);
    assert_eq!(found.map(|f| f.severity), wanted.map(|(severity, _)| severity));
    if let (Some(found), Some((_, path))) = (found, wanted) {
        assert!(found.detail.contains(path), "{}", found.detail);
    }
    let stocked = plan(&config("535", "auto"), &facts, &stocked(&facts, Flavour::Open)).unwrap();
    let of_store = stocked.findings.iter().any(|f| f.detail.contains("/var/lib/longshore"));
    assert!(!of_store, "where nothing is acquired the store needs no room");
}

#[test]
fn a_dead_containers_leftovers_are_the_first_steps() {
    let mut facts = facts("bookworm-t4");
    let path = "/run/nvidia/nvidia-driver.pid".into();
    facts.places.files = vec![PlacedFile { path, id: FileId::default() }];
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    assert!(plan.refusal().is_none());
    let text = render(&plan, &facts);
    assert!(text.contains("1. remove /run/nvidia/nvidia-driver.pid"), "{text}");
    assert!(text.contains("note leftovers: left by NVIDIA's driver container"), "{text}");
}

/// Owners of machines without a GPU on the PCI bus are told where their driver is.
#[rstest]
#[case(None, "run on a node that has one")]
#[case(Some(Platform::Wsl), "--mode=wsl")]
#[case(Some(Platform::Tegra("nvidia,tegra234".into())), "Jetson Linux")]
fn where_no_gpu_is_on_the_bus_the_remedy_is_that_of_the_machine(
    #[case] platform: Option<Platform>,
    #[case] remedy: &str,
) {
    let mut facts = facts("bookworm-no-gpu");
    facts.platform = platform;
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    let found = &plan.findings[0];
    assert_eq!((found.code, plan.exit_code()), (Code::NoDevice, ExitCode::NoDevice));
    assert!(found.remedy.contains(remedy), "{}", found.remedy);
}

/// With no-gpu = wait `run` would not end: a plan is nothing to do, whatever the sources have.
#[test]
fn a_host_without_a_gpu_may_wait_for_one() {
    let mut config = config("535", "auto");
    config.no_gpu = NoGpu::Wait;
    let mut facts = facts("bookworm-no-gpu");
    let waits = plan(&config, &facts, &Catalog::without_sources("not read")).unwrap();
    assert!(waits.idle && waits.install.is_empty() && waits.acquire.is_empty(), "{waits:?}");
    assert_eq!(
        (codes(&waits, Severity::Note), waits.exit_code()),
        (vec!["no-device"], ExitCode::Done)
    );
    assert!(
        render(&waits, &facts).starts_with("NOTHING TO DO  no GPU "),
        "{}",
        render(&waits, &facts)
    );
    // An unreadable bus is none without a GPU.
    facts.unread.pci = Some("permission denied".into());
    let unread = plan(&config, &facts, &archives()).unwrap();
    assert_eq!((unread.idle, unread.findings[0].code), (false, Code::DevicesUnread));
    let with_gpu = plan(&config, &super::facts("bookworm-t4"), &archives()).unwrap();
    assert!(!with_gpu.idle);
}

/// A .run file may be a guest driver; the packages of archives are none.
#[test]
fn a_vgpu_is_refused_but_for_a_configured_run_file() {
    let mut facts = facts("bookworm-t4");
    facts.devices[0].vgpu = true;
    let mut config = config("535", "auto");
    let of = |config: &Config| {
        let plan = plan(config, &facts, &archives()).unwrap();
        let found = plan.findings.into_iter().find(|f| f.code == Code::VgpuGuest).unwrap();
        (found.severity, found.exit_code())
    };
    assert_eq!(of(&config), (Severity::Refusal, ExitCode::HostUnsupported));
    let urls = vec!["file:///srv/a.run".into()];
    config.run_files = vec![RunFileSource { urls, pin: Pin::Sha256("0".repeat(64)) }];
    assert_eq!(of(&config).0, Severity::Warning);
}
