//! One simulated device: configuration space, BARs and registers. Every backend passes the guest's
//! accesses to it, so that a guest sees the same device behind each.

use super::{Fault, Spec, VENDOR};

/// Size of the configuration space: a conventional PCI device's.
pub(crate) const CONFIG_SIZE: usize = 256;
/// Number of BARs. All are in memory, with 32-bit addresses and not prefetchable, as QEMU's proxy
/// drops the flags for anything else.
pub(crate) const BARS: usize = 3;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const INTERRUPT_LINE: usize = 0x3c;
const INTERRUPT_PIN: usize = 0x3d;
/// Value of each byte that no device answers for.
const NO_ANSWER: u8 = 0xff;

/// A device's state.
#[derive(Debug, Clone)]
pub struct Device {
    config: [u8; CONFIG_SIZE],
    bars: [u32; BARS],
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
            config: [0; CONFIG_SIZE],
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
        device.config[INTERRUPT_PIN] = u8::from(spec.fault != Some(Fault::NoIrq));
        device
    }

    /// Reads configuration space into `bytes`; ones beyond its end.
    pub fn config_read(&self, offset: usize, bytes: &mut [u8]) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            let address = offset.checked_add(at);
            let known = address.and_then(|address| self.config.get(address));
            *byte = known.copied().unwrap_or(NO_ANSWER);
        }
    }

    /// Writes to configuration space: command, BARs and interrupt line; the rest is read-only.
    pub fn config_write(&mut self, offset: usize, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            let Some(at) = offset.checked_add(at) else { return };
            if (BAR0..BAR0 + 4 * BARS).contains(&at) {
                let mask = self.bars[(at - BAR0) / 4].checked_sub(1).map_or(0, |low| !low);
                self.config[at] = byte & mask.to_le_bytes()[(at - BAR0) % 4];
            } else if (COMMAND..COMMAND + 2).contains(&at) || at == INTERRUPT_LINE {
                self.config[at] = *byte;
            }
        }
    }

    /// Returns the size of a BAR in bytes; 0 if the device does not have it.
    pub fn bar_size(&self, bar: usize) -> u32 {
        self.bars.get(bar).copied().unwrap_or(0)
    }

    /// Returns the BAR that a bus address falls into, and the offset in it.
    pub fn bar_at(&self, address: u64) -> Option<(usize, u64)> {
        (0..BARS).find_map(|bar| {
            let mut base = [0; 4];
            self.config_read(BAR0 + 4 * bar, &mut base);
            let offset = address.checked_sub(u64::from(u32::from_le_bytes(base)))?;
            (offset < u64::from(self.bars[bar])).then_some((bar, offset))
        })
    }

    /// Reads a BAR into `bytes`: the registers of BAR0, zeros elsewhere; ones from a device that has
    /// fallen off the bus. BARs ignore writes.
    pub fn bar_read(&self, bar: usize, offset: u64, bytes: &mut [u8]) {
        for (at, byte) in (offset..=u64::MAX).zip(bytes) {
            let register = match (bar, at & !3) {
                _ if self.off_bus => u32::MAX,
                (0, 0x000) => self.boot_0,
                (0, 0x004) => self.boot_1,
                (0, 0xa00) => self.boot_42,
                _ => 0,
            };
            *byte = register.to_le_bytes()[(at & 3) as usize];
        }
    }

    /// True if the device has an interrupt pin.
    pub fn has_interrupt(&self) -> bool {
        self.config[INTERRUPT_PIN] != 0
    }

    /// Resets the device: command, BARs and interrupt line are 0 as after its start.
    pub fn reset(&mut self) {
        self.config_write(COMMAND, &[0; 2]);
        self.config_write(BAR0, &[0; 4 * BARS]);
        self.config_write(INTERRUPT_LINE, &[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(spec: &str) -> Device {
        Device::new(spec.parse().unwrap(), true)
    }

    fn config<const N: usize>(device: &Device, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        device.config_read(offset, &mut bytes);
        bytes
    }

    fn config_u32(device: &Device, offset: usize) -> u32 {
        u32::from_le_bytes(config(device, offset))
    }

    fn register(device: &Device, bar: usize, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        device.bar_read(bar, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity_is_what_the_module_looks_for() {
        let t4 = device("t4");
        assert_eq!(config_u32(&t4, 0x00), 0x1eb8_10de);
        assert_eq!(config_u32(&t4, 0x08), 0x0302_00a1);
        assert_eq!(config(&t4, 0x0a), [0x02, 0x03]);
        assert_eq!(config(&t4, 0x3d), [1]);
        assert!(t4.has_interrupt() && !device("t4:no-irq").has_interrupt());
        assert_eq!(config(&device("t4:no-irq"), 0x3d), [0]);
        assert_eq!(config_u32(&device("nvswitch"), 0x08) >> 8, 0x0006_8000);
    }

    #[test]
    fn bars_answer_sizing_and_keep_addresses() {
        let mut t4 = device("t4");
        for (bar, mask) in [(0, 0xff00_0000), (1, 0xf000_0000u32), (2, 0xfe00_0000)] {
            t4.config_write(BAR0 + 4 * bar, &[0xff; 4]);
            assert_eq!(config_u32(&t4, BAR0 + 4 * bar), mask);
            assert_eq!(t4.bar_size(bar), !mask + 1);
        }
        t4.config_write(0x1c, &[0xff; 4]);
        assert_eq!((config_u32(&t4, 0x1c), t4.bar_size(3)), (0, 0), "there is no fourth BAR");
        t4.config_write(0x10, &0xfb00_0000u32.to_le_bytes());
        assert_eq!(config_u32(&t4, 0x10), 0xfb00_0000);
        let mut switch = device("nvswitch");
        switch.config_write(0x10, &[0xff; 4]);
        assert_eq!((config_u32(&switch, 0x10), switch.bar_size(0)), (0, 0));
    }

    #[test]
    fn identity_cannot_be_written_and_nothing_is_past_the_end() {
        let mut t4 = device("t4");
        t4.config_write(0x00, &[0; 4]);
        t4.config_write(0xfe, &[0; 4]);
        t4.config_write(usize::MAX, &[0; 4]);
        assert_eq!(config(&t4, 0x00), [0xde, 0x10]);
        assert_eq!(config(&t4, 0xfe), [0, 0, NO_ANSWER, NO_ANSWER]);
        assert_eq!(config(&t4, usize::MAX), [NO_ANSWER; 2]);
    }

    #[test]
    fn registers_are_in_bar0_alone() {
        let t4 = device("t4");
        for (bar, offset, value) in [
            (0, 0x000, 0x1640_00a1),
            (0, 0x004, 0),
            (0, 0xa00, 0x164a_1000),
            (0, 0x1000, 0),
            (1, 0x000, 0),
            (0, 0xa01, 0x0016_4a10),
            (0, u64::MAX, 0),
        ] {
            assert_eq!(register(&t4, bar, offset), value, "{bar} {offset:#x}");
        }
        let gone = device("t4:off-bus");
        assert_eq!([register(&gone, 0, 0xa00), register(&gone, 2, 0)], [u32::MAX; 2]);
    }

    #[test]
    fn a_bus_address_is_found_in_its_bar() {
        let mut t4 = device("t4");
        for (bar, base) in [(0, 0xfb00_0000u32), (1, 0xd000_0000), (2, 0xf800_0000)] {
            t4.config_write(BAR0 + 4 * bar, &base.to_le_bytes());
        }
        for (address, found) in [
            (0xfb00_0a00, Some((0, 0xa00))),
            (0xdfff_ffff, Some((1, 0x0fff_ffff))),
            (0xf800_0000, Some((2, 0))),
            (0xfc00_0000, None),
            (0x1000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(t4.bar_at(address), found, "{address:#x}");
        }
        assert_eq!(device("nvswitch").bar_at(0), None);
    }

    #[test]
    fn a_reset_takes_back_the_addresses_and_nothing_else() {
        let mut t4 = device("t4");
        t4.config_write(COMMAND, &[6, 0]);
        t4.config_write(BAR0, &0xfb00_0000u32.to_le_bytes());
        t4.config_write(INTERRUPT_LINE, &[11]);
        t4.reset();
        assert_eq!(t4.config, device("t4").config);
    }
}
