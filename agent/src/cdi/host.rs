//! The spec of the driver that this host has now.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{DrivenGpu, Inputs, Tree, below, spec};
use crate::config::DriverCapability;
use longshore_cdi::Spec;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::machine::Machine;
use longshore_core::paths::Paths;
use longshore_host::facts::nodes;
use longshore_host::values::WantedNode;
use longshore_host::{Host, VerbError};

/// Remedy where the driver is not installed as a whole.
const INSTALL: &str = "`longshore run` installs and exposes a driver; `longshore status` shows what \
                       is there";

/// Makes the spec of the loaded driver from the exposed driver root and the nodes in the host's /dev.
/// Changes nothing.
///
/// # Errors
/// Exit code 30 where no driver is loaded or exposed, or another one is exposed than is loaded; 17
/// where it drives no GPU; 10 where the host cannot be read.
pub fn of_host(
    paths: &Paths,
    capabilities: &[DriverCapability],
    host: &dyn Host,
) -> Result<Spec, Failure> {
    let tree = exposed_tree(paths, host)?;
    let gpus = driven_gpus(paths, host)?;
    let nodes = present_nodes(paths, host).map_err(unread)?;
    let driver_root = &paths.driver_root;
    let spec = spec(&Inputs { driver_root, tree: &tree, gpus: &gpus, nodes: &nodes, capabilities });
    if spec.devices.is_empty() {
        let cause = format!("no GPU has its device node in {}", dev(paths).display());
        return Err(not_ready(cause));
    }
    spec.check().or_fail(FailureKind::Bug, || "making a CDI spec that readers would refuse")?;
    Ok(spec)
}

/// Reads the driver root, and compares it with the loaded driver.
fn exposed_tree(paths: &Paths, host: &dyn Host) -> Result<Tree, Failure> {
    let module = host.module("nvidia").map_err(unread)?;
    let Some(module) = module else { return Err(not_ready("no NVIDIA driver is loaded")) };
    // As seen from outside of a captured tree.
    let root = below(&paths.root, &paths.driver_root);
    let tree = Tree::exposed(&root, Machine::this()?)
        .or_fail(FailureKind::HostUnsupported, || format!("reading {}", root.display()))?;
    let Some(exposed) = tree.driver_version() else {
        return Err(not_ready(format!("no driver is exposed at {}", root.display())));
    };
    if let Some(loaded) = module.version.filter(|loaded| loaded != exposed) {
        let cause = format!("{} has driver {exposed}, and {loaded} is loaded", root.display());
        return Err(not_ready(cause));
    }
    Ok(tree)
}

fn driven_gpus(paths: &Paths, host: &dyn Host) -> Result<Vec<DrivenGpu>, Failure> {
    let minors = nodes::minors(&paths.root)
        .or_fail(FailureKind::HostUnsupported, || "reading the driver's list of GPUs")?;
    let gpus = DrivenGpu::among(&host.gpus().map_err(unread)?, &minors);
    if gpus.is_empty() {
        let cause = "the loaded driver drives no GPU";
        let remedy = "`longshore doctor` names each GPU that it did not take, with the reason";
        return Err(Failure::new(FailureKind::NoDevice, cause).remedy(remedy));
    }
    Ok(gpus)
}

/// Returns the wanted nodes that the host's /dev has: a runtime cannot start a container with a node
/// that is missing.
fn present_nodes(paths: &Paths, host: &dyn Host) -> Result<Vec<WantedNode>, VerbError> {
    let mut missing = BTreeSet::new();
    let mut present = Vec::new();
    for wanted in host.wanted_nodes()? {
        // A file that is no device node may be in a node's place.
        let found = host.node(&dev(paths).join(&wanted.name)).ok().flatten();
        if found.is_some_and(|found| found.same_device(&wanted.node)) {
            present.push(wanted);
        } else {
            missing.insert(wanted.name.display().to_string());
        }
    }
    if !missing.is_empty() {
        let missing = missing.into_iter().collect::<Vec<_>>().join(", ");
        tracing::warn!("{} lacks nodes of the driver: {missing}", dev(paths).display());
    }
    Ok(present)
}

fn dev(paths: &Paths) -> PathBuf {
    paths.host_root.join("dev")
}

fn not_ready(cause: impl Into<String>) -> Failure {
    Failure::new(FailureKind::NotReady, cause).remedy(INSTALL)
}

fn unread(error: VerbError) -> Failure {
    Failure::new(FailureKind::HostUnsupported, "looking at the host")
        .with_source(error)
        .remedy("mount /proc and /sys in the container")
}
