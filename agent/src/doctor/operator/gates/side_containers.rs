//! Gates of the containers beside the driver's: GPUDirect Storage, GDRCopy and GPUDirect RDMA.

use super::{INSTALL, Read, driver_root, fails, fails_until_ready, not_asked, passes};
use crate::doctor::operator::seen::Seen;

const RDMA: &str = "GPU_DIRECT_RDMA_ENABLED";
const PEERMEM: &str = "nvidia_peermem";
/// File by which the operator's own driver of network adapters says that it is loaded.
const MOFED_READY: &str = "run/mellanox/drivers/.driver-ready";

pub(super) fn sources(seen: &Seen) -> Read {
    let asked = &seen.asked;
    if !seen.is_on(asked.gds, "GDS_ENABLED") && !seen.is_on(asked.gdrcopy, "GDRCOPY_ENABLED") {
        return Ok(not_asked("neither GDS_ENABLED nor GDRCOPY_ENABLED is true here"));
    }
    let root = driver_root!(seen);
    let path = seen.driver_root_path.join("usr/src");
    let Some(names) = root.names("usr/src")? else {
        let fact =
            format!("{} does not exist: these containers wait for it for ever", path.display());
        return Ok(fails(fact, "switch GDS and GDRCopy off, or give the driver root its sources"));
    };
    let Some(version) = &seen.version else {
        return Ok(fails_until_ready("no driver is loaded", INSTALL));
    };
    let wanted = format!("nvidia-{version}");
    Ok(match names.contains(&wanted) {
        true => passes(format!("{}/{wanted}", path.display())),
        false => fails(
            format!("{} has no {wanted}", path.display()),
            "give the driver root the sources of the loaded driver",
        ),
    })
}

pub(super) fn peermem(seen: &Seen) -> Read {
    if !seen.is_on(seen.asked.rdma, RDMA) {
        return Ok(not_asked(format!("{RDMA} is not true here")));
    }
    if seen.has_module(PEERMEM)? {
        return Ok(passes(format!("{PEERMEM} is loaded")));
    }
    let (mlx5, ready) = (seen.has_module("mlx5_core")?, seen.root.has_file(MOFED_READY)?);
    Ok(match mlx5 || ready {
        true => fails_until_ready(
            format!("{PEERMEM} is not loaded, and the adapter's driver is"),
            "load it (`longshore run` with extra-modules), or read the log of nvidia-peermem-ctr",
        ),
        false => fails(
            format!("neither mlx5_core nor /{MOFED_READY} is there: the container waits for them"),
            "load the driver of the network adapter, or switch rdma off",
        ),
    })
}

pub(super) fn peermem_stays(seen: &Seen) -> Read {
    if !seen.is_on(seen.asked.rdma, RDMA) {
        return Ok(not_asked(format!("{RDMA} is not true here")));
    }
    Ok(match (seen.has_module("mlx5_core")?, seen.has_module(PEERMEM)?) {
        (false, _) => passes("mlx5_core is not loaded, so the probe asks no more"),
        (true, true) => passes(format!("mlx5_core and {PEERMEM} are loaded")),
        (true, false) => fails_until_ready(
            format!("mlx5_core is loaded and {PEERMEM} is not: the container is killed after 30 s"),
            "load it (`longshore run` with extra-modules)",
        ),
    })
}
