//! vGPUs of virtual machines, told by their PCI configuration space.
//!
//! A vGPU has the device id of the physical GPU. NVIDIA's vGPU manager marks it by a vendor-specific capability whose
//! fourth and fifth byte are `VF`; records with the host's driver version follow. (NVIDIA's gpu-feature-discovery
//! tells vGPUs by the same bytes.)

/// Status register: bit 4 of its low byte tells that there is a list of capabilities (PCI Local Bus Specification
/// 3.0, 6.2.3).
const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u8 = 0x10;
/// Register with the offset of the first capability, and the first offset that one can have.
const FIRST: usize = 0x34;
const LOWEST: usize = 0x40;
/// Capability id "vendor specific".
const VENDOR_SPECIFIC: u8 = 0x09;
const MARK: &[u8] = b"VF";
/// Maximum number of capabilities: each has four bytes at least.
const MOST: usize = (256 - LOWEST) / 4;

/// True if the configuration space, of which 64 bytes are there for other users than root, is that of a vGPU.
pub(super) fn is_vgpu(config: &[u8]) -> bool {
    if config.get(STATUS).is_none_or(|status| status & HAS_CAPABILITIES == 0) {
        return false;
    }
    let mut at = offset(config, FIRST);
    // A list that leads back to itself ends, too.
    for _ in 0..MOST {
        if at < LOWEST {
            return false;
        }
        let Some(capability) = config.get(at..) else { return false };
        if capability.first() == Some(&VENDOR_SPECIFIC) && capability.get(3..5) == Some(MARK) {
            return true;
        }
        at = offset(config, at + 1);
    }
    false
}

/// Returns the offset in a register; its two lowest bits are reserved.
fn offset(config: &[u8], register: usize) -> usize {
    config.get(register).map_or(0, |offset| usize::from(offset & !3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a configuration space with capabilities at these offsets: id, next, and what follows.
    fn config(capabilities: &[(usize, &[u8])]) -> Vec<u8> {
        let mut config = vec![0; 256];
        config[STATUS] = HAS_CAPABILITIES;
        config[FIRST] = capabilities.first().map_or(0, |(at, _)| u8::try_from(*at).unwrap());
        for (at, bytes) in capabilities {
            config[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        config
    }

    #[test]
    fn a_vgpu_is_told_by_its_mark() {
        let vgpu = [9, 0, 27, b'V', b'F', 0, 10];
        let passed_through = [9, 0, 20, 1, 16, 0, 0];
        let power = [1, 0x68, 3];
        assert!(is_vgpu(&config(&[(0x60, &power), (0x68, &vgpu)])));
        assert!(!is_vgpu(&config(&[(0x60, &power), (0x68, &passed_through)])));
        assert!(!is_vgpu(&config(&[])));
        // Without the bit, with a loop, cut off, and beyond the end.
        let mut without = config(&[(0x60, &vgpu)]);
        without[STATUS] = 0;
        assert!(!is_vgpu(&without));
        assert!(!is_vgpu(&config(&[(0x60, &[1, 0x60, 3])])));
        assert!(!is_vgpu(&config(&[(0x60, &power), (0x68, &vgpu)])[..64]));
        assert!(!is_vgpu(&config(&[(0xfc, &vgpu[..3])])));
        assert!(!is_vgpu(&[]));
    }
}
