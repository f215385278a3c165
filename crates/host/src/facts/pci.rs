//! NVIDIA's functions on the PCI bus, from /sys/bus/pci/devices.

use std::io::{self, ErrorKind::NotFound};
use std::path::Path;

use nix::errno::Errno;

use crate::facts::{DeviceKind, PciDevice, vgpu};
use longshore_core::root::{Root, errno_of, if_there, is_absent};

pub(crate) const DEVICES: &str = "sys/bus/pci/devices";
const NVIDIA: u32 = 0x10de;

/// Number of times that the bus is listed anew where a function left it meanwhile.
const LISTINGS: usize = 3;

/// Reads the GPUs and NVSwitches of a host whose /sys is below this root.
///
/// # Errors
/// If the root cannot be opened, or the bus or one of its NVIDIA functions cannot be read.
pub fn devices(root: &Path) -> io::Result<Vec<PciDevice>> {
    read(&Root::open(root)?)
}

/// Reads the GPUs and NVSwitches, by address. Virtual functions are left out: they are for guests, and on the
/// host that has the physical function nvidia.ko ignores them (nv-pci.c, `is_virtfn`).
///
/// A function that leaves the bus while it is read, of any vendor, is not there: the bus is listed anew then, so
/// that one that took its place is found, and after some times read as it is.
///
/// # Errors
/// If the bus or one of its NVIDIA functions cannot be read.
pub(super) fn read(root: &Root) -> io::Result<Vec<PciDevice>> {
    let mut read = read_once(root)?;
    for _ in 1..LISTINGS {
        if !read.has_changed {
            break;
        }
        read = read_once(root)?;
    }
    Ok(read.devices)
}

/// Devices of one listing of the bus.
struct Listing {
    devices: Vec<PciDevice>,
    /// True if a function that was listed was gone when it was read.
    has_changed: bool,
}

fn read_once(root: &Root) -> io::Result<Listing> {
    let addresses = match root.read_dir(DEVICES) {
        // A machine without a PCI bus has no such directory; that differs from a missing /sys.
        Err(e) if is_absent(&e) && root.exists("sys/bus")? => Vec::new(),
        other => other?,
    };
    let mut listing = Listing { devices: Vec::new(), has_changed: false };
    for address in addresses {
        match read_device(root, &address) {
            Ok(device) => listing.devices.extend(device),
            // sysfs removes a function's files before its directory; a read of an open one is ENODEV.
            Err(e) if e.kind() == NotFound || errno_of(&e) == Some(Errno::ENODEV) => {
                listing.has_changed = true;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(listing)
}

fn read_device(root: &Root, address: &str) -> io::Result<Option<PciDevice>> {
    let dir = format!("{DEVICES}/{address}");
    if number(root, &format!("{dir}/vendor"))? != NVIDIA {
        return Ok(None);
    }
    let class = number(root, &format!("{dir}/class"))?;
    let Some(kind) = kind_of(class) else { return Ok(None) };
    if root.exists(format!("{dir}/physfn"))? {
        return Ok(None);
    }
    let driver = if_there(root.read_link(format!("{dir}/driver")))?;
    let driver = driver.and_then(|target| Some(target.file_name()?.to_string_lossy().into_owned()));
    // For other users than root the file ends after 64 bytes. A bound device is not read: that would wake one which its
    // driver has suspended (pci_config_pm_runtime_get in drivers/pci/pci-sysfs.c).
    let config = || root.read(format!("{dir}/config"));
    let vgpu = driver.is_none() && config().is_ok_and(|config| vgpu::is_vgpu(&config));
    Ok(Some(PciDevice {
        address: address.to_owned(),
        kind,
        device: low_half(number(root, &format!("{dir}/device"))?),
        subsystem_device: low_half(number(root, &format!("{dir}/subsystem_device"))?),
        class,
        driver,
        vgpu,
    }))
}

/// Kind of the classes in nvidia.ko's PCI table (kernel-open/nvidia/nv-pci-table.c), compared
/// exactly: VGA and 3D controllers, and the bridge class of an NVSwitch.
fn kind_of(class: u32) -> Option<DeviceKind> {
    match class {
        0x03_0000 | 0x03_0200 => Some(DeviceKind::Gpu),
        0x06_8000 => Some(DeviceKind::NvSwitch),
        _ => None,
    }
}

/// Reads a file with one hexadecimal number, `0x10de`.
fn number(root: &Root, path: &str) -> io::Result<u32> {
    let text = root.read_to_string(path)?;
    parse_hex(&text).ok_or_else(|| {
        let message = format!("{}: `{}` is no number", root.display(path).display(), text.trim());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn parse_hex(text: &str) -> Option<u32> {
    let digits = text.trim().strip_prefix("0x")?;
    u32::from_str_radix(digits, 16).ok()
}

/// The low 16 bits: device ids are 16 bits wide.
fn low_half(number: u32) -> u16 {
    (number & 0xffff) as u16
}

/// True for the address of a PCI function as sysfs has it: `0000:01:00.0`, with a domain of four
/// digits or more.
pub fn is_address(text: &str) -> bool {
    let is_hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        digits.contains(&part.len()) && part.bytes().all(lower)
    };
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let [domain, bus, slot, function] = parts[..] else { return false };
    text == format!("{domain}:{bus}:{slot}.{function}")
        && is_hex(domain, 4..=8)
        && is_hex(bus, 2..=2)
        && is_hex(slot, 2..=2)
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

/// True for a name that a PCI driver can have.
pub fn is_driver_name(text: &str) -> bool {
    let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[rstest]
    #[case("0x10de\n", Some(0x10de))]
    #[case("0x030200", Some(0x03_0200))]
    #[case("10de", None)]
    #[case("0x", None)]
    #[case("0x1ffffffff", None)]
    fn numbers(#[case] text: &str, #[case] wanted: Option<u32>) {
        assert_eq!(parse_hex(text), wanted);
    }

    #[rstest]
    #[case(0x03_0000, Some(DeviceKind::Gpu))]
    #[case(0x03_0200, Some(DeviceKind::Gpu))]
    #[case(0x03_8000, None)]
    #[case(0x04_0300, None)]
    #[case(0x06_8000, Some(DeviceKind::NvSwitch))]
    #[case(0x06_8001, None)]
    fn classes(#[case] class: u32, #[case] wanted: Option<DeviceKind>) {
        assert_eq!(kind_of(class), wanted);
    }

    #[rstest]
    #[case("0000:01:00.0", true)]
    #[case("10000:e1:1f.7", true)]
    #[case("0000:01:00.8", false)]
    #[case("0000:01:00:0", false)]
    #[case("0000.01:00.0", false)]
    #[case("../../0000:01:00.0", false)]
    #[case("0000:01:00.0/", false)]
    #[case("0000:01:00.0\n", false)]
    #[case("", false)]
    fn addresses(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_address(text), wanted);
    }

    #[test]
    fn a_device_behind_links_as_sysfs_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("sys/devices/pci0000:00/0000:01:00.0");
        fs::create_dir_all(&real).unwrap();
        fs::create_dir_all(dir.path().join(DEVICES)).unwrap();
        for (name, value) in [
            ("vendor", "0x10de"),
            ("device", "0x1eb8"),
            ("class", "0x030200"),
            ("subsystem_device", "0x12a2"),
        ] {
            fs::write(real.join(name), format!("{value}\n")).unwrap();
        }
        symlink("../../../bus/pci/drivers/vfio-pci", real.join("driver")).unwrap();
        let link = dir.path().join(DEVICES).join("0000:01:00.0");
        symlink("../../../devices/pci0000:00/0000:01:00.0", link).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let devices = read(&root).unwrap();
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].driver.as_deref(), Some("vfio-pci"));
        assert_eq!(devices[0].subsystem_device, 0x12a2);

        fs::write(real.join("class"), "garbage").unwrap();
        assert!(read(&root).unwrap_err().to_string().contains("0000:01:00.0/class"));
    }
    /// Makes a function of this vendor on a bus below `root`, as sysfs has it.
    fn function(root: &Path, address: &str, vendor: &str) -> PathBuf {
        let devices = root.join("sys/devices/pci0000:00");
        let (dir, new) = (devices.join(address), devices.join("new"));
        fs::create_dir_all(&new).unwrap();
        fs::create_dir_all(root.join(DEVICES)).unwrap();
        for (name, value) in [
            ("vendor", vendor),
            ("device", "0x26b9"),
            ("class", "0x030200"),
            ("subsystem_device", "0x1851"),
        ] {
            fs::write(new.join(name), format!("{value}\n")).unwrap();
        }
        // At once, as a reader sees it in sysfs.
        fs::rename(&new, &dir).unwrap();
        let link = root.join(DEVICES).join(address);
        symlink(format!("../../../devices/pci0000:00/{address}"), link).unwrap();
        dir
    }

    fn addresses_on(root: &Path) -> io::Result<Vec<String>> {
        let devices = read(&Root::open(root).unwrap())?;
        Ok(devices.into_iter().map(|device| device.address).collect())
    }

    #[test]
    fn virtual_functions_are_for_guests() {
        let dir = tempfile::tempdir().unwrap();
        function(dir.path(), "0000:41:00.0", "0x10de");
        let virtual_function = function(dir.path(), "0000:41:00.4", "0x10de");
        symlink("../0000:41:00.0", virtual_function.join("physfn")).unwrap();
        assert_eq!(addresses_on(dir.path()).unwrap(), ["0000:41:00.0"]);
    }

    /// Removes a part of a function, as its removal from the bus does.
    fn remove(dir: &Path, part: &str) {
        let path = dir.join(part);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    #[rstest]
    #[case::link_alone("0x8086", "")]
    #[case::without_vendor("0x8086", "vendor")]
    #[case::of_nvidia("0x10de", "")]
    #[case::of_nvidia_without_class("0x10de", "class")]
    #[case::of_nvidia_without_its_last_number("0x10de", "subsystem_device")]
    fn a_function_that_leaves_is_not_there(#[case] vendor: &str, #[case] part: &str) {
        let dir = tempfile::tempdir().unwrap();
        function(dir.path(), "0000:01:00.0", "0x10de");
        remove(&function(dir.path(), "0000:02:00.0", vendor), part);
        assert_eq!(addresses_on(dir.path()).unwrap(), ["0000:01:00.0"]);
    }

    #[test]
    fn a_bus_without_sysfs_is_an_error_and_so_is_a_function_that_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(addresses_on(dir.path()).is_err());
        function(dir.path(), "0000:01:00.0", "0x10de");
        fs::write(dir.path().join(DEVICES).join("0000:02:00.0"), "../x").unwrap();
        assert!(addresses_on(dir.path()).is_err());
    }

    /// Functions come and go on a thread, without an end.
    #[test]
    fn a_bus_that_changes_forever_is_read() {
        let dir = tempfile::tempdir().unwrap();
        function(dir.path(), "0000:01:00.0", "0x10de");
        let ended = AtomicBool::new(false);
        let found: Vec<_> = thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let gone = function(dir.path(), "0000:02:00.0", "0x15b3");
                    fs::remove_dir_all(gone).unwrap();
                    fs::remove_file(dir.path().join(DEVICES).join("0000:02:00.0")).unwrap();
                }
            });
            let found = (0..200).map(|_| addresses_on(dir.path()).ok()).collect();
            ended.store(true, Ordering::Relaxed);
            found
        });
        assert!(
            found.iter().all(|found| *found == Some(vec!["0000:01:00.0".to_owned()])),
            "{found:?}"
        );
    }
}
