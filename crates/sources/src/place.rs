//! Paths of a package's files in a driver root.
//!
//! Debian keeps several drivers apart (`usr/lib/TRIPLET/nvidia/current/`,
//! `usr/lib/nvidia/tesla-470/`) and selects one by alternatives; a driver root holds one driver, so
//! the paths are flattened.

use std::path::{Path, PathBuf};

use crate::parts::is_part_library;

/// Tools in a driver root's `usr/bin`.
const TOOLS: [&str; 10] = [
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-modprobe",
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvlsm",
];

/// Directories of `usr/share` that daemons read: topologies of switches, settings.
const SHARES: [&str; 2] = ["share/nvidia/nvswitch", "share/nvidia/nvlsm"];

/// Directory of the subnet manager's package with its program and libraries.
const SUBNET_MANAGER: &str = "opt/nvidia/nvlsm/";

/// Returns the place of a package's path below the driver root, or None where it is not wanted.
///
/// `triplet` is the multiarch directory, for example `x86_64-linux-gnu`.
pub(crate) fn place(path: &Path, triplet: &str, driver_version: &str) -> Option<PathBuf> {
    let text = path.to_str()?;
    let (dir, name) = text.rsplit_once('/')?;
    let dir = dir.strip_prefix("usr/").unwrap_or(dir);
    if dir.strip_prefix("lib/firmware/nvidia/") == Some(driver_version) && name.ends_with(".bin") {
        return Some(Path::new("lib/firmware/nvidia").join(driver_version).join(name));
    }
    if SHARES.contains(&dir) {
        return Some(Path::new("usr").join(dir).join(name));
    }
    if is_tool_dir(dir) && TOOLS.contains(&name) {
        return Some(Path::new("usr/bin").join(name));
    }
    if is_library_dir(dir, triplet) && is_library(name) {
        return Some(Path::new("usr/lib").join(triplet).join(name));
    }
    None
}

/// Returns the place of a file of this name below the driver root, regardless of its directory;
/// None where it is neither a wanted tool nor a wanted library.
pub(crate) fn place_of(name: &str, triplet: &str) -> Option<PathBuf> {
    if TOOLS.contains(&name) {
        return Some(Path::new("usr/bin").join(name));
    }
    let library = is_library(name) && is_part_library(name);
    library.then(|| Path::new("usr/lib").join(triplet).join(name))
}

/// True if [`place_of`] has a place for it.
pub(crate) fn is_wanted(name: &str) -> bool {
    place_of(name, "").is_some()
}

fn is_tool_dir(dir: &str) -> bool {
    let of_subnet_manager = dir.strip_prefix(SUBNET_MANAGER) == Some("sbin");
    of_subnet_manager || matches!(dir, "bin" | "sbin") || one_below(dir, "lib/nvidia/")
}

fn is_library_dir(dir: &str, triplet: &str) -> bool {
    if dir.strip_prefix(SUBNET_MANAGER) == Some("lib") {
        return true;
    }
    let Some(rest) = dir.strip_prefix("lib/").and_then(|dir| dir.strip_prefix(triplet)) else {
        return false;
    };
    matches!(rest, "" | "/vdpau") || one_below(rest, "/nvidia/")
}

fn one_below(dir: &str, parent: &str) -> bool {
    dir.strip_prefix(parent).is_some_and(|branch| !branch.is_empty() && !branch.contains('/'))
}

/// True for `libcuda.so`, `libcuda.so.1`, `libcuda.so.535.261.03`.
fn is_library(name: &str) -> bool {
    name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(
        "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.261.03",
        "usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03"
    )]
    #[case(
        "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1",
        "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    )]
    #[case(
        "usr/lib/x86_64-linux-gnu/nvidia/tesla-470/libnvidia-nvvm.so.4.0.0",
        "usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4.0.0"
    )]
    #[case(
        "usr/lib/x86_64-linux-gnu/libnvidia-gpucomp.so.550.163.01",
        "usr/lib/x86_64-linux-gnu/libnvidia-gpucomp.so.550.163.01"
    )]
    #[case("usr/lib/nvidia/current/nvidia-smi", "usr/bin/nvidia-smi")]
    #[case("usr/lib/nvidia/tesla-470/nvidia-debugdump", "usr/bin/nvidia-debugdump")]
    #[case("usr/sbin/nvidia-cuda-mps-server", "usr/bin/nvidia-cuda-mps-server")]
    #[case("usr/bin/nvidia-modprobe", "usr/bin/nvidia-modprobe")]
    #[case("usr/bin/nv-fabricmanager", "usr/bin/nv-fabricmanager")]
    #[case("opt/nvidia/nvlsm/sbin/nvlsm", "usr/bin/nvlsm")]
    #[case("opt/nvidia/nvlsm/lib/libgrpc_mgr.so", "usr/lib/x86_64-linux-gnu/libgrpc_mgr.so")]
    #[case(
        "usr/share/nvidia/nvswitch/fabricmanager.cfg",
        "usr/share/nvidia/nvswitch/fabricmanager.cfg"
    )]
    #[case(
        "lib/firmware/nvidia/535.261.03/gsp_tu10x.bin",
        "lib/firmware/nvidia/535.261.03/gsp_tu10x.bin"
    )]
    #[case(
        "usr/lib/firmware/nvidia/535.261.03/gsp_ga10x.bin",
        "lib/firmware/nvidia/535.261.03/gsp_ga10x.bin"
    )]
    fn goes_to(#[case] path: &str, #[case] expected: &str) {
        let placed = place(Path::new(path), "x86_64-linux-gnu", "535.261.03");
        assert_eq!(placed.as_deref(), Some(Path::new(expected)));
    }

    #[rstest]
    #[case("usr/lib/x86_64-linux-gnu/nvidia/current/nvidia-drm_gbm.so")]
    #[case("usr/lib/x86_64-linux-gnu/nvidia/current/deeper/libcuda.so.1")]
    #[case("usr/lib/i386-linux-gnu/nvidia/current/libcuda.so.535.261.03")]
    #[case("usr/lib/nvidia/current/nvidia-bug-report.sh")]
    #[case("usr/lib/nvidia/current/nvidia-smi.1.gz")]
    #[case("lib/firmware/nvidia/550.1/gsp_tu10x.bin")]
    #[case("usr/share/doc/libcuda1/copyright")]
    #[case("etc/init.d/nvidia-persistenced")]
    #[case("usr/lib/x86_64-linux-gnu")]
    #[case("usr")]
    fn is_left_out(#[case] path: &str) {
        assert_eq!(place(Path::new(path), "x86_64-linux-gnu", "535.261.03"), None);
    }
}
