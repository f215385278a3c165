use rstest::rstest;

use super::super::tests::{FIRMWARE, engine, gpu_host, install, load};
use super::super::{Instances, Lost, Standing};
use crate::journal::{Journal, JournalEntry};
use crate::steps::{MountSysfs, Step};
use longshore_core::cancel::CancelFlag;
use longshore_host::fake::{FakeHost, FakeState};
use longshore_host::values::{Node, TMPFS_SOURCE};

/// A host with the driver, what it stands on, and its record.
struct Scene {
    host: FakeHost,
    journal: Journal,
    instances: Instances,
}

impl Scene {
    fn new() -> Self {
        let host = gpu_host();
        let mut journal = Journal::in_memory();
        engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
        let entries: Vec<JournalEntry> = journal.live().cloned().collect();
        let instances = engine(&host).instances(&install(), &entries).unwrap();
        Self { host, journal, instances }
    }

    fn look(&self) -> Standing {
        let entries: Vec<JournalEntry> = self.journal.live().cloned().collect();
        engine(&self.host).look_again(&install(), &entries, &self.instances)
    }
}

#[test]
fn an_untouched_driver_stands() {
    let scene = Scene::new();
    let verbs = scene.host.log().len();
    let standing = scene.look();
    assert!(standing.modules.is_empty() && standing.lost.is_empty(), "{standing:?}");
    assert_eq!(scene.instances.len(), 3);
    assert_eq!(scene.host.log().len(), verbs, "a look changes nothing");
}

#[rstest]
#[case::tree(|s: &mut FakeState| s.mounts.retain(|(_, on)| !on.ends_with("usr")),
    "/store/tree is no longer mounted on /run/nvidia/driver/usr")]
#[case::sysfs(|s: &mut FakeState| s.mounts.retain(|(_, on)| !on.ends_with("sys")),
    "the sysfs on /run/nvidia/driver/sys is no longer mounted")]
#[case::tmpfs(|s: &mut FakeState| s.mounts.retain(|(_, on)| !on.ends_with("dev")),
    "the tmpfs on /store/tree/dev is no longer mounted")]
#[case::share(|s: &mut FakeState| s.mounts.retain(|(_, on)| !on.ends_with("daemon")),
    "/run/nvidia/daemon is no longer mounted on /run/daemon")]
#[case::node(|s: &mut FakeState| s.nodes.retain(|path, _| !path.ends_with("dev/nvidia0") || path.starts_with("/store")),
    "device nodes are missing or wrong: /dev/nvidia0")]
#[case::another_device(|s: &mut FakeState| {
    s.nodes.insert("/dev/nvidia-uvm".into(), Node { major: 1, minor: 3, mode: 0o666, owner: longshore_host::values::Owner::default() });
}, "device nodes are missing or wrong: /dev/nvidia-uvm")]
#[case::nodes(|s: &mut FakeState| s.nodes.clear(), "and 6 more")]
#[case::firmware(|s: &mut FakeState| drop(s.parameters.insert(FIRMWARE.into(), "/theirs".into())),
    "is \"/theirs\" instead of \"/fw\"")]
fn what_is_gone_is_named_and_can_be_done_again(
    #[case] damage: fn(&mut FakeState),
    #[case] wanted: &str,
) {
    let mut scene = Scene::new();
    let ready = scene.host.state();
    scene.host.change(damage);
    let standing = scene.look();
    assert!(standing.modules.is_empty(), "{standing:?}");
    // A spec names only nodes that are there.
    let is_needed = |lost: &&Lost| lost.step.properties().optional.is_none();
    let needed: Vec<&Lost> = standing.lost.iter().filter(is_needed).collect();
    let [lost] = needed[..] else { panic!("{:?}", standing.lost) };
    assert!(lost.detail.contains(wanted) && !lost.covered, "{lost:?}");
    let steps: [Step; 1] = [lost.step.clone()];
    engine(&scene.host).apply(&steps, &mut scene.journal, &CancelFlag::default()).unwrap();
    let (mut now, mut then) = (scene.host.state(), ready);
    now.mounts.sort();
    then.mounts.sort();
    assert_eq!(now, then);
    assert!(scene.look().lost.is_empty());
}

#[test]
fn a_root_is_gone_with_what_was_mounted_in_it() {
    let mut scene = Scene::new();
    scene.host.change(|state| state.detach("/run/nvidia/driver".as_ref()).unwrap());
    let lost = scene.look().lost;
    let details: Vec<&str> = lost.iter().map(|lost| lost.detail.as_str()).collect();
    assert_eq!(
        details,
        [
            "the tmpfs on /run/nvidia/driver is no longer mounted",
            "/store/tree is no longer mounted on /run/nvidia/driver/usr",
            "the sysfs on /run/nvidia/driver/sys is no longer mounted",
        ]
    );
    let steps: Vec<Step> = lost.into_iter().map(|lost| lost.step).collect();
    engine(&scene.host).apply(&steps, &mut scene.journal, &CancelFlag::default()).unwrap();
    assert!(scene.look().lost.is_empty());
}

/// As an agent leaves them that lost the record of an older layout.
#[test]
fn a_mount_of_longshores_that_another_covers_is_not_there() {
    let scene = Scene::new();
    let step = Step::MountSysfs(MountSysfs { target: "/run/nvidia/driver/sys".into() });
    assert!(step.observe(&scene.host).unwrap().is_none());
    scene.host.change(|state| {
        state.mounts.push((TMPFS_SOURCE.to_owned(), "/run/nvidia/driver".into()));
    });
    assert!(step.observe(&scene.host).unwrap().is_some());
}

#[rstest]
#[case::gone(|host: &FakeHost| host.change(|s| drop(s.loaded.remove("nvidia_uvm"))),
    "nvidia_uvm is no longer loaded")]
#[case::loaded_again(|host: &FakeHost| host.reload("nvidia_uvm"),
    "nvidia_uvm was unloaded and loaded again by another program")]
fn a_module_that_is_another_is_named_and_its_nodes_are_left_alone(
    #[case] damage: fn(&FakeHost),
    #[case] wanted: &str,
) {
    let scene = Scene::new();
    damage(&scene.host);
    scene.host.change(|state| state.nodes.clear());
    let standing = scene.look();
    assert_eq!(standing.modules, [wanted]);
    assert!(standing.lost.is_empty(), "{:?}", standing.lost);
}

#[test]
fn another_tree_in_the_place_of_ours_is_covered_and_not_gone() {
    let scene = Scene::new();
    scene.host.change(|state| {
        state.dirs.insert("/theirs".into());
        for (from, on) in &mut state.mounts {
            if on.ends_with("usr") {
                *from = "/theirs".into();
            }
        }
    });
    let standing = scene.look();
    // A spec names only nodes that are there.
    let is_needed = |lost: &&Lost| lost.step.properties().optional.is_none();
    let needed: Vec<&Lost> = standing.lost.iter().filter(is_needed).collect();
    let [lost] = needed[..] else { panic!("{:?}", standing.lost) };
    assert!(lost.covered, "{lost:?}");
    assert_eq!(lost.detail, "something else is mounted on /run/nvidia/driver/usr");
}

#[test]
fn another_tree_over_ours_is_covered_and_not_mounted_over() {
    let scene = Scene::new();
    scene.host.change(|state| {
        state.dirs.insert("/theirs".into());
        state.mounts.push(("/theirs".into(), "/run/nvidia/driver".into()));
    });
    let standing = scene.look();
    assert!(standing.lost.iter().any(|lost| lost.covered), "{:?}", standing.lost);
}

#[test]
fn modules_that_no_plan_names_are_looked_at_too() {
    let host = gpu_host();
    for name in ["nvidia", "nvidia_uvm"] {
        host.change(|state| state.loaded.insert(name.to_owned(), String::new()));
    }
    let of_kernel = [load("drm")];
    let instances = engine(&host).instances(&of_kernel, &[]).unwrap();
    assert_eq!(instances.into_keys().collect::<Vec<_>>(), ["nvidia", "nvidia_uvm"]);
}
