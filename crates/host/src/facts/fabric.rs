//! NVLink5 switch managers: from NVLink5 on, NVSwitches are managed through network devices and not
//! as PCI functions.

use std::io;

use crate::facts::SwitchManager;
use longshore_core::root::{Root, if_there};

const DEVICES: &str = "sys/class/infiniband";

/// Marker in the vital product data of a device that manages NVLink5 switches (NVIDIA's driver
/// container looks for the same).
const MANAGES: &[u8] = b"SW_MNG";

/// Reads the devices that manage NVLink5 switches, by name.
///
/// # Errors
/// If the devices cannot be listed. A device whose vital product data cannot be read is not
/// counted.
pub(super) fn read(root: &Root) -> io::Result<Vec<SwitchManager>> {
    let mut managers = Vec::new();
    for name in if_there(root.read_dir(DEVICES))?.unwrap_or_default() {
        let vpd = root.read(format!("{DEVICES}/{name}/device/vpd")).unwrap_or_default();
        if vpd.windows(MANAGES.len()).any(|part| part == MANAGES)
            && let Ok(gid) = root.read_to_string(format!("{DEVICES}/{name}/ports/1/gids/0"))
            && let Some(port) = port_guid(gid.trim())
        {
            managers.push(SwitchManager { name, port });
        }
    }
    Ok(managers)
}

/// The lower half of a GID: `fe80:0000:0000:0000:b83f:d203:00aa:bbcc`.
fn port_guid(gid: &str) -> Option<String> {
    let words: Vec<&str> = gid.split(':').collect();
    let is_word = |w: &&str| w.len() == 4 && w.bytes().all(|b| b.is_ascii_hexdigit());
    let lower = words.get(4..).filter(|lower| lower.len() == 4 && lower.iter().all(is_word))?;
    Some(format!("0x{}", lower.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_device_that_manages_switches_is_told_by_its_product_data() {
        let dir = tempfile::tempdir().unwrap();
        for (name, vpd) in [("mlx5_0", "CX7 HCA"), ("mlx5_4", "\0x SW_MNG \0"), ("mlx5_5", "")] {
            let device = dir.path().join(DEVICES).join(name);
            fs::create_dir_all(device.join("device")).unwrap();
            fs::create_dir_all(device.join("ports/1/gids")).unwrap();
            fs::write(device.join("device/vpd"), vpd).unwrap();
            let gid = "fe80:0000:0000:0000:b83f:d203:00aa:bbcc\n";
            fs::write(device.join("ports/1/gids/0"), gid).unwrap();
        }
        let found = read(&Root::open(dir.path()).unwrap()).unwrap();
        let port = "0xb83fd20300aabbcc".to_owned();
        assert_eq!(found, [SwitchManager { name: "mlx5_4".to_owned(), port }]);
    }

    #[test]
    fn a_host_without_such_devices_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&Root::open(dir.path()).unwrap()).unwrap(), []);
        for gid in ["", "fe80::1", "fe80:0:0:0:0:0:0:zzzz", "1:2:3:4:5:6:7:8:9"] {
            assert_eq!(port_guid(gid), None);
        }
    }
}
