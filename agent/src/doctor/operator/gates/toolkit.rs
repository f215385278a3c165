//! Gates of NVIDIA's container toolkit: its search for the driver's libraries and their version.

use std::collections::BTreeSet;
use std::io;

use super::{EXPOSE, Read, driver_root, fails, fails_until_ready, passes};
use crate::doctor::operator::confined::{ConfinedRoot, shown};
use crate::doctor::operator::inputs::GateInputs;

/// Directories of the driver root in which it looks, in this order; then it reads `etc/ld.so.cache`.
const DIRECTORIES: [&str; 11] = [
    "",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu/nvidia/current",
    "lib/aarch64-linux-gnu/nvidia/current",
];
/// Libraries whose name ends with the driver's version.
const VERSIONED: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

/// Directory of the first library with a version, and that version.
fn first(root: &ConfinedRoot) -> io::Result<Option<(&'static str, String, String)>> {
    for stem in VERSIONED {
        for dir in DIRECTORIES {
            for name in root.names(dir)?.unwrap_or_default() {
                let Some(version) = version(&name, stem) else { continue };
                let path = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
                if root.has_file(&path)? {
                    return Ok(Some((dir, path, version)));
                }
            }
        }
    }
    Ok(None)
}

/// Version at the end of a library's name: at least two numbers.
fn version(name: &str, stem: &str) -> Option<String> {
    let version = name.strip_prefix(stem)?;
    let numbers =
        version.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    (numbers && version.contains('.')).then(|| version.to_owned())
}

pub(super) fn library(seen: &GateInputs) -> Read {
    let root = driver_root!(seen);
    let driver_root = seen.driver_root_path.display();
    let Some((_, path, version)) = first(root)? else {
        let fact = format!("{driver_root} has no libcuda.so.*.* or libnvidia-ml.so.*.*");
        return Ok(fails_until_ready(fact, EXPOSE));
    };
    Ok(match seen.version.as_deref() {
        Some(loaded) if loaded != version => fails(
            format!("{driver_root}/{path}, and the loaded driver is {}", shown(loaded)),
            "let the agent change the driver, which exposes its libraries too",
        ),
        _ => passes(format!("driver {version} by {driver_root}/{path}")),
    })
}

pub(super) fn versions(seen: &GateInputs) -> Read {
    let root = driver_root!(seen);
    let Some((dir, _, wanted)) = first(root)? else {
        return Ok(super::not_asked("no library has a version"));
    };
    let mut others = BTreeSet::new();
    for name in root.names(dir)?.unwrap_or_default() {
        let of = VERSIONED.iter().find_map(|stem| version(&name, stem));
        others.extend(of.filter(|of| *of != wanted));
    }
    let others: Vec<String> = others.into_iter().collect();
    Ok(match others.is_empty() {
        true => passes(format!("libraries of {wanted} alone are in {}", shown(dir))),
        false => fails(
            format!("{} has libraries of {} beside {wanted}", shown(dir), others.join(", ")),
            "remove the libraries of the other driver from the driver root",
        ),
    })
}
