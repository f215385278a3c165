//! Gates of the containers beside the driver's: GPUDirect Storage, GDRCopy and GPUDirect RDMA.

use std::path::Path;

use super::{INSTALL, Read, driver_root, fails, fails_until_ready, not_asked, passes};
use crate::doctor::operator::confined::shown;
use crate::doctor::operator::inputs::GateInputs;

const RDMA: &str = "GPU_DIRECT_RDMA_ENABLED";
const PEERMEM: &str = "nvidia_peermem";
/// Header of the driver's sources that both modules are compiled against.
const INTERFACE: &str = "nvidia/nv-p2p.h";
const EXPOSE_SOURCES: &str = "run the driver's agent with GDS_ENABLED or GDRCOPY_ENABLED, or switch GDS \
                              and GDRCopy off";
/// File by which the operator's own driver of network adapters says that it is loaded.
const MOFED_READY: &str = "run/mellanox/drivers/.driver-ready";

pub(super) fn sources(seen: &GateInputs) -> Read {
    let asked = &seen.asked;
    if !seen.is_on(asked.gds, "GDS_ENABLED") && !seen.is_on(asked.gdrcopy, "GDRCOPY_ENABLED") {
        return Ok(not_asked("neither GDS_ENABLED nor GDRCOPY_ENABLED is true here"));
    }
    let root = driver_root!(seen);
    let path = seen.driver_root_path.join("usr/src");
    let Some(names) = root.names("usr/src")? else {
        let fact =
            format!("{} does not exist: these containers wait for it for ever", path.display());
        return Ok(fails(fact, EXPOSE_SOURCES));
    };
    let Some(version) = &seen.version else {
        return Ok(fails_until_ready("no driver is loaded", INSTALL));
    };
    let wanted = format!("nvidia-{version}");
    let others = names.iter().filter(|name| name.starts_with("nvidia-") && **name != wanted);
    let others: Vec<&str> = others.map(String::as_str).collect();
    let path = path.display();
    let header = format!("usr/src/{wanted}/{INTERFACE}");
    Ok(if !names.contains(&wanted) {
        fails(format!("{path} has no {wanted}"), EXPOSE_SOURCES)
    } else if !root.has_file(Path::new(&header))? {
        fails(format!("{path}/{wanted} has no {INTERFACE}"), EXPOSE_SOURCES)
    } else if !others.is_empty() {
        let others = shown(&others.join(", "));
        fails(format!("{path} has {others} beside {wanted}: GDRCopy takes any"), EXPOSE_SOURCES)
    } else {
        passes(format!("{path}/{wanted}, with {INTERFACE}"))
    })
}

pub(super) fn peermem(seen: &GateInputs) -> Read {
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

pub(super) fn peermem_stays(seen: &GateInputs) -> Read {
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
