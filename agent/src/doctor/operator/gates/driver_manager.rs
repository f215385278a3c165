//! Gates of k8s-driver-manager, the init container of the driver's pod.

use std::io;
use std::path::Path;

use super::{HIDDEN, NOT_LOADED, Read, fails, fails_until_ready, not_asked, passes};
use crate::doctor::operator::confined::{ConfinedRoot, ResolvedEntry, shown};
use crate::doctor::operator::inputs::GateInputs;

/// Directories of the host's PATH in the driver manager, which runs nvidia-smi by chroot(2).
const PATH: [&str; 6] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"];
/// File with the digest of the configuration that the loaded driver was installed by.
const STATE: &str = "run/nvidia/nvidia-driver.state";
/// Modules that it unloads, in this order.
const UNLOADED: [&str; 7] = [
    "nvidia_modeset",
    "nvidia_uvm",
    "nvidia_peermem",
    "nvidia_fs",
    "nvidia_vgpu_vfio",
    "gdrdrv",
    "nvidia",
];

/// First executable nvidia-smi in these directories of the host.
pub(super) fn nvidia_smi(host: &ConfinedRoot, directories: &[&str]) -> io::Result<Option<String>> {
    for dir in directories {
        let path = format!("{dir}/nvidia-smi");
        if let ResolvedEntry::File { executable: true, empty: false } = host.entry(&path)? {
            return Ok(Some(format!("/{path}")));
        }
    }
    Ok(None)
}

pub(super) fn host_driver(seen: &GateInputs) -> Read {
    let Some(host) = &seen.host else { return Ok(not_asked(HIDDEN)) };
    Ok(match nvidia_smi(host, &PATH)? {
        None => passes("no nvidia-smi is in the PATH of the host"),
        Some(path) => fails(
            format!(
                "the host has {path}: its node is labelled pre-installed and gets no driver pod"
            ),
            "uninstall the host's driver and its tools, or let the operator use it \
             (driver.enabled=false)",
        ),
    })
}

/// True if the driver manager leaves the modules as they are.
fn is_same(seen: &GateInputs) -> io::Result<Option<bool>> {
    let Some(wanted) = &seen.asked.digest else { return Ok(None) };
    let written = seen.root.text(STATE)?;
    Ok(Some(written.is_some_and(|written| written.trim() == wanted.trim())))
}

pub(super) fn digest(seen: &GateInputs) -> Read {
    if !seen.loaded {
        return Ok(not_asked(format!("{NOT_LOADED}: nothing is unloaded")));
    }
    let Some(written) = seen.root.text(STATE)? else {
        let fact =
            format!("/{STATE} does not exist: the modules are unloaded at each start of a pod");
        return Ok(fails_until_ready(fact, "let the agent of the driver's pod become Ready once"));
    };
    Ok(match (is_same(seen)?, &seen.asked.digest) {
        (Some(true), _) => passes(format!("/{STATE} has the pod's digest {}", shown(&written))),
        (Some(false), Some(wanted)) => fails_until_ready(
            format!(
                "/{STATE} has {}, the pod {}: the modules are unloaded",
                shown(&written),
                shown(wanted)
            ),
            "none is needed where no pod uses the driver; else drain the node first",
        ),
        _ => {
            not_asked(format!("/{STATE} has {}; the pod's is unknown (--digest)", shown(&written)))
        }
    })
}

pub(super) fn unload(seen: &GateInputs) -> Read {
    if !seen.loaded {
        return Ok(not_asked(NOT_LOADED));
    }
    let others = other_holders(&seen.root)?;
    if is_same(seen)? == Some(true) {
        return Ok(not_asked("the digest is the same: the modules stay loaded"));
    }
    if others.is_empty() {
        let refcnt = seen.root.text("sys/module/nvidia/refcnt")?.unwrap_or_default();
        let fact = format!("every module is in its list; {} references to nvidia", refcnt.trim());
        return Ok(passes(fact));
    }
    let names = others.join(", ");
    let fact = format!("it does not unload {names}, so its unload fails at every start of a pod");
    let remedy =
        format!("unload {names} (modprobe -r), and load none of them: not by extra-modules either");
    Ok(fails(fact, remedy))
}

/// Modules that hold one of the driver's and are not unloaded themselves: nvidia_drm above all.
fn other_holders(root: &ConfinedRoot) -> io::Result<Vec<String>> {
    let mut others = Vec::new();
    for module in UNLOADED {
        let holders = root.names(Path::new("sys/module").join(module).join("holders"))?;
        let foreign =
            holders.into_iter().flatten().filter(|name| !UNLOADED.contains(&name.as_str()));
        others.extend(foreign.map(|name| shown(&name)));
    }
    others.sort();
    others.dedup();
    Ok(others)
}

pub(super) fn nouveau(seen: &GateInputs) -> Read {
    if !seen.has_module("nouveau")? {
        return Ok(not_asked("nouveau is not loaded"));
    }
    let refcnt = seen.root.text("sys/module/nouveau/refcnt")?.unwrap_or_default();
    Ok(match refcnt.trim() {
        "0" => passes("nouveau is loaded and not in use: it is unloaded"),
        count => fails(
            format!("nouveau is in use ({} references)", shown(count)),
            "end its users (a console or display server), or blacklist nouveau and boot again",
        ),
    })
}
