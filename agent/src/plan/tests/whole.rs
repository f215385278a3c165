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

/// GPU, with the branches of [`archives`] that support it: by the release notes of these branches, their lists
/// of supported GPUs, and the list of the open modules (README.md of open-gpu-kernel-modules).
struct SupportedGpu {
    device: u16,
    name: &'static str,
    proprietary: &'static [u64],
    open: &'static [u64],
}

const fn gpu(
    device: u16,
    name: &'static str,
    proprietary: &'static [u64],
    open: &'static [u64],
) -> SupportedGpu {
    SupportedGpu { device, name, proprietary, open }
}

const ALL: &[u64] = &[470, 535, 550, 570];
const SINCE_535: &[u64] = &[535, 550, 570];

const GPUS: [SupportedGpu; 17] = [
    gpu(0x06d1, "C2050", &[], &[]),
    gpu(0x1023, "K40m", &[470], &[]),
    gpu(0x102d, "K80", &[470], &[]),
    gpu(0x13f2, "M60", ALL, &[]),
    gpu(0x15f8, "P100", ALL, &[]),
    gpu(0x1bb3, "P4", ALL, &[]),
    gpu(0x1db4, "V100", ALL, &[]),
    gpu(0x1eb8, "T4", ALL, SINCE_535),
    gpu(0x20b0, "A100", ALL, SINCE_535),
    gpu(0x2236, "A10", ALL, SINCE_535),
    gpu(0x2330, "H100", SINCE_535, SINCE_535),
    gpu(0x2342, "GH200", &[], SINCE_535),
    gpu(0x26b5, "L40", SINCE_535, SINCE_535),
    gpu(0x26b9, "L40S", SINCE_535, SINCE_535),
    gpu(0x27b8, "L4", SINCE_535, SINCE_535),
    gpu(0x2901, "B200", &[], &[570]),
    gpu(0x2bb1, "RTX PRO 6000", &[], &[570]),
];

impl SupportedGpu {
    fn takes(&self, branch: u64, flavour: Flavour) -> bool {
        let branches = match flavour {
            Flavour::Open => self.open,
            Flavour::Proprietary => self.proprietary,
        };
        branches.contains(&branch)
    }
}

fn branch_of(plan: &Plan) -> u64 {
    longshore_core::driver_version::DriverVersion::new(&plan.driver_version).branch().unwrap()
}

#[test]
fn a_driver_is_planned_for_those_gpus_alone_that_it_supports() {
    let mut facts = facts("bookworm-t4");
    for gpu in &GPUS {
        facts.devices[0].device = gpu.device;
        for (branch, flavour) in
            ALL.iter().flat_map(|b| [(b, Flavour::Open), (b, Flavour::Proprietary)])
        {
            let config = judging(&branch.to_string(), &flavour.to_string());
            let planned = plan(&config, &facts, &archives()).ok().filter(|p| p.refusal().is_none());
            let is_planned = planned.is_some();
            assert_eq!(is_planned, gpu.takes(*branch, flavour), "{} {branch} {flavour}", gpu.name);
            if let Some(plan) = planned {
                assert_eq!((branch_of(&plan), plan.flavour), (*branch, flavour), "{}", gpu.name);
            }
        }
    }
}

prop_compose! {
    fn any_device()(
        device in prop_oneof![
            4 => proptest::sample::select(GPUS.map(|gpu| gpu.device).to_vec()),
            1 => any::<u16>(),
        ],
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
            vgpu: false,
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
                let branch = branch_of(&plan);
                for device in facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu) {
                    for gpu in GPUS.iter().filter(|gpu| gpu.device == device.device) {
                        prop_assert!(gpu.takes(branch, plan.flavour), "{} {branch}", gpu.name);
                    }
                }
            }
        }
    }
}
