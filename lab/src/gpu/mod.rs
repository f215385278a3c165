//! The simulated GPU: the parts of a device that nvidia.ko reads before it accepts it.
//!
//! The module's probe reads vendor, class, device id, three memory BARs, an interrupt pin with a
//! line, and registers 0x0 (BOOT_0), 0x4 (BOOT_1) and 0xA00 (BOOT_42) of BAR0. Nothing else of the
//! device has to exist until a process opens /dev/nvidia0.
//!
//! From 595 on the probe reads more of the configuration space: the capability with the device's UUID, which may be
//! missing, and for data-centre chips of Blackwell the extended capabilities from 0x100 on, in which it polls the state of
//! the BAR firewall (`gpuWaitForBarFirewall_GB100`). A simulated [`Model::B200`] has none: the module waits four seconds
//! for each, and goes on. 580 does not ask. BOOT_42 selects the chip: bits 29 to 24 are its architecture, 23 to 20 its
//! implementation (nv_ref.h, g_hal_archimpl.h of NVIDIA's open modules); BOOT_1 is 0 on a GPU that is no virtual one.
//!
//! A [`device`] is what a guest sees; a [`backend`] is QEMU's way to it: one of [`backends`].

pub(crate) mod backend;
pub(crate) mod backends;
pub(crate) mod device;
pub(crate) mod proxy;
pub(crate) mod qemu_version;
pub(crate) mod sockets;
pub(crate) mod vfio_user;

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// NVIDIA's PCI vendor id.
const VENDOR: u16 = 0x10de;
/// Most GPUs of a VM, as on an HGX board: all of their BARs are in the 32-bit hole.
const MOST_GPUS: usize = 8;
/// Most NVSwitches of a VM, as on an HGX A100 board. They have no BARs, but a slot each.
const MOST_SWITCHES: usize = 6;

/// A GPU or NVSwitch that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Tesla T4 (TU104).
    T4,
    /// H100.
    H100,
    /// Tesla V100: no System Processor, so only the proprietary flavour supports it.
    V100,
    /// A100.
    A100,
    /// L4.
    L4,
    /// An NVSwitch, class 0x0680.
    NvSwitch,
    /// Tesla K80: too old for driver 535.
    K80,
    /// B200 (GB100): supported from 570 on, by the open flavour alone.
    B200,
}

/// Fault of a simulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// All registers read as ones.
    OffBus,
    /// Neither an interrupt pin nor MSI-X.
    NoIrq,
}

/// A device for a VM: `t4`, or with a fault `t4:off-bus`, `t4:no-irq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Spec {
    /// Model of the device.
    pub model: Model,
    /// Its fault, if any.
    pub fault: Option<Fault>,
}

/// Identity and registers of a model.
struct Traits {
    device: u16,
    subdevice: u16,
    class: u32,
    boot_0: u32,
    boot_42: u32,
}

const NAMES: &[(&str, Model)] = &[
    ("t4", Model::T4),
    ("h100", Model::H100),
    ("v100", Model::V100),
    ("a100", Model::A100),
    ("l4", Model::L4),
    ("nvswitch", Model::NvSwitch),
    ("k80", Model::K80),
    ("b200", Model::B200),
];

impl Model {
    fn traits(self) -> Traits {
        let gpu = |device, subdevice, boot_0, boot_42| Traits {
            device,
            subdevice,
            class: 0x03_02_00,
            boot_0,
            boot_42,
        };
        match self {
            Self::T4 => gpu(0x1eb8, 0x12a2, 0x1640_00a1, 0x164a_1000),
            Self::H100 => gpu(0x2330, 0x16c1, 0x1800_00a1, 0x180a_1000),
            Self::V100 => gpu(0x1db4, 0, 0x1400_00a1, 0x140a_1000),
            Self::A100 => gpu(0x20b0, 0, 0x1700_00a1, 0x170a_1000),
            Self::L4 => gpu(0x27b8, 0, 0x1940_00a1, 0x194a_1000),
            Self::B200 => gpu(0x2901, 0x1999, 0x1a00_00a1, 0x1a0a_1000),
            // The module rejects it by its device id, before it reads a register.
            Self::K80 => gpu(0x102d, 0, 0x0f20_00a1, 0x0f2a_1000),
            Self::NvSwitch => {
                Traits { device: 0x22a3, subdevice: 0, class: 0x06_80_00, boot_0: 0, boot_42: 0 }
            }
        }
    }

    /// Returns the BAR sizes in bytes. With several devices BAR1 is small, or the 32-bit hole
    /// overflows and the firmware hangs.
    fn bars(self, alone: bool) -> [u32; device::BARS] {
        const MIB: u32 = 1 << 20;
        match self {
            Self::NvSwitch => [0; device::BARS],
            _ => [16 * MIB, if alone { 256 * MIB } else { 32 * MIB }, 32 * MIB],
        }
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, fault) = text.split_once(':').map_or((text, None), |(n, f)| (n, Some(f)));
        let model = NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, model)| *model)
            .ok_or_else(|| format!("no simulated device `{name}`"))?;
        let fault = match fault {
            None => None,
            Some("off-bus") => Some(Fault::OffBus),
            Some("no-irq") => Some(Fault::NoIrq),
            Some(other) => return Err(format!("no fault `{other}`: off-bus or no-irq")),
        };
        Ok(Self { model, fault })
    }
}

longshore_core::from_string!(Spec);

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, m)| *m == self.model).map_or("?", |(n, _)| n);
        let fault = match self.fault {
            None => "",
            Some(Fault::OffBus) => ":off-bus",
            Some(Fault::NoIrq) => ":no-irq",
        };
        write!(f, "{name}{fault}")
    }
}

/// Checks that a VM has room for devices.
///
/// # Errors
/// They are too many.
pub fn check(devices: &[Spec]) -> Result<(), String> {
    let switches = devices.iter().filter(|spec| spec.model == Model::NvSwitch).count();
    if devices.len() - switches > MOST_GPUS || switches > MOST_SWITCHES {
        return Err(format!("at most {MOST_GPUS} GPUs and {MOST_SWITCHES} NVSwitches"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Architectures and implementations of g_hal_archimpl.h in 580.142 and 595.45.04; those of GPUs before Turing are of
    /// the proprietary modules.
    #[rstest]
    #[case::tu104("t4", 0x16, 4)]
    #[case::ga100("a100", 0x17, 0)]
    #[case::gh100("h100", 0x18, 0)]
    #[case::ad104("l4", 0x19, 4)]
    #[case::gb100("b200", 0x1a, 0)]
    #[case::gv100("v100", 0x14, 0)]
    #[case::gk210("k80", 0x0f, 2)]
    fn registers_name_the_chip(#[case] name: &str, #[case] architecture: u32, #[case] chip: u32) {
        let traits = name.parse::<Spec>().unwrap().model.traits();
        for register in [traits.boot_0, traits.boot_42] {
            assert_eq!(
                (register >> 24 & 0x3f, register >> 20 & 0xf),
                (architecture, chip),
                "{register:#x}"
            );
        }
        let (major, minor) = (traits.boot_0 >> 4 & 0xf, traits.boot_0 & 0xf);
        assert_eq!((traits.boot_42 >> 16 & 0xf, traits.boot_42 >> 12 & 0xf), (major, minor));
    }

    /// Ids of a B200 and of virtual ones (gpumgrWaitForBarFirewall): 595 treats 21d7 to 21dd and 21ea as the latter.
    #[test]
    fn a_b200_is_a_real_one() {
        let b200 = Model::B200.traits();
        assert_eq!((b200.device, b200.subdevice, b200.class), (0x2901, 0x1999, 0x03_02_00));
    }

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for (name, _) in NAMES {
            assert_eq!(name.parse::<Spec>().unwrap().to_string(), *name);
        }
        assert_eq!("t4:off-bus".parse::<Spec>().unwrap().to_string(), "t4:off-bus");
        assert!("t5".parse::<Spec>().unwrap_err().contains("t5"));
        assert!("t4:broken".parse::<Spec>().unwrap_err().contains("broken"));
    }

    #[test]
    fn an_hgx_board_has_room_and_one_device_more_has_not() {
        for (gpus, switches, has_room) in
            [(0, 0, true), (8, 6, true), (8, 4, true), (9, 0, false), (0, 7, false), (9, 7, false)]
        {
            let mut devices = vec!["h100".parse::<Spec>().unwrap(); gpus];
            devices.extend(vec!["nvswitch".parse::<Spec>().unwrap(); switches]);
            assert_eq!(check(&devices).is_ok(), has_room, "{gpus} GPUs, {switches} switches");
        }
    }

    #[test]
    fn bars_of_eight_gpus_fit_into_the_hole() {
        // From the end of q35's PCIEXBAR at 0xc0000000 to the I/O APIC at 0xfec00000. In the order of
        // size no BAR needs padding; 16 MiB are left for the VM's other devices.
        let devices = ["h100".parse::<Spec>().unwrap(); MOST_GPUS];
        let bars = devices.iter().flat_map(|gpu| gpu.model.bars(false)).map(u64::from);
        assert!(bars.sum::<u64>() + (16 << 20) <= 0xfec0_0000 - 0xc000_0000);
    }
}
