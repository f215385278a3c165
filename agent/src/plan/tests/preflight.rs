//! What refuses a host that is not ready.

use super::*;

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
    assert!(finding.seen.contains("0000:01:00.0 (10de:1eb8) by nouveau"), "{}", finding.seen);
    assert!(finding.remedy.contains("modprobe -r nouveau"), "{}", finding.remedy);
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
    assert!(plan.findings[0].seen.contains(seen), "{}", plan.findings[0].seen);
}

#[test]
fn another_build_of_the_same_version_is_refused() {
    let facts = facts("bookworm-t4-live");
    let catalog = stocked(&facts, Flavour::Proprietary);
    let refused = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert_eq!(codes(&refused, Severity::Refusal), ["other-driver-live"]);
    assert!(refused.findings[0].seen.contains("wanted SRCnvidia"));
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
        facts.host_peer_groups = Known::Yes([group].into());
    }
    let mut config = config("535", "auto");
    config.paths.host_root = PathBuf::from("/proc/1/root");
    let plan = plan(&config, &facts, &archives()).unwrap();
    let found = codes(&plan, Severity::Refusal).contains(&"run-nvidia-not-shared");
    assert_eq!(found, refused, "{:?}", plan.findings);
    let Some(Step::MakeNodes { dirs }) = plan.install.last() else { panic!("nodes last") };
    assert_eq!(dirs[0], PathBuf::from("/proc/1/root/dev"));
}

#[test]
fn a_kernel_that_loads_no_modules() {
    let mut facts = facts("bookworm-t4");
    for (state, code) in [
        (ModuleLoading::Disabled, "modules-disabled"),
        (ModuleLoading::Unsupported, "kernel-without-modules"),
    ] {
        facts.security.module_loading = Known::Yes(state);
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
fn a_store_in_the_containers_own_file_system_is_warned_of() {
    let facts = facts("bookworm-t4-container");
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Warning), ["host-root-hidden", "lost-with-container"]);
    let finding = plan.findings.iter().find(|f| f.code == Code::LostWithContainer).unwrap();
    // The state lies on /run/nvidia, which is mounted from the host.
    assert_eq!(finding.seen, "in the container's own file system: /var/lib/longshore");
}
