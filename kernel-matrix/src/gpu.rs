//! The simulated GPU: the parts of a device that nvidia.ko reads before it accepts it.
//!
//! The module's probe reads vendor, class, device id, three memory BARs, an interrupt pin with a
//! line, and registers 0x0 (BOOT_0), 0x4 (BOOT_1) and 0xA00 (BOOT_42) of BAR0. Nothing else of the
//! device has to exist until a process opens /dev/nvidia0.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// NVIDIA's PCI vendor id.
const VENDOR: u16 = 0x10de;
/// Most GPUs of a VM, as on an HGX board: all of their BARs are in the 32-bit hole.
const MOST_GPUS: usize = 8;
/// Most NVSwitches of a VM, as on an HGX A100 board. They have no BARs, but a slot each.
const MOST_SWITCHES: usize = 6;
/// Value of every register when the device has fallen off the bus.
const OFF_BUS: u32 = 0xffff_ffff;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const INTERRUPT_LINE: usize = 0x3c;

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
            // The module rejects it by its device id, before it reads a register.
            Self::K80 => gpu(0x102d, 0, 0x0f20_00a1, 0x0f2a_1000),
            Self::NvSwitch => {
                Traits { device: 0x22a3, subdevice: 0, class: 0x06_80_00, boot_0: 0, boot_42: 0 }
            }
        }
    }

    /// Returns the BAR sizes in bytes. 32-bit only, as QEMU's proxy drops the 64-bit and prefetch
    /// flags; with several devices BAR1 is small, or the 32-bit hole overflows and the firmware
    /// hangs.
    fn bars(self, alone: bool) -> [u32; 3] {
        const MIB: u32 = 1 << 20;
        match self {
            Self::NvSwitch => [0; 3],
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

impl TryFrom<String> for Spec {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

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

/// One simulated device: its configuration space and its register values.
#[derive(Debug, Clone)]
pub struct Device {
    config: [u8; 256],
    bars: [u32; 3],
    boot_0: u32,
    boot_1: u32,
    boot_42: u32,
    off_bus: bool,
}

impl Device {
    /// Makes the device `spec`; `alone` where the VM has no other.
    pub fn new(spec: Spec, alone: bool) -> Self {
        let traits = spec.model.traits();
        let mut device = Self {
            config: [0; 256],
            bars: spec.model.bars(alone),
            boot_0: traits.boot_0,
            boot_1: 0,
            boot_42: traits.boot_42,
            off_bus: spec.fault == Some(Fault::OffBus),
        };
        device.config[0x00..0x02].copy_from_slice(&VENDOR.to_le_bytes());
        device.config[0x02..0x04].copy_from_slice(&traits.device.to_le_bytes());
        device.config[0x08] = 0xa1;
        device.config[0x09..0x0c].copy_from_slice(&traits.class.to_le_bytes()[..3]);
        device.config[0x2c..0x2e].copy_from_slice(&VENDOR.to_le_bytes());
        device.config[0x2e..0x30].copy_from_slice(&traits.subdevice.to_le_bytes());
        device.config[0x3d] = u8::from(spec.fault != Some(Fault::NoIrq));
        device
    }

    /// Reads `len` (1 to 4) bytes of configuration space; ones beyond its end.
    pub fn config_read(&self, address: u32, len: u32) -> u64 {
        let start = address as usize;
        let bytes = len.clamp(1, 4) as usize;
        self.config
            .get(start..start + bytes)
            .map_or(u64::from(OFF_BUS), |at| at.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    }

    /// Writes to configuration space: command, BARs and interrupt line; the rest is read-only.
    pub fn config_write(&mut self, address: u32, value: u32, len: u32) {
        let start = address as usize;
        for (offset, byte) in value.to_le_bytes().iter().take(len.clamp(1, 4) as usize).enumerate()
        {
            let at = start + offset;
            let bar_bytes = BAR0..BAR0 + 4 * self.bars.len();
            if bar_bytes.contains(&at) {
                let mask = self.bars[(at - BAR0) / 4].checked_sub(1).map_or(0, |low| !low);
                self.config[at] = byte & mask.to_le_bytes()[(at - BAR0) % 4];
            } else if (COMMAND..COMMAND + 2).contains(&at) || at == INTERRUPT_LINE {
                self.config[at] = *byte;
            }
        }
    }

    /// Reads memory at an absolute bus address that falls into one of the BARs.
    pub fn memory_read(&self, address: u64, size: u32) -> u64 {
        let all_ones = u64::MAX >> (64 - 8 * size.clamp(1, 8));
        if self.off_bus {
            return all_ones;
        }
        let base = self.config_read(BAR0 as u32, 4);
        let register = match address.checked_sub(base) {
            Some(0x000) => self.boot_0,
            Some(0x004) => self.boot_1,
            Some(0xa00) => self.boot_42,
            _ => 0,
        };
        u64::from(register) & all_ones
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(spec: &str) -> Device {
        Device::new(spec.parse().unwrap(), true)
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

    #[test]
    fn identity_is_what_the_module_looks_for() {
        let t4 = device("t4");
        assert_eq!(t4.config_read(0x00, 4), 0x1eb8_10de);
        assert_eq!(t4.config_read(0x08, 4), 0x0302_00a1);
        assert_eq!(t4.config_read(0x0a, 2), 0x0302);
        assert_eq!(t4.config_read(0x3d, 1), 1);
        assert_eq!(device("t4:no-irq").config_read(0x3d, 1), 0);
        assert_eq!(device("nvswitch").config_read(0x08, 4) >> 8, 0x0006_8000);
    }

    #[test]
    fn bars_answer_sizing_and_keep_addresses() {
        let mut t4 = device("t4");
        for (bar, mask) in [(0x10, 0xff00_0000u32), (0x14, 0xf000_0000), (0x18, 0xfe00_0000)] {
            t4.config_write(bar, u32::MAX, 4);
            assert_eq!(t4.config_read(bar, 4), u64::from(mask));
        }
        t4.config_write(0x1c, u32::MAX, 4);
        assert_eq!(t4.config_read(0x1c, 4), 0, "there is no fourth BAR");
        t4.config_write(0x10, 0xfb00_0000, 4);
        assert_eq!(t4.config_read(0x10, 4), 0xfb00_0000);
        let mut switch = device("nvswitch");
        switch.config_write(0x10, u32::MAX, 4);
        assert_eq!(switch.config_read(0x10, 4), 0);
    }

    #[test]
    fn identity_cannot_be_written() {
        let mut t4 = device("t4");
        t4.config_write(0x00, 0, 4);
        t4.config_write(0xfe, 0xdead_beef, 4);
        assert_eq!(t4.config_read(0x00, 2), 0x10de);
        assert_eq!(t4.config_read(0xfe, 4), u64::from(OFF_BUS), "past the end");
    }

    #[test]
    fn registers_follow_bar0() {
        let mut t4 = device("t4");
        t4.config_write(0x10, 0xfb00_0000, 4);
        assert_eq!(t4.memory_read(0xfb00_0000, 4), 0x1640_00a1);
        assert_eq!(t4.memory_read(0xfb00_0004, 4), 0);
        assert_eq!(t4.memory_read(0xfb00_0a00, 4), 0x164a_1000);
        assert_eq!(t4.memory_read(0x1000, 4), 0);
        assert_eq!(device("t4:off-bus").memory_read(0xa00, 4), u64::from(OFF_BUS));
    }
}
