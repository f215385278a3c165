//! Specs of made trees, and of a simulated host.

mod host;
mod listing;

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::config::DriverCapability::{Compute, Graphics, Utility, Video};
use longshore_core::machine::Machine;
use longshore_host::values::{Node, NodeKeeper, Owner};
use longshore_sources::userspace::Manifest;
use rstest::rstest;

/// Files of a tree as Debian's packages of 535.261.03 give it, with one of NVSwitches' subnet manager.
const FILES: [&str; 15] = [
    "usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03",
    "usr/lib/x86_64-linux-gnu/libgrpc_mgr.so",
    "usr/lib/x86_64-linux-gnu/libnvcuvid.so.535.261.03",
    "usr/lib/x86_64-linux-gnu/libnvidia-cfg.so.535.261.03",
    "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.261.03",
    "usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.535.261.03",
    "usr/lib/x86_64-linux-gnu/libnvidia-nvvm70.so.4",
    "usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.535.261.03",
    "usr/lib/x86_64-linux-gnu/deeper/libcuda.so.535.261.03",
    "usr/bin/nvidia-cuda-mps-control",
    "usr/bin/nvidia-modprobe",
    "usr/bin/nvidia-smi",
    "lib/firmware/nvidia/535.261.03/gsp_tu10x.bin",
    "etc/ld.so.cache",
    "etc/OpenCL/vendors/nvidia.icd",
];

/// Its links, in the libraries' directory.
const LINKS: [(&str, &str); 9] = [
    ("libcuda.so", "libcuda.so.1"),
    ("libcuda.so.1", "libcuda.so.535.261.03"),
    ("libnvcuvid.so.1", "libnvcuvid.so.535.261.03"),
    ("libnvidia-cfg.so.1", "libnvidia-cfg.so.535.261.03"),
    ("libnvidia-ml.so.1", "libnvidia-ml.so.535.261.03"),
    ("libnvidia-nvvm.so.4", "libnvidia-nvvm.so.535.261.03"),
    // None of these is in a container.
    ("libcuda.so.2", "libcuda.so.2"),
    ("libcuda.so.3", "../../../etc/ld.so.cache"),
    ("libcuda.so.4", "libcuda.so.535.1"),
];

/// Makes the tree below `dir`.
fn make(dir: &Path, machine: Machine) {
    let own = |path: &str| dir.join(path.replace("x86_64-linux-gnu", machine.triplet));
    for path in FILES {
        fs::create_dir_all(own(path).parent().expect("parent")).expect("directories");
        fs::write(own(path), path).expect("file");
    }
    for (name, target) in LINKS {
        symlink(target, own(&format!("usr/lib/x86_64-linux-gnu/{name}"))).expect("link");
    }
}

fn x86() -> Machine {
    Machine::named("x86_64").expect("known")
}

fn made() -> Tree {
    let dir = tempfile::tempdir().expect("temporary directory");
    make(dir.path(), x86());
    Tree::exposed(dir.path(), x86()).expect("read")
}

fn gpu(bus: u8, minor: u32) -> DrivenGpu {
    DrivenGpu { address: format!("0000:0{bus}:00.0"), minor: Some(minor), uuid: None }
}

fn wanted(names: &[&str]) -> Vec<WantedNode> {
    let node = Node { major: 195, minor: 0, mode: 0o666, owner: Owner::default() };
    let wanted =
        |name: &&str| WantedNode { name: name.into(), node, keeper: NodeKeeper::Installer };
    names.iter().map(wanted).collect()
}

/// Nodes of a host with two GPUs, with some that are no container's.
const NODES: [&str; 7] = [
    "nvidiactl",
    "nvidia0",
    "nvidia1",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-caps/nvidia-cap1",
    "nvidia-nvswitchctl",
];

fn made_spec(gpus: &[DrivenGpu], nodes: &[&str], capabilities: &[DriverCapability]) -> Spec {
    let (tree, nodes, driver_root) = (made(), wanted(nodes), Path::new("/run/nvidia/driver"));
    let inputs = Inputs { driver_root, tree: &tree, gpus, nodes: &nodes, capabilities };
    spec(&inputs)
}

/// The driver's numbers are not in the order of the bus, and one GPU's UUID is known.
#[test]
fn a_spec_of_two_gpus_is_as_expected() {
    let uuid = Some("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c".to_owned());
    let gpus = [gpu(1, 1), DrivenGpu { uuid, ..gpu(2, 0) }];
    let spec = made_spec(&gpus, &NODES, &[Compute, Utility]);
    assert_eq!(spec.check(), Ok(()));
    assert_eq!(spec.needs_version(), VERSION);
    let expected = include_str!("two-gpus.json");
    assert_eq!(spec.to_json().expect("written"), expected);
}

#[test]
fn a_manifest_and_the_exposed_tree_give_the_same() {
    let dir = tempfile::tempdir().expect("temporary directory");
    make(dir.path(), x86());
    let text = longshore_sources::testing::manifest(dir.path());
    let manifest: Manifest = serde_json::from_slice(&text).expect("a manifest");
    let exposed = Tree::exposed(dir.path(), x86()).expect("read");
    assert_eq!(Tree::of_manifest(&manifest, x86()), exposed);
    assert_eq!(exposed.driver_version(), Some("535.261.03"));
}

#[test]
fn a_driver_root_that_is_not_there_is_empty() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for root in [dir.path().to_owned(), dir.path().join("none")] {
        let tree = Tree::exposed(&root, x86()).expect("read");
        assert_eq!(tree.driver_version(), None);
        assert_eq!(tree.libraries().count() + tree.tools().count(), 0);
    }
}

#[rstest]
#[case::none(&[], &[])]
#[case::utility(&[Utility], &["libnvidia-cfg.so.1", "libnvidia-cfg.so.535.261.03",
    "libnvidia-ml.so.1", "libnvidia-ml.so.535.261.03", "nvidia-smi"])]
#[case::video(&[Video], &["libnvcuvid.so.1", "libnvcuvid.so.535.261.03"])]
#[case::graphics(&[Graphics], &["libGLX_nvidia.so.535.261.03"])]
#[case::compute(&[Compute], &["libcuda.so", "libcuda.so.1", "libcuda.so.535.261.03",
    "libnvidia-nvvm.so.4", "libnvidia-nvvm.so.535.261.03", "libnvidia-nvvm70.so.4",
    "nvidia-cuda-mps-control"])]
fn a_capability_has_its_libraries_and_tools(
    #[case] capabilities: &[DriverCapability],
    #[case] names: &[&str],
) {
    let mounts = made_spec(&[gpu(1, 0)], &NODES, capabilities).container_edits.mounts;
    let targets: Vec<&str> = mounts.iter().map(|mount| mount.container_path.as_str()).collect();
    let mut expected: Vec<String> = Vec::new();
    for name in names {
        let dirs: &[&str] = match name.starts_with("lib") {
            true => &["/usr/lib/x86_64-linux-gnu", "/usr/lib64"],
            false => &["/usr/bin"],
        };
        expected.extend(dirs.iter().map(|dir| format!("{dir}/{name}")));
    }
    expected.sort();
    assert_eq!(targets, expected);
}

#[rstest]
#[case::nodes_of_all(&[gpu(1, 0), gpu(2, 1)], &["0=nvidia0", "1=nvidia1", "all=nvidia0,nvidia1"])]
#[case::one_without_node(&[gpu(1, 5), gpu(2, 1)], &["1=nvidia1", "all=nvidia1"])]
#[case::one_without_minor(
    &[DrivenGpu { minor: None, ..gpu(1, 0) }, gpu(2, 1)],
    &["1=nvidia1", "all=nvidia1"]
)]
#[case::none(&[], &[])]
fn an_index_stays_with_its_gpu(#[case] gpus: &[DrivenGpu], #[case] expected: &[&str]) {
    let devices = made_spec(gpus, &NODES, &[]).devices;
    let shown = |device: &Device| {
        let nodes = &device.container_edits.device_nodes;
        let nodes: Vec<_> =
            nodes.iter().map(|node| node.path.trim_start_matches("/dev/")).collect();
        format!("{}={}", device.name, nodes.join(","))
    };
    assert_eq!(devices.iter().map(shown).collect::<Vec<_>>(), expected);
}

#[test]
fn gpus_are_numbered_in_the_order_of_the_bus() {
    let found = |address: &str, taken| Gpu {
        address: address.to_owned(),
        device: 0x1eb8,
        taken,
        kernel_message: None,
    };
    let gpus = [
        found("10000:01:00.0", Taken::Driver),
        found("0001:01:00.0", Taken::Driver),
        found("0000:0a:00.0", Taken::Driver),
        found("0000:02:00.0", Taken::Other),
        found("0000:03:00.0", Taken::Nobody),
    ];
    let minors = BTreeMap::from([("0001:01:00.0".to_owned(), 7), ("0000:02:00.0".to_owned(), 1)]);
    let driven: Vec<_> =
        DrivenGpu::among(&gpus, &minors).into_iter().map(|gpu| (gpu.address, gpu.minor)).collect();
    let expected = [("0000:0a:00.0", None), ("0001:01:00.0", Some(7)), ("10000:01:00.0", None)];
    assert_eq!(driven, expected.map(|(address, minor)| (address.to_owned(), minor)));
}
