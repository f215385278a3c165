//! Modules: loaded (/sys/module, /proc/modules), built in, and shipped as files
//! (/lib/modules/RELEASE).

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nix::errno::Errno;

use crate::facts::module_files::{ModuleFiles, kernel_name};
use crate::facts::{LiveDriver, LoadedModule};
use longshore_core::flavour::Flavour;
use longshore_core::module_dir::module_dir;
use longshore_core::root::{Root, errno_of, is_absent};

/// True if a module, by its kernel name, belongs to NVIDIA's driver or depends on it: all of them
/// have this prefix, and so have two of the kernel's own.
pub fn is_of_driver(name: &str) -> bool {
    const OF_KERNEL: [&str; 2] = ["nvidia_cspmu", "nvidia_wmi_ec_backlight"];
    name == "nvidia" || (name.starts_with("nvidia_") && !OF_KERNEL.contains(&name))
}

/// Reads the loaded modules, without the built-in ones. The fields that /proc/modules lacks
/// (version, srcversion, parameters) are read for the driver's modules only: a host has a hundred
/// others, and each would be six files.
///
/// # Errors
/// If neither /sys/module nor /proc/modules can be read.
pub(super) fn read_loaded(root: &Root) -> io::Result<BTreeMap<String, LoadedModule>> {
    // Most directories of /sys/module belong to built-in modules.
    let (mut loaded, names) = match root.read_to_string("proc/modules") {
        Ok(text) => {
            let listed = parse_proc_modules(&text);
            let names = listed.keys().filter(|name| is_of_driver(name)).cloned().collect();
            (listed, names)
        }
        Err(_) => (BTreeMap::new(), root.read_dir("sys/module")?),
    };
    for name in names {
        if let Some(module) = read_module(root, &name)? {
            loaded.insert(name, module);
        }
    }
    Ok(loaded)
}

/// Reads a module of /sys/module; None if it is built in (no initstate, no refcnt:
/// Documentation/ABI/testing/sysfs-module).
fn read_module(root: &Root, name: &str) -> io::Result<Option<LoadedModule>> {
    let attribute = |file: &str| match root.read_to_string(format!("sys/module/{name}/{file}")) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(e) if is_absent(&e) => Ok(None),
        // Attributes of a module that is being unloaded return ENODEV.
        Err(e) if errno_of(&e) == Some(Errno::ENODEV) => Ok(None),
        Err(e) => Err(e),
    };
    let (state, refcount) = (attribute("initstate")?, attribute("refcnt")?);
    if state.is_none() && refcount.is_none() {
        return Ok(None);
    }
    Ok(Some(LoadedModule {
        refcount: refcount.and_then(|text| text.parse().ok()),
        holders: root.read_dir(format!("sys/module/{name}/holders")).unwrap_or_default(),
        state,
        version: attribute("version")?,
        srcversion: attribute("srcversion")?,
        parameters: read_parameters(root, name),
    }))
}

/// Reads the parameters that one of NVIDIA's modules reports: in sysfs, and nvidia's registry keys,
/// which have no file there (nv-reg.h), in /proc/driver/nvidia/params. Unreadable ones are left
/// out.
fn read_parameters(root: &Root, module: &str) -> BTreeMap<String, String> {
    let mut shown = BTreeMap::new();
    if module == "nvidia" {
        let registry = root.read_to_string("proc/driver/nvidia/params").unwrap_or_default();
        let lines = registry.lines().filter_map(|line| line.split_once(": "));
        let value = |text: &str| text.trim_matches('"').to_owned();
        shown.extend(lines.map(|(key, text)| (format!("NVreg_{key}"), value(text))));
    } else if !is_of_driver(module) {
        return shown;
    }
    let dir = format!("sys/module/{module}/parameters");
    for name in root.read_dir(&dir).unwrap_or_default() {
        if let Ok(text) = root.read_to_string(format!("{dir}/{name}")) {
            shown.insert(name, text.trim_end_matches('\n').to_owned());
        }
    }
    shown
}

/// Parses /proc/modules: `name size refcount holder,holder, State address`; `-` stands for none.
fn parse_proc_modules(text: &str) -> BTreeMap<String, LoadedModule> {
    let mut loaded = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, _, refcount, holders, state, ..] = fields[..] else { continue };
        let holders =
            holders.split(',').filter(|h| !h.is_empty() && !matches!(*h, "-" | "[permanent]"));
        let state = match state {
            "Live" => Some("live"),
            "Loading" => Some("coming"),
            "Unloading" => Some("going"),
            _ => None,
        };
        let module = LoadedModule {
            refcount: refcount.parse().ok(),
            holders: holders.map(str::to_owned).collect(),
            state: state.map(str::to_owned),
            ..LoadedModule::default()
        };
        loaded.insert(name.to_owned(), module);
    }
    loaded
}

/// Reads the loaded NVIDIA driver: from /proc/driver/nvidia/version, else from its module's
/// version.
pub(super) fn read_live_driver(
    root: &Root,
    loaded: &BTreeMap<String, LoadedModule>,
) -> Option<LiveDriver> {
    let module = loaded.get("nvidia")?;
    let said = root.read_to_string("proc/driver/nvidia/version").ok();
    said.as_deref()
        .and_then(parse_driver_version)
        .or_else(|| Some(LiveDriver { version: module.version.clone()?, flavour: None }))
}

/// Reads the loaded NVIDIA driver alone; None where there is none, or it cannot be read.
pub fn loaded_driver(root: &Root) -> Option<LiveDriver> {
    let said = root.read_to_string("proc/driver/nvidia/version").ok();
    said.as_deref().and_then(parse_driver_version).or_else(|| {
        let version = root.read_to_string("sys/module/nvidia/version").ok()?;
        Some(LiveDriver { version: version.trim().to_owned(), flavour: None })
    })
}

/// Parses the first line of /proc/driver/nvidia/version: `NVRM version: NVIDIA UNIX Open Kernel
/// Module for x86_64  535.261.03  ...` or `NVRM version: NVIDIA UNIX x86_64 Kernel Module
/// 535.261.03  ...`.
fn parse_driver_version(text: &str) -> Option<LiveDriver> {
    let line = text.lines().find_map(|line| line.strip_prefix("NVRM version:"))?;
    let number =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let version = line.split_ascii_whitespace().find(number)?.to_owned();
    let flavour =
        if line.contains("Open Kernel Module") { Flavour::Open } else { Flavour::Proprietary };
    Some(LiveDriver { version, flavour: Some(flavour) })
}

/// Reads the modules.builtin of a kernel release.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read_builtin(host: &Root, release: &str) -> io::Result<BTreeSet<String>> {
    index(host, release, "modules.builtin").map(|text| parse_builtin(&text))
}

fn parse_builtin(text: &str) -> BTreeSet<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(kernel_name).collect()
}

/// Reads the modules.dep of a kernel release.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read_available(host: &Root, release: &str) -> io::Result<ModuleFiles> {
    index(host, release, "modules.dep").map(ModuleFiles::from)
}

fn index(host: &Root, release: &str, file: &str) -> io::Result<String> {
    host.read_to_string(module_dir(host, release).join(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("nvidia", true)]
    #[case("nvidia_uvm", true)]
    #[case("nvidia_peermem", true)]
    #[case("nvidiafb", false)]
    #[case("nvidia_wmi_ec_backlight", false)]
    #[case("drm", false)]
    fn modules_of_the_driver(#[case] name: &str, #[case] wanted: bool) {
        assert_eq!(is_of_driver(name), wanted);
    }

    #[test]
    fn parameters_of_the_driver_are_read_from_both_places_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/driver/nvidia/params", "EnableMSI: 1\nRegistryDwords: \"a=1;b=2\"\n");
        write("sys/module/nvidia_uvm/parameters/uvm_debug_prints", "0\n");
        write("sys/module/drm/parameters/debug", "0\n");
        let root = Root::open(dir.path()).unwrap();
        let read = |module: &str| {
            let shown = read_parameters(&root, module).into_iter();
            shown.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(read("nvidia"), ["NVreg_EnableMSI=1", "NVreg_RegistryDwords=a=1;b=2"]);
        assert_eq!(read("nvidia_uvm"), ["uvm_debug_prints=0"]);
        assert!(read("nvidia_modeset").is_empty() && read("drm").is_empty());
    }

    #[test]
    fn proc_modules() {
        let loaded = parse_proc_modules(
            "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0 (POE)\nx 3 - [permanent], Loading 0x0\nshort\n",
        );
        assert_eq!(loaded["nvidia"].holders, ["nvidia_uvm"]);
        assert_eq!(loaded["nvidia"].refcount, Some(1));
        assert_eq!(loaded["x"].state.as_deref(), Some("coming"));
        assert!(loaded["x"].holders.is_empty());
        assert_eq!(loaded.len(), 3);
    }

    #[rstest]
    #[case(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.261.03  Release Build  (x)  Sat\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n",
        Some(("535.261.03", Flavour::Open))
    )]
    #[case(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2\n",
        Some(("470.256.02", Flavour::Proprietary))
    )]
    #[case::open_580(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  Release Build  (dvs-builder@U22-I3-AE18-23-3)  Wed Aug 12\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n",
        Some(("580.178.04", Flavour::Open))
    )]
    #[case::proprietary_580(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.178.04  Wed Aug 12 10:00:00 UTC 2026\n",
        Some(("580.178.04", Flavour::Proprietary))
    )]
    #[case::open_of_arm64(
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.91.07  Release Build  (root@build-1.2)  Sun Aug 16\n",
        Some(("595.91.07", Flavour::Open))
    )]
    #[case::proprietary_of_arm64(
        "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.142  Tue Mar 10 2026\n",
        Some(("580.142", Flavour::Proprietary))
    )]
    #[case::open_610(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  610.43.02  Release Build  (root@localhost.localdomain)  Mon Jun  1 06:02:53 PM CST 2026\nGCC version:  gcc version 11.5.0 20240719 (Red Hat 11.5.0-5) (GCC)\n",
        Some(("610.43.02", Flavour::Open))
    )]
    #[case::compiled_without_a_date(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  615.71.09  Release Build\nGCC version:  Selected multilib: .;@m64\n",
        Some(("615.71.09", Flavour::Open))
    )]
    #[case::compiler_error_in_the_second_line(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  610.57.04  Release Build  (portage@localhost)  Mon Aug 10\nGCC version:  x86_64-pc-linux-gnu-clang-21: error: linker command failed with exit code 1\n",
        Some(("610.57.04", Flavour::Open))
    )]
    #[case("NVRM version: unknown\n", None)]
    #[case("", None)]
    fn live_drivers(#[case] text: &str, #[case] wanted: Option<(&str, Flavour)>) {
        let live = parse_driver_version(text);
        let live = live.as_ref().and_then(|l| Some((l.version.as_str(), l.flavour?)));
        assert_eq!(live, wanted);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parsers_panic(text in "[a-c:/. \n-]{0,200}|\\PC{0,80}") {
            let _ = parse_proc_modules(&text);
            let _ = parse_builtin(&text);
            let _ = parse_driver_version(&text);
        }
    }
}
