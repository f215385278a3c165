//! Machines whose GPU is not driven by a data-centre driver's nvidia.ko.

use crate::facts::Platform;
use longshore_core::root::Root;
use longshore_core::sanitize::in_line;

/// Maximum size of the list of compatible machines, in bytes; boards have some hundred.
const COMPATIBLE: u64 = 16 << 10;

/// Tells the platform by the kernel's release, the paravirtual GPU of WSL 2 (drivers/hv/dxgkrnl in Microsoft's
/// kernels), and the device tree's names of the machine.
pub(super) fn read(root: &Root, host: &Root, release: &str) -> Option<Platform> {
    let dxg = [root, host].iter().any(|root| root.exists("dev/dxg").unwrap_or(false));
    if dxg || release.to_ascii_lowercase().contains("microsoft-standard-wsl") {
        return Some(Platform::Wsl);
    }
    // Strings, each ended by a zero byte (Devicetree Specification, 2.3.1).
    let compatible = root.read_small_text("proc/device-tree/compatible", COMPATIBLE).ok()?;
    let mut names = compatible.split('\0');
    let soc = names.find(|name| name.starts_with("nvidia,tegra"))?;
    Some(Platform::Tegra(in_line(soc).chars().take(64).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn platforms_are_told_by_release_device_and_device_tree() {
        let orin = "nvidia,p3737-0000+p3701-0000\0nvidia,p3701-0000\0nvidia,tegra234\0";
        let tegra = Some(Platform::Tegra("nvidia,tegra234".to_owned()));
        let cases = [
            ("6.1.0-50-amd64", None, None, None),
            ("5.15.146.1-microsoft-standard-WSL2", None, None, Some(Platform::Wsl)),
            ("6.6.87-custom", Some("dev/dxg"), None, Some(Platform::Wsl)),
            ("6.1.0-1012-microsoft-hyperv", None, None, None),
            ("5.15.148-tegra", None, Some(orin), tegra),
            ("6.1.0-50-arm64", None, Some("raspberrypi,4-model-b\0brcm,bcm2711\0"), None),
        ];
        for (release, device, compatible, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            let files = [
                device.map(|path| (path, "")),
                compatible.map(|c| ("proc/device-tree/compatible", c)),
            ];
            for (path, text) in files.into_iter().flatten() {
                let path = dir.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            let root = Root::open(dir.path()).unwrap();
            assert_eq!(read(&root, &root, release), expected, "{release}");
        }
    }
}
