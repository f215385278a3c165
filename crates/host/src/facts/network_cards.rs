//! Network cards on the PCI bus, from /sys/bus/pci/devices.

use std::collections::BTreeSet;
use std::io;

use longshore_core::pci_id::{PciId, parse_half};
use longshore_core::root::{Root, if_there, is_absent};

use super::pci::DEVICES;

/// Maximum size of a number's file, in bytes.
const LONGEST: u64 = 64;

/// Base class of network controllers (PCI Code and ID Assignment Specification, 02h).
const NETWORK: &str = "0x02";

/// Reads the network cards; a function that leaves the bus while it is read is not there.
///
/// # Errors
/// If the bus cannot be listed, or a number of a function that is there cannot be read.
pub(super) fn read(root: &Root) -> io::Result<BTreeSet<PciId>> {
    let addresses = match root.read_dir(DEVICES) {
        Err(e) if is_absent(&e) => Vec::new(),
        other => other?,
    };
    let mut cards = BTreeSet::new();
    for address in addresses {
        let number = |name: &str| {
            let path = format!("{DEVICES}/{address}/{name}");
            if_there(root.read_small_text(path, LONGEST))
        };
        if !number("class")?.is_some_and(|class| class.starts_with(NETWORK)) {
            continue;
        }
        let half = |text: Option<String>| parse_half(text?.trim().strip_prefix("0x")?);
        if let (Some(vendor), Some(device)) = (half(number("vendor")?), half(number("device")?)) {
            cards.insert(PciId { vendor, device });
        }
    }
    Ok(cards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn cards_are_told_by_their_class() {
        let dir = tempfile::tempdir().unwrap();
        let functions = [
            ("0000:00:05.0", "0x020000", "0x1d0f", "0xefa2"),
            ("0000:00:06.0", "0x020700", "0x15b3", "0x1021"),
            ("0000:00:07.0", "0x030200", "0x10de", "0x1eb8"),
            ("0000:00:08.0", "0x020000", "garbage", "0x1021"),
        ];
        for (address, class, vendor, device) in functions {
            let function = dir.path().join(DEVICES).join(address);
            fs::create_dir_all(&function).unwrap();
            for (name, value) in [("class", class), ("vendor", vendor), ("device", device)] {
                fs::write(function.join(name), format!("{value}\n")).unwrap();
            }
        }
        // A function that left: its directory has no files any more.
        fs::create_dir_all(dir.path().join(DEVICES).join("0000:00:09.0")).unwrap();
        let cards = read(&Root::open(dir.path()).unwrap()).unwrap();
        let cards: Vec<String> = cards.iter().map(PciId::to_string).collect();
        assert_eq!(cards, ["15b3:1021", "1d0f:efa2"]);
    }

    #[test]
    fn a_machine_without_a_bus_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(&Root::open(dir.path()).unwrap()).unwrap().is_empty());
    }
}
