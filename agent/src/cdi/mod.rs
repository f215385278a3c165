//! Specifications of the host's GPUs for container runtimes (docs/operate/containers.md): made from the driver
//! root and the device nodes, and those of all programs on the host.
//!
//! The spec has no hooks and no device numbers. A hook is a program that would have to stay on the host
//! for as long as containers are started; a runtime takes the numbers from the host's node at that
//! moment, so that they cannot be those of an earlier load.

pub mod docker_args;
mod host;
pub mod listing;
mod parts;
mod rivals;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::config::DriverCapability;
use longshore_cdi::{ContainerEdits, Device, DeviceNode, Mount, Spec};
use longshore_host::facts::gpus::{Gpu, Taken};
use longshore_host::values::WantedNode;

pub use host::of_host;
pub use rivals::{below, is_conflict, rivals};
pub use tree::Tree;

/// Version of the specification: podman 4.3 reads none above it, and names that are numbers need it.
const VERSION: &str = "0.5.0";
/// Kind of the devices: NVIDIA's own, so that a container's command line is the same as with its toolkit.
pub const KIND: &str = "nvidia.com/gpu";

/// Directory of the host that its spec is published in.
pub const DIRECTORY: &str = "/var/run/cdi";
/// Name of the file, which no other program's has: vendor and class follow, as in the names of others.
pub const FILE: &str = "longshore-nvidia.com-gpu.json";

/// The host's directory of device nodes, and the container's.
const DEV: &str = "/dev";
/// Nodes that every container with a GPU gets, where the loaded driver has them.
const CONTROL_NODES: [&str; 4] = ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"];
/// Directories in which the C libraries of Red Hat's family search without a cache. Those of Debian's
/// search /usr/lib/TRIPLET.
const LIB64: &str = "/usr/lib64";
const TOOLS: &str = "/usr/bin";
/// Options of every mount: NVIDIA's toolkit has the same.
const OPTIONS: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// Tells NVIDIA's container runtime, where it is installed too, to add nothing of its own.
const ENV: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// A GPU that the loaded driver drives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrivenGpu {
    /// PCI address, for example `0000:01:00.0`.
    pub address: String,
    /// Number of its node, /dev/nvidiaN; None where the driver does not say.
    pub minor: Option<u32>,
    /// UUID, where it is known: `GPU-...`.
    pub uuid: Option<String>,
}

impl DrivenGpu {
    /// Returns the GPUs among `gpus` that the driver drives, with the minors of their nodes by address,
    /// in the order in which nvidia-smi numbers them: that of the bus.
    pub fn among(gpus: &[Gpu], minors: &BTreeMap<String, u32>) -> Vec<Self> {
        let driven = gpus.iter().filter(|gpu| gpu.taken == Taken::Driver);
        let mut driven: Vec<Self> = driven
            .map(|Gpu { address, .. }| Self {
                address: address.clone(),
                minor: minors.get(address).copied(),
                uuid: None,
            })
            .collect();
        // A domain above ffff has more digits than the others.
        driven.sort_by_key(|gpu| (gpu.address.len(), gpu.address.clone()));
        driven
    }
}

/// Everything that a spec is made from.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// Driver root, as the host sees it.
    pub driver_root: &'a Path,
    /// Files of the driver root.
    pub tree: &'a Tree,
    /// GPUs of the driver, in the order of their indices.
    pub gpus: &'a [DrivenGpu],
    /// Nodes of the driver in the host's /dev.
    pub nodes: &'a [WantedNode],
    /// Parts of the driver that containers get.
    pub capabilities: &'a [DriverCapability],
}

/// Makes the spec of a driver. A GPU without a node is left out; a spec without devices is one that
/// readers refuse.
pub fn spec(inputs: &Inputs<'_>) -> Spec {
    let nodes: BTreeSet<&str> = inputs.nodes.iter().filter_map(|n| n.name.to_str()).collect();
    let container_edits = ContainerEdits {
        env: vec![ENV.to_owned()],
        device_nodes: CONTROL_NODES
            .iter()
            .filter(|n| nodes.contains(*n))
            .map(|n| node(n))
            .collect(),
        mounts: mounts(inputs),
        ..ContainerEdits::default()
    };
    let devices = devices(inputs.gpus, &nodes);
    let (cdi_version, kind) = (VERSION.to_owned(), KIND.to_owned());
    Spec { cdi_version, kind, devices, container_edits, ..Spec::default() }
}

/// Returns each GPU by its index and its UUID, and one device of all GPUs.
fn devices(gpus: &[DrivenGpu], nodes: &BTreeSet<&str>) -> Vec<Device> {
    let mut devices = Vec::new();
    let mut all = Vec::new();
    for (index, gpu) in gpus.iter().enumerate() {
        let Some(name) = gpu.minor.map(|minor| format!("nvidia{minor}")) else { continue };
        if !nodes.contains(name.as_str()) {
            continue;
        }
        let names = [Some(index.to_string()), gpu.uuid.clone()];
        devices.extend(names.into_iter().flatten().map(|n| device(n, vec![node(&name)])));
        all.push(node(&name));
    }
    if !all.is_empty() {
        devices.push(device("all".to_owned(), all));
    }
    devices
}

fn device(name: String, device_nodes: Vec<DeviceNode>) -> Device {
    let container_edits = ContainerEdits { device_nodes, ..ContainerEdits::default() };
    Device { name, container_edits, ..Device::default() }
}

fn node(name: &str) -> DeviceNode {
    DeviceNode { path: format!("{DEV}/{name}"), ..DeviceNode::default() }
}

/// Returns a mount for each name of a library, in both directories, and of a tool, by the path in the
/// container. A link becomes a further mount of its file: containers get no links.
fn mounts(inputs: &Inputs<'_>) -> Vec<Mount> {
    let tree = inputs.tree;
    let own = format!("/usr/lib/{}", tree.triplet);
    let mut mounts = Vec::new();
    for library in tree.libraries() {
        if parts::has_library(inputs.capabilities, library.file) {
            let from = inputs.below_root(&own, library.file);
            mounts.extend([&own, LIB64].map(|dir| mount(&from, dir, library.name)));
        }
    }
    for tool in tree.tools() {
        if parts::has_tool(inputs.capabilities, tool.name) {
            mounts.push(mount(&inputs.below_root(TOOLS, tool.file), TOOLS, tool.name));
        }
    }
    mounts.sort_by(|a, b| a.container_path.cmp(&b.container_path));
    mounts
}

impl Inputs<'_> {
    fn below_root(&self, dir: &str, file: &str) -> String {
        format!("{}{dir}/{file}", self.driver_root.display())
    }
}

fn mount(host_path: &str, dir: &str, name: &str) -> Mount {
    Mount {
        host_path: host_path.to_owned(),
        container_path: format!("{dir}/{name}"),
        options: OPTIONS.map(str::to_owned).to_vec(),
        ..Mount::default()
    }
}
