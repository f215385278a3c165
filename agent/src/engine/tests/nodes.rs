//! Device nodes, also those that others keep, made or changed.

use rstest::rstest;

use super::*;
use crate::steps::{NodeBefore, Nodes};
use longshore_host::values::NodeKeeper;

#[test]
fn directories_that_are_the_same_get_their_nodes_once() {
    let host = gpu_host();
    host.alias("/host/dev", "/dev");
    let dirs = vec!["/host/dev".into(), "/dev".into()];
    let steps: Vec<_> = ["drm", "ipmi_msghandler", "nvidia"].map(load).into();
    let steps = [steps, vec![Step::MakeNodes(MakeNodes { dirs, left_to_admin: false })]].concat();
    let before = host.state();
    let mut journal = Journal::in_memory();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    assert_eq!(host.log().iter().filter(|line| line.starts_with("mknod")).count(), 3);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_node_of_another_device_is_replaced_and_put_back() {
    let host = gpu_host();
    let stale = Node { major: 508, minor: 0, mode: 0o666, owner: Owner::default() };
    host.change(|state| state.nodes.insert("/dev/nvidia-uvm".into(), stale));
    let before = host.state();
    let mut journal = installed(&host);
    assert_eq!(host.state().nodes[Path::new("/dev/nvidia-uvm")].major, 511);
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

/// Permissions wider than requested, or another group's: as an earlier driver or udev left them.
#[test]
fn a_node_with_other_permissions_is_put_right_and_gets_its_own_back() {
    let host = gpu_host();
    let (wide, group) = (0o666, Owner { uid: 0, gid: 44 });
    let wanted = Node { major: 195, minor: 255, mode: 0o660, owner: group };
    host.knows(
        "nvidia",
        FakeModule {
            nodes: vec![("nvidiactl".into(), wanted)],
            ..module(&["drm", "ipmi_msghandler"], &[])
        },
    );
    let theirs = Node { mode: wide, owner: Owner::default(), ..wanted };
    host.change(|state| state.nodes.insert("/dev/nvidiactl".into(), theirs));
    let before = host.state();
    let mut journal = installed(&host);
    assert_eq!(host.state().nodes[Path::new("/dev/nvidiactl")], wanted);
    assert!(!host.log().contains(&"unlink /dev/nvidiactl".to_owned()), "{:?}", host.log());
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

/// Death between chown(2) and chmod(2) leaves one of both set.
#[rstest]
#[case::owner_set(0o666, 44, true)]
#[case::all_set(0o660, 44, true)]
#[case::none_set(0o666, 0, true)]
#[case::by_somebody_after_us(0o600, 44, false)]
#[case::to_another_group(0o660, 27, false)]
fn permissions_are_given_back_wherever_setting_them_broke_off(
    #[case] mode: u32,
    #[case] gid: u32,
    #[case] ours: bool,
) {
    let host = gpu_host();
    let was = Node { major: 195, minor: 255, mode: 0o666, owner: Owner::default() };
    let made = Node { mode: 0o660, owner: Owner { uid: 0, gid: 44 }, ..was };
    let found = Node { mode, owner: Owner { uid: 0, gid }, ..was };
    let path = std::path::PathBuf::from("/dev/nvidiactl");
    host.change(|state| state.nodes.insert(path.clone(), found));
    let mut journal = Journal::in_memory();
    let node = NodeBefore { path: path.clone(), made, was: Some(was) };
    let before = Nodes { missing_dirs: Vec::new(), nodes: vec![node] };
    journal
        .intend(MakeNodes { dirs: vec!["/dev".into()], left_to_admin: false }.observed(before))
        .unwrap();
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state().nodes[&path], if ours { was } else { found });
}

/// A device manager that sets its own permissions a moment after us does not get the driver
/// uninstalled.
#[test]
fn permissions_that_somebody_changes_after_us_leave_the_driver_ready() {
    let host = gpu_host();
    let mut journal = installed(&host);
    host.change(|state| {
        for node in state.nodes.values_mut() {
            node.mode = 0o660;
        }
    });
    assert!(engine(&host).holds(&install(), &journal));
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    assert!(
        host.state().nodes.values().all(|node| node.mode == 0o666),
        "put right at the next start"
    );
}

#[test]
fn nodes_that_the_administrator_keeps_are_copied_into_the_driver_root_alone() {
    let host = gpu_host();
    for name in ["nvidiactl", "nvidia0", "nvidia-uvm"] {
        host.kept_by(name, NodeKeeper::Admin);
    }
    let owner = Owner { uid: 0, gid: 44 };
    let theirs = Node { major: 195, minor: 255, mode: 0o660, owner };
    let stale = Node { major: 400, minor: 0, mode: 0o600, owner };
    host.change(|state| {
        state.nodes.insert("/dev/nvidiactl".into(), theirs);
        state.nodes.insert("/dev/nvidia-uvm".into(), stale);
    });
    let before = host.state();
    let mut journal = installed(&host);
    let nodes = host.state().nodes;
    assert_eq!(nodes[Path::new("/dev/nvidiactl")], theirs);
    assert_eq!(nodes[Path::new("/store/tree/dev/nvidiactl")], theirs);
    assert_eq!(nodes[Path::new("/dev/nvidia-uvm")], stale, "another device's is theirs, too");
    for absent in ["/dev/nvidia0", "/store/tree/dev/nvidia0", "/store/tree/dev/nvidia-uvm"] {
        assert!(!nodes.contains_key(Path::new(absent)), "{absent}");
    }
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn nodes_of_the_kernels_own_are_made_where_they_are_missing_and_never_changed() {
    let host = gpu_host();
    host.knows("nvidia_uvm", module(&["nvidia"], &[("infiniband/umad0", 231, 0)]));
    host.kept_by("infiniband/umad0", NodeKeeper::Kernel);
    let udevs = Node { major: 231, minor: 0, mode: 0o664, owner: Owner { uid: 0, gid: 110 } };
    host.change(|state| {
        state.dirs.extend(["/host".into(), "/host/dev".into(), "/host/dev/infiniband".into()]);
        state.nodes.insert("/host/dev/infiniband/umad0".into(), udevs);
    });
    let before = host.state();
    let mut steps = install();
    for step in &mut steps {
        if let Step::MakeNodes(MakeNodes { dirs, .. }) = step {
            dirs.insert(0, "/host/dev".into());
        }
    }
    let mut journal = Journal::in_memory();
    engine(&host).apply(&steps, &mut journal, &CancelFlag::default()).unwrap();
    let nodes = host.state().nodes;
    assert_eq!(nodes[Path::new("/host/dev/infiniband/umad0")], udevs);
    assert!(nodes[Path::new("/dev/infiniband/umad0")].same_device(&udevs));
    assert!(!nodes.contains_key(Path::new("/store/tree/dev/infiniband/umad0")));
    assert!(!host.state().dirs.contains(Path::new("/store/tree/dev/infiniband")));
    engine(&host).undo(&mut journal).unwrap();
    assert_eq!(host.state(), before);
}

#[test]
fn a_device_manager_that_is_faster_is_no_failure_unless_it_makes_another_device() {
    for (minor, code) in [(255, None), (7, Some(ExitCode::Expose))] {
        let host = gpu_host();
        host.rival(
            "/dev/nvidiactl",
            Node { major: 195, minor, mode: 0o660, owner: Owner::default() },
        );
        let mut journal = Journal::in_memory();
        let applied = engine(&host).apply(&install(), &mut journal, &CancelFlag::default());
        assert_eq!(applied.is_err().then(|| failed(applied).code()), code);
    }
}
