//! What is decided for each host tree, and why.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::artifact::{ModuleEntry, ModuleKey, ModuleSet};
use crate::catalog::{DriverAtHand, HeadersAtHand, SetAtHand, SetPlace, UserspaceAtHand};
use crate::config::{self, Fragment};
use crate::host::facts::{DeviceKind, Known, ModuleLoading, PciDevice};
use crate::step::ModuleOrigin;

fn facts(tree: &str) -> HostFacts {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(tree);
    HostFacts::read(&path, &path).unwrap()
}

fn config(driver: &str, flavour: &str) -> Config {
    let flags = Fragment {
        driver: Some(driver.parse().unwrap()),
        flavour: Some(flavour.parse().unwrap()),
        ..Fragment::default()
    };
    let mut config = config::load(flags, &|_| None, None).unwrap();
    config.paths.root = PathBuf::from("/");
    config.paths.host_root = PathBuf::from("/");
    config
}

fn offered(version: &str, flavour: Flavour) -> DriverAtHand {
    DriverAtHand {
        version: version.into(),
        flavour,
        package: "nvidia-kernel-source".into(),
        package_version: format!("{version}-1"),
        suite: "bookworm".into(),
        sha256: "0".repeat(64),
    }
}

/// What Debian's suites offer together.
fn archives() -> Catalog {
    use Flavour::{Open, Proprietary};
    catalog(vec![
        offered("570.133.20", Open),
        offered("570.133.20", Proprietary),
        offered("550.163.01", Open),
        offered("550.163.01", Proprietary),
        offered("535.261.03", Open),
        offered("535.261.03", Proprietary),
        offered("470.256.02", Proprietary),
    ])
}

fn catalog(drivers: Vec<DriverAtHand>) -> Catalog {
    Catalog {
        sets: Vec::new(),
        userspace: Vec::new(),
        drivers: Known::Yes(drivers),
        headers: Known::Yes(HeadersAtHand::Archive {
            package: "linux-headers-6.1.0-50-amd64".into(),
            version: "6.1.176-1".into(),
            compiler: "gcc-12".into(),
        }),
    }
}

fn entry(name: &str, depends: &[&str]) -> ModuleEntry {
    ModuleEntry {
        name: name.into(),
        file: format!("{}.ko", name.replace('_', "-")),
        sha256: format!("{:0>64}", name.len()),
        size: 1,
        vermagic: "6.1.0-50-amd64 SMP preempt mod_unload modversions ".into(),
        version: Some("535.261.03".into()),
        srcversion: Some(format!("SRC{name}")),
        depends: depends.iter().map(|d| (*d).to_owned()).collect(),
    }
}

/// A set for the kernel of `facts`, as Debian 12's kernel makes the modules depend.
fn set(facts: &HostFacts, flavour: Flavour, place: SetPlace) -> SetAtHand {
    let key = ModuleKey {
        driver_version: "535.261.03".into(),
        flavour,
        driver_digest: "0".repeat(64),
        kernel_release: facts.kernel.release.clone(),
        kernel_version: facts.kernel.version.clone(),
        arch: facts.kernel.arch.clone(),
        headers: BTreeMap::new(),
        compiler: "gcc-12".into(),
        options: Vec::new(),
    };
    let modules = vec![
        entry("nvidia", &["drm"]),
        entry("nvidia_uvm", &["nvidia"]),
        entry("nvidia_modeset", &["nvidia", "video"]),
        entry("nvidia_drm", &["nvidia_modeset", "drm", "drm_kms_helper"]),
    ];
    SetAtHand { set: ModuleSet { key, modules }, place }
}

fn stocked(facts: &HostFacts, flavour: Flavour) -> Catalog {
    let mut catalog = archives();
    catalog.sets.push(set(facts, flavour, SetPlace::Store));
    catalog.userspace.push(UserspaceAtHand {
        driver_version: "535.261.03".into(),
        arch: "x86_64".into(),
        root: "/var/lib/longshore/userspace/x/root".into(),
    });
    catalog
}

fn codes(plan: &Plan, severity: Severity) -> Vec<&str> {
    let of = plan.findings.iter().filter(|f| f.severity == severity);
    of.map(|f| f.code.as_str()).collect()
}

fn why(plan: &Plan, what: &str) -> String {
    let reason = plan.reasons.iter().find(|r| r.what.starts_with(what));
    reason.map(|r| format!("{}: {}", r.what, r.why)).unwrap_or_default()
}

fn loads(plan: &Plan) -> Vec<String> {
    let name = |step: &'_ Step| match step {
        Step::LoadModule { name, .. } => Some(name.clone()),
        _ => None,
    };
    plan.install.iter().filter_map(name).collect()
}

#[rstest]
#[case::t4_newest(
    "bookworm-t4",
    "newest",
    "auto",
    "570.133.20",
    Flavour::Open,
    "recommends open from branch 560"
)]
#[case::t4_535(
    "bookworm-t4",
    "535",
    "auto",
    "535.261.03",
    Flavour::Proprietary,
    "recommends proprietary before branch 560"
)]
#[case::t4_open("bookworm-t4", "535", "open", "535.261.03", Flavour::Open, "asked for")]
#[case::v100_newest(
    "bookworm-v100",
    "newest",
    "auto",
    "570.133.20",
    Flavour::Proprietary,
    "no GPU System Processor"
)]
#[case::k80_newest(
    "bookworm-k80",
    "newest",
    "auto",
    "470.256.02",
    Flavour::Proprietary,
    "no GPU System Processor"
)]
#[case::h100(
    "bookworm-h100-nvswitch",
    "550",
    "auto",
    "550.163.01",
    Flavour::Proprietary,
    "before branch 560"
)]
#[case::h100_open(
    "bookworm-h100-nvswitch",
    "550",
    "open",
    "550.163.01",
    Flavour::Open,
    "asked for"
)]
#[case::cloud(
    "bookworm-cloud-t4",
    "535.261.03",
    "auto",
    "535.261.03",
    Flavour::Proprietary,
    "before branch 560"
)]
fn version_and_flavour(
    #[case] tree: &str,
    #[case] driver: &str,
    #[case] flavour: &str,
    #[case] version: &str,
    #[case] chosen: Flavour,
    #[case] reason: &str,
) {
    let plan = plan(&config(driver, flavour), &facts(tree), &archives()).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (version, chosen));
    assert!(why(&plan, "flavour").contains(reason), "{}", why(&plan, "flavour"));
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert!(!plan.exact);
}

#[test]
fn k80_says_which_newer_driver_it_passed_over_and_why() {
    let plan = plan(&config("newest", "auto"), &facts("bookworm-k80"), &archives()).unwrap();
    let why = why(&plan, "driver");
    assert!(
        why.contains("570.133.20 does not: 0000:04:00.0 (10de:102d): Kepler needs branch 470"),
        "{why}"
    );
}

#[rstest]
#[case::k80_535("bookworm-k80", "535", "auto", "gpu-unsupported", "needs branch 470")]
#[case::v100_open("bookworm-v100", "535", "open", "gpu-unsupported", "GPU System Processor")]
#[case::no_such(
    "bookworm-t4",
    "999",
    "auto",
    "driver-not-offered",
    "they offer 470.256.02 proprietary"
)]
#[case::t4_470_open(
    "bookworm-t4",
    "470",
    "open",
    "gpu-unsupported",
    "branch 470 has no open modules"
)]
fn what_cannot_be_is_refused(
    #[case] tree: &str,
    #[case] driver: &str,
    #[case] flavour: &str,
    #[case] code: &str,
    #[case] seen: &str,
) {
    let plan = plan(&config(driver, flavour), &facts(tree), &archives()).unwrap();
    let finding = plan.findings.iter().find(|f| f.code == code).expect(code);
    assert_eq!(finding.severity, Severity::Refusal);
    assert!(finding.seen.contains(seen), "{}", finding.seen);
    assert!(plan.refusal().is_some());
}

#[rstest]
#[case("bookworm-no-gpu", &["no-device"], ExitCode::NoDevice)]
#[case("bookworm-cloud-no-gpu", &["no-device"], ExitCode::NoDevice)]
#[case("bookworm-nouveau", &["gpu-bound-elsewhere"], ExitCode::Preflight)]
#[case("bookworm-vfio", &["gpu-bound-elsewhere"], ExitCode::Preflight)]
#[case("bookworm-secure-boot", &["signature-required"], ExitCode::Preflight)]
#[case("bookworm-t4-container", &["missing-capability"], ExitCode::Preflight)]
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

#[test]
fn auto_takes_the_only_flavour_at_hand_and_says_so() {
    let only = catalog(vec![offered("535.261.03", Flavour::Open)]);
    let plan = plan(&config("535", "auto"), &facts("bookworm-t4"), &only).unwrap();
    assert_eq!(plan.flavour, Flavour::Open);
    assert!(why(&plan, "flavour").contains("only open is at hand (proprietary preferred"));
}

#[test]
fn auto_takes_the_flavour_that_is_built_already() {
    let facts = facts("bookworm-t4");
    let plan = plan(&config("535", "auto"), &facts, &stocked(&facts, Flavour::Open)).unwrap();
    assert_eq!(plan.flavour, Flavour::Open);
    assert!(why(&plan, "flavour").contains("built for this kernel already"));
}

#[test]
fn blackwell_takes_only_the_open_modules_and_a_branch_that_has_it() {
    let mut facts = facts("bookworm-t4");
    facts.devices[0].device = 0x2901;
    let chosen = plan(&config("newest", "auto"), &facts, &archives()).unwrap();
    assert_eq!((chosen.driver_version.as_str(), chosen.flavour), ("570.133.20", Flavour::Open));
    let refused = plan(&config("550", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&refused, Severity::Refusal), ["gpu-unsupported"]);
}

#[test]
fn a_stocked_store_gives_an_exact_plan_in_load_order() {
    let facts = facts("bookworm-t4");
    let mut config = config("535.261.03", "proprietary");
    config.driver.parameters.insert("nvidia".into(), "NVreg_EnableMSI=1".into());
    let plan = plan(&config, &facts, &stocked(&facts, Flavour::Proprietary)).unwrap();
    assert!(plan.exact && plan.acquire.is_empty() && plan.findings.is_empty());
    let order =
        ["ipmi_msghandler", "drm", "wmi", "video", "nvidia", "nvidia_uvm", "nvidia_modeset"];
    assert_eq!(loads(&plan), order);
    let nvidia = plan
        .install
        .iter()
        .find(|s| matches!(s, Step::LoadModule { name, .. } if name == "nvidia"));
    let Some(Step::LoadModule { origin, parameters, version, srcversion, .. }) = nvidia else {
        panic!("nvidia is loaded");
    };
    assert!(matches!(origin, ModuleOrigin::Driver { .. }));
    assert_eq!(parameters, "NVreg_EnableMSI=1");
    assert_eq!(version.as_deref(), Some("535.261.03"));
    assert_eq!(srcversion.as_deref(), Some("SRCnvidia"));
    assert!(matches!(plan.install[0], Step::MakeDir { .. }));
    let Step::WriteParameter { value, .. } = &plan.install[1] else { panic!("firmware path") };
    assert_eq!(value, "/run/nvidia/driver/lib/firmware");
    let Some(Step::MakeNodes { dirs }) = plan.install.last() else { panic!("nodes last") };
    assert_eq!(dirs, &[PathBuf::from("/dev"), PathBuf::from("/run/nvidia/driver/dev")]);
}

#[test]
fn what_is_loaded_already_is_no_step() {
    let facts = facts("bookworm-h100-nvswitch");
    let mut config = config("535.261.03", "proprietary");
    config.driver.extra_modules.push("nvidia_drm".into());
    let plan = plan(&config, &facts, &stocked(&facts, Flavour::Proprietary)).unwrap();
    // ipmi_msghandler, drm, drm_kms_helper, wmi and video are the host's own already.
    assert_eq!(loads(&plan), ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"]);
}

#[test]
fn a_needed_module_that_the_kernel_lacks_is_a_refusal() {
    let facts = facts("bookworm-cloud-t4");
    let plan =
        plan(&config("535.261.03", "proprietary"), &facts, &stocked(&facts, Flavour::Proprietary))
            .unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["dependency-missing", "dependency-missing"]);
    assert!(plan.findings[0].seen.contains("nvidia needs drm"), "{:?}", plan.findings);
}

#[test]
fn an_unreadable_module_tree_is_not_taken_for_an_empty_one() {
    let mut facts = facts("bookworm-t4");
    facts.available.clear();
    facts.builtin.clear();
    facts.unread.insert("available".into(), "lib/modules/x/modules.dep: ENOENT".into());
    let catalog = stocked(&facts, Flavour::Proprietary);
    let plan = plan(&config("535.261.03", "proprietary"), &facts, &catalog).unwrap();
    assert!(codes(&plan, Severity::Refusal).iter().all(|code| *code == "kernel-unknown"));
    assert!(plan.findings[0].remedy.contains("hostPID"));
}

#[test]
fn a_prebuilt_set_is_imported_and_another_kernels_is_not() {
    let facts = facts("bookworm-t4");
    let place = SetPlace::Layout { dir: "/srv/modules".into(), manifest: "sha256:1".into() };
    let mut catalog = archives();
    catalog.sets.push(set(&facts, Flavour::Proprietary, place));
    let config = config("535.261.03", "auto");
    let imported = plan(&config, &facts, &catalog).unwrap();
    assert!(matches!(imported.acquire[0], Acquire::ImportSet { .. }));
    catalog.sets[0].set.key.kernel_version = "#1 SMP another build".into();
    let compiled = plan(&config, &facts, &catalog).unwrap();
    assert!(matches!(compiled.acquire[0], Acquire::BuildSet { .. }));
}

#[test]
fn missing_headers_end_with_exit_code_11_and_the_nearest() {
    let mut catalog = archives();
    catalog.headers = Known::Yes(HeadersAtHand::Missing { nearest: vec!["6.1.0-56-amd64".into()] });
    let plan = plan(&config("535", "auto"), &facts("bookworm-t4"), &catalog).unwrap();
    let refusal = plan.refusal().unwrap();
    assert_eq!(refusal.code(), ExitCode::Toolchain);
    assert!(refusal.to_string().contains("nearest: 6.1.0-56-amd64"), "{refusal}");
}

#[test]
fn without_compiling_and_without_a_set_nothing_can_be_had() {
    let mut config = config("535.261.03", "auto");
    config.compile = false;
    let plan = plan(&config, &facts("bookworm-t4"), &archives()).unwrap();
    assert_eq!(plan.refusal().map(|f| f.code()), Some(ExitCode::Download));
    assert_eq!(codes(&plan, Severity::Refusal), ["nothing-built"]);
}

#[test]
fn without_an_archive_the_flavour_is_still_decided() {
    let mut catalog = archives();
    catalog.drivers = Known::Unknown("no archive is configured".into());
    catalog.headers = Known::Unknown("no archive is configured".into());
    let plan = plan(&config("535.261.03", "auto"), &facts("bookworm-v100"), &catalog).unwrap();
    assert_eq!(plan.flavour, Flavour::Proprietary);
    assert_eq!(codes(&plan, Severity::Refusal), ["archives-unread"]);
    assert!(plan.acquire.iter().any(|a| matches!(a, Acquire::BuildSet { .. })));
}

#[rstest]
#[case::k80("bookworm-k80", "470", Flavour::Proprietary)]
#[case::v100("bookworm-v100", "580", Flavour::Proprietary)]
#[case::t4("bookworm-t4", "newest", Flavour::Open)]
fn a_captured_tree_is_decided_without_any_source(
    #[case] tree: &str,
    #[case] version: &str,
    #[case] flavour: Flavour,
) {
    let unknown = || "no archive is configured".to_owned();
    let mut catalog = archives();
    (catalog.drivers, catalog.headers) = (Known::Unknown(unknown()), Known::Unknown(unknown()));
    let mut config = config("newest", "auto");
    config.paths.root = PathBuf::from("/captured");
    config.paths.host_root = PathBuf::from("/captured");
    let plan = plan(&config, &facts(tree), &catalog).unwrap();
    assert_eq!((plan.driver_version.as_str(), plan.flavour), (version, flavour));
    assert_eq!(codes(&plan, Severity::Warning), ["archives-unread", "headers-unknown"]);
    assert!(plan.refusal().is_none());
}

#[test]
fn the_live_driver_is_adopted_without_a_load() {
    let plan = plan(&config("newest", "auto"), &facts("bookworm-t4-live"), &archives()).unwrap();
    assert_eq!(plan.driver_version, "535.261.03");
    let why = why(&plan, "driver");
    assert!(why.contains("adopted") && why.contains("570.133.20 is to be had"), "{why}");
    assert!(loads(&plan).is_empty());
    assert_eq!(plan.acquire, [Acquire::AssembleUserspace { driver_version: "535.261.03".into() }]);
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
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
fn the_text_begins_with_the_verdict_and_names_every_device() {
    let facts = facts("bookworm-h100-nvswitch");
    let ready = plan(&config("550", "auto"), &facts, &archives()).unwrap();
    let text = render(&ready, &facts);
    assert!(text.starts_with("READY TO INSTALL  driver 550.163.01 (proprietary)"), "{text}");
    assert!(text.contains("8 x GPU Hopper (10de:2330), unbound: 0000:1b:00.0"), "{text}");
    assert!(text.contains("4 x NVSwitch (10de:22a3)"), "{text}");

    let facts = self::facts("bookworm-no-gpu");
    let refused = plan(&config("550", "auto"), &facts, &archives()).unwrap();
    let text = render(&refused, &facts);
    assert!(text.starts_with("REFUSED"), "{text}");
    assert!(text.contains("no-device (exit code 17)") && text.contains("remedy:"), "{text}");
}

#[test]
fn a_plan_survives_json() {
    let facts = facts("bookworm-t4");
    let plan = plan(&config("535", "auto"), &facts, &stocked(&facts, Flavour::Open)).unwrap();
    let json = serde_json::to_string(&plan).unwrap();
    let back: Plan = serde_json::from_str(&json).unwrap();
    assert_eq!(back.install, plan.install);
}

prop_compose! {
    fn any_device()(
        device in any::<u16>(),
        switch in any::<bool>(),
        driver in proptest::option::of("nvidia|vfio-pci|[a-z]{0,4}"),
    ) -> PciDevice {
        PciDevice {
            address: "0000:01:00.0".into(),
            kind: if switch { DeviceKind::NvSwitch } else { DeviceKind::Gpu },
            device,
            subsystem_device: device,
            class: 0x03_0200,
            driver,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_facts_make_a_plan_panic_and_a_chosen_driver_drives_every_gpu(
        devices in proptest::collection::vec(any_device(), 0..4),
        version in "newest|470|535|550|535\\.261\\.03|0|99999999999999999999",
        release in "[ -~]{0,12}",
        flavour in "auto|open|proprietary",
        live in any::<bool>(),
    ) {
        let mut facts = facts(if live { "bookworm-t4-live" } else { "bookworm-t4" });
        facts.devices = devices;
        facts.kernel.release = release;
        if let Ok(plan) = plan(&config(&version, &flavour), &facts, &archives()) {
            let _ = render(&plan, &facts);
            if plan.refusal().is_none() {
                let branch = gpu::branch_of(&plan.driver_version).unwrap();
                for device in facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu) {
                    if let Some(generation) = gpu::generation_of(device.device) {
                        prop_assert!(gpu::branch_fits(generation, branch).is_ok());
                        prop_assert!(gpu::flavour_fits(generation, branch, plan.flavour).is_ok());
                    }
                }
            }
        }
    }
}
