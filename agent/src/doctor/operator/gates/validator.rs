//! Gates of the operator's validator (init container `driver-validation`).

use std::io;

use super::{EXPOSE, HIDDEN, INSTALL, NOT_LOADED, Read, driver_manager, driver_root};
use super::{fails, fails_until_ready, not_asked, passes};
use crate::doctor::operator::confined::{ConfinedRoot, ResolvedEntry, shown};
use crate::doctor::operator::inputs::{CONTAINER_READY, GateInputs};

/// Directories of the host in which it looks for nvidia-smi.
const OF_HOST: [&str; 6] = ["usr/bin", "usr/sbin", "bin", "sbin", "usr/lib/wsl/lib", "opt/bin"];
/// Directories of the driver root in which it looks for libraries, in this order.
const LIBRARIES: [&str; 7] = [
    "",
    "usr/lib64/",
    "usr/lib/x86_64-linux-gnu/",
    "usr/lib/aarch64-linux-gnu/",
    "lib64/",
    "lib/x86_64-linux-gnu/",
    "lib/aarch64-linux-gnu/",
];
/// Directories of the driver root in which it looks for programs, in this order.
const PROGRAMS: [&str; 5] = ["", "usr/bin/", "usr/sbin/", "bin/", "sbin/"];
/// Switches of the driver's pod, with the module that each one's validation looks for.
const FEATURES: [(&str, &str); 3] = [
    ("GDRCOPY_ENABLED", "gdrdrv"),
    ("GDS_ENABLED", "nvidia_fs"),
    ("GPU_DIRECT_RDMA_ENABLED", "nvidia_peermem"),
];

pub(super) fn host_driver(seen: &GateInputs) -> Read {
    let Some(host) = &seen.host else { return Ok(not_asked(HIDDEN)) };
    Ok(match driver_manager::nvidia_smi(host, &OF_HOST)? {
        None => passes("the host has no nvidia-smi"),
        Some(path) => fails(
            format!("the host has {path}: it is validated instead of the pod's driver"),
            "uninstall the host's driver and its tools",
        ),
    })
}

pub(super) fn container_ready(seen: &GateInputs) -> Read {
    let there = seen.root.has_file(CONTAINER_READY)?;
    Ok(match (there, seen.loaded) {
        (true, true) => passes(format!("/{CONTAINER_READY} exists")),
        (true, false) => fails_until_ready(
            format!("/{CONTAINER_READY} is stale: {NOT_LOADED}"),
            "remove it, or let the agent of the driver's pod start",
        ),
        (false, _) => fails_until_ready(
            format!(
                "/{CONTAINER_READY} does not exist (asked only of a driver pod of the operator)"
            ),
            "wait for the startup probe, whose gates are above",
        ),
    })
}

/// First of these names in the driver root, or those whose link leads out.
fn search(
    root: &ConfinedRoot,
    directories: &[&str],
    name: &str,
) -> io::Result<Result<String, Vec<String>>> {
    let mut out = Vec::new();
    for dir in directories {
        let path = format!("{dir}{name}");
        match root.entry(&path)? {
            ResolvedEntry::File { .. } => return Ok(Ok(path)),
            ResolvedEntry::LeadsOut => out.push(path),
            _ => {}
        }
    }
    Ok(Err(out))
}

/// Answer of a search: the path, or the directories that were searched.
fn found(seen: &GateInputs, directories: &[&str], name: &str) -> Read {
    let root = driver_root!(seen);
    let driver_root = seen.driver_root_path.display();
    Ok(match search(root, directories, name)? {
        Ok(path) => passes(format!("{driver_root}/{path}; not run or loaded here")),
        Err(out) if out.is_empty() => {
            let searched: Vec<&str> =
                directories.iter().map(|dir| dir.trim_end_matches('/')).collect();
            let searched = searched.join(", ").replacen(", ", "/, ", 1);
            let fact =
                format!("{driver_root} has no {name} in {}", searched.trim_start_matches(", "));
            fails_until_ready(fact, EXPOSE)
        }
        Err(out) => fails(
            format!("{driver_root}/{} is a link that leads out of the driver root", out.join(", ")),
            "replace it by a relative link",
        ),
    })
}

pub(super) fn library(seen: &GateInputs) -> Read {
    found(seen, &LIBRARIES, "libnvidia-ml.so.1")
}

pub(super) fn nvidia_smi(seen: &GateInputs) -> Read {
    found(seen, &PROGRAMS, "nvidia-smi")
}

pub(super) fn features(seen: &GateInputs) -> Read {
    let switches = match &seen.switches {
        Ok(Some(switches)) => switches,
        Ok(None) => return Ok(not_asked(format!("/{CONTAINER_READY} does not exist"))),
        Err(why) => {
            let remedy =
                "remove the file and start the driver's pod again: its probe writes it anew";
            return Ok(fails(format!("/{CONTAINER_READY}: {why}"), remedy));
        }
    };
    let on: Vec<_> =
        FEATURES.iter().filter(|(name, _)| switches.get(*name) == Some(&true)).collect();
    for (name, module) in &on {
        if !seen.has_module(module)? {
            let remedy = format!("read the log of the container that loads {module}");
            return Ok(fails(format!("{name} is true, and {module} is not loaded"), remedy));
        }
    }
    let names: Vec<&str> = on.iter().map(|(name, _)| *name).collect();
    Ok(match names.is_empty() {
        true => not_asked("no feature is on"),
        false => passes(format!("{}: every module is loaded", names.join(", "))),
    })
}

/// Major number of a driver in /proc/devices.
fn major(devices: &str, names: &[&str]) -> Option<u32> {
    let entry = |line: &str| {
        let (major, name) = line.trim().split_once(' ')?;
        names.contains(&name.trim()).then(|| major.parse().ok())?
    };
    devices.lines().find_map(entry)
}

pub(super) fn majors(seen: &GateInputs) -> Read {
    if !seen.loaded {
        return Ok(fails_until_ready(NOT_LOADED, INSTALL));
    }
    let devices = seen.root.text("proc/devices")?.unwrap_or_default();
    let mut wanted =
        vec![("nvidia", &["nvidia", "nvidia-frontend"][..]), ("nvidia-uvm", &["nvidia-uvm"])];
    if seen.root.has_file("proc/driver/nvidia-caps/mig-minors")? {
        wanted.push(("nvidia-caps", &["nvidia-caps"]));
    }
    let read: Vec<(&str, Option<u32>)> =
        wanted.into_iter().map(|(name, names)| (name, major(&devices, names))).collect();
    let missing: Vec<&str> =
        read.iter().filter(|(_, n)| n.is_none()).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        let fact = format!("/proc/devices has no {}", missing.join(", "));
        return Ok(fails_until_ready(fact, "load the module (`longshore run` does)"));
    }
    let read: Vec<String> =
        read.iter().map(|(name, n)| format!("{name} {}", n.unwrap_or(0))).collect();
    Ok(passes(read.join(", ")))
}

pub(super) fn gpus(seen: &GateInputs) -> Read {
    let (path, root) = seen.device_root()?;
    let dir = format!("{}/sys/bus/pci/devices", path.trim_end_matches('/'));
    let Some(devices) = root.names("sys/bus/pci/devices")? else {
        let fact = format!("{dir} does not exist: the validator never ends");
        return Ok(fails_until_ready(fact, "let the agent mount a sysfs there"));
    };
    let mut gpus = Vec::new();
    for device in devices {
        let value = |name| root.text(format!("sys/bus/pci/devices/{device}/{name}"));
        let is_nvidia = value("vendor")?.is_some_and(|vendor| vendor.trim() == "0x10de");
        if is_nvidia && value("class")?.is_some_and(|class| class.starts_with("0x03")) {
            gpus.push(device);
        }
    }
    Ok(match gpus.len() {
        0 => passes(format!("{dir} can be read and has no GPU: no link is made")),
        n => passes(format!("{n} in {dir}")),
    })
}

pub(super) fn dev_char(seen: &GateInputs) -> Read {
    let Some(host) = &seen.host else { return Ok(not_asked(HIDDEN)) };
    if !seen.loaded {
        return Ok(not_asked(NOT_LOADED));
    }
    let devices = seen.root.text("proc/devices")?.unwrap_or_default();
    let wrong = wrong_links(host, &devices)?;
    if wrong.is_empty() {
        return Ok(passes("no link is stale; the validator makes those that are missing"));
    }
    let fact = format!("{}: the validator leaves it so", wrong.join(", "));
    Ok(fails_until_ready(fact, "remove the stale links (`longshore run` repairs them)"))
}

/// Links in /dev/char to another node of the driver than the one with their numbers.
fn wrong_links(host: &ConfinedRoot, devices: &str) -> io::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for numbers in host.names("dev/char")?.unwrap_or_default() {
        let Some(target) = host.link(format!("dev/char/{numbers}"))? else { continue };
        let name = target.rsplit('/').next().unwrap_or_default();
        if node_of(&numbers, devices).map_or(is_node(name), |right| right != name) {
            wrong.push(format!("/dev/char/{} leads to {}", shown(&numbers), shown(&target)));
        }
    }
    Ok(wrong)
}

/// Name of the driver's node with these numbers, `MAJOR:MINOR`.
fn node_of(numbers: &str, devices: &str) -> Option<String> {
    let (of, minor) = numbers.split_once(':')?;
    let of = Some(of.parse().ok()?);
    let name = match minor {
        "255" => "nvidiactl".to_owned(),
        "254" => "nvidia-modeset".to_owned(),
        minor => format!("nvidia{minor}"),
    };
    if of == major(devices, &["nvidia", "nvidia-frontend"]) {
        return Some(name);
    }
    match minor {
        _ if of != major(devices, &["nvidia-uvm"]) => None,
        "0" => Some("nvidia-uvm".to_owned()),
        "1" => Some("nvidia-uvm-tools".to_owned()),
        _ => None,
    }
}

/// True for a node that the validator links; those of capabilities and switches have other majors.
fn is_node(name: &str) -> bool {
    let known = ["nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"];
    let is_gpu = |minor: &str| minor.parse::<u8>().is_ok();
    known.contains(&name) || name.strip_prefix("nvidia").is_some_and(is_gpu)
}
