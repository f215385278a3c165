//! Whole plans: text, JSON, and no panic for any facts.

use super::*;

#[test]
fn the_text_begins_with_the_verdict_and_names_every_device() {
    let facts = facts("bookworm-h100-nvswitch");
    let ready = plan(&config("550", "auto"), &facts, &archives()).unwrap();
    let text = render(&ready, &facts);
    assert!(text.starts_with("TO BE DONE  driver 550.163.01 (proprietary)"), "{text}");
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
    let mut back: serde_json::Value = serde_json::from_str(&json).unwrap();
    let install: Vec<Step> = serde_json::from_value(back["install"].take()).unwrap();
    assert_eq!(install, plan.install);
    assert_eq!(back["driver_version"], plan.driver_version);
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
                let branch = longshore_core::driver_version::DriverVersion::new(&plan.driver_version).branch().unwrap();
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
