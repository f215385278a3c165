//! Mode of coherent GPU memory on Grace.

use super::*;
use longshore_host::facts::LiveDriver;

const DRIVER_MODE: &str = "NVreg_CoherentGPUMemoryMode=driver";

/// Makes a host of this architecture with one GPU.
fn host(arch: &str, device: u16) -> HostFacts {
    let mut facts = facts("bookworm-t4");
    facts.kernel.arch = arch.into();
    for gpu in facts.devices.iter_mut().filter(|device| device.kind == DeviceKind::Gpu) {
        gpu.device = device;
    }
    facts
}

/// Returns the configuration's parameters of nvidia with the default, and the reason.
fn parameters_of(given: &str, facts: &HostFacts, version: &str) -> (String, Option<Reason>) {
    let mut config = config("newest", "auto");
    if !given.is_empty() {
        config.driver.parameters.insert("nvidia".into(), given.into());
    }
    let (config, reason) = crate::plan::coherent::with_default(&config, facts, version);
    (config.driver.parameters.get("nvidia").cloned().unwrap_or_default(), reason)
}

#[rstest]
#[case::gh200("aarch64", 0x2342, "580.178.04", DRIVER_MODE)]
#[case::gh200_hbm3e("aarch64", 0x2348, "595.91.07", DRIVER_MODE)]
#[case::gb200("aarch64", 0x2941, "580.65.06", DRIVER_MODE)]
#[case::gb300("aarch64", 0x31c2, "610.57.04", DRIVER_MODE)]
#[case::without_the_parameter("aarch64", 0x2342, "575.64.05", "")]
#[case::no_version("aarch64", 0x2342, "newest", "")]
#[case::h100_on_arm64("aarch64", 0x2330, "580.178.04", "")]
#[case::gb10("aarch64", 0x2e12, "580.178.04", "")]
#[case::b200("x86_64", 0x2901, "580.178.04", "")]
fn memory_of_grace_is_the_drivers(
    #[case] arch: &str,
    #[case] device: u16,
    #[case] version: &str,
    #[case] expected: &str,
) {
    let (parameters, reason) = parameters_of("", &host(arch, device), version);
    assert_eq!(parameters, expected);
    assert_eq!(reason.is_some(), !expected.is_empty());
}

#[rstest]
#[case::of_the_mode("NVreg_CoherentGPUMemoryMode=numa", "NVreg_CoherentGPUMemoryMode=numa")]
#[case::with_hyphens("NVreg-CoherentGPUMemoryMode=numa", "NVreg-CoherentGPUMemoryMode=numa")]
#[case::older("NVreg_EnableUserNUMAManagement=1", "NVreg_EnableUserNUMAManagement=1")]
#[case::of_another_matter(
    "NVreg_EnableMSI=0",
    "NVreg_CoherentGPUMemoryMode=driver NVreg_EnableMSI=0"
)]
fn given_parameters_count_more(#[case] given: &str, #[case] expected: &str) {
    let (parameters, reason) = parameters_of(given, &host("aarch64", 0x2941), "595.91.07");
    assert_eq!(parameters, expected);
    assert!(reason.is_some());
}

#[rstest]
#[case::in_mode_numa("595.91.07", Some(""), "")]
#[case::in_mode_driver("595.91.07", Some("driver"), DRIVER_MODE)]
#[case::unknown_mode("595.91.07", None, "")]
#[case::another_driver("580.178.04", Some(""), DRIVER_MODE)]
fn a_loaded_driver_is_not_loaded_again_for_the_default(
    #[case] loaded: &str,
    #[case] mode: Option<&str>,
    #[case] expected: &str,
) {
    let mut facts = host("aarch64", 0x2941);
    facts.live_driver = Some(LiveDriver { version: loaded.into(), flavour: Some(Flavour::Open) });
    let module = facts.loaded.entry("nvidia".into()).or_default();
    let shown = mode.map(|mode| ("NVreg_CoherentGPUMemoryMode".to_owned(), mode.to_owned()));
    module.parameters.extend(shown);
    assert_eq!(parameters_of("", &facts, "595.91.07").0, expected);
}

/// The whole plan loads nvidia with the parameter, and says why.
#[test]
fn a_plan_for_grace_says_the_mode_and_loads_with_it() {
    let facts = host("aarch64", 0x2941);
    let catalog = catalog(vec![offered("595.91.07", Flavour::Open)]);
    let plan = plan(&config("595", "auto"), &facts, &catalog).unwrap();
    let reason = plan.reasons.iter().find(|r| r.topic == "coherent memory").expect("a reason");
    assert_eq!(reason.value.as_deref(), Some("driver"));
    assert!(reason.reason.contains("10de:2941"), "{}", reason.reason);
}
