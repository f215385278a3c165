//! The spec of a simulated host.

use super::*;
use crate::cdi::of_host;
use longshore_core::paths::Paths;
use longshore_host::fake::{FakeHost, FakeModule};

/// A host whose loaded driver has one GPU, and its directory with the driver root.
struct Scene {
    dir: tempfile::TempDir,
    host: FakeHost,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        make(&dir.path().join("run/nvidia/driver"), Machine::this().expect("known"));
        let scene = Self { dir, host: FakeHost::with_dirs(["/dev"]) };
        let information = "proc/driver/nvidia/gpus/0000:01:00.0/information";
        scene.write(information, "Model: \t Tesla T4\nDevice Minor: \t 3\n");
        let node = Node { major: 195, minor: 3, mode: 0o666, owner: Owner::default() };
        let ctl = Node { minor: 255, ..node };
        let nodes = vec![("nvidia3".into(), node), ("nvidiactl".into(), ctl)];
        let version = Some("535.261.03".to_owned());
        scene.host.knows("nvidia", FakeModule { version, nodes, ..FakeModule::default() });
        scene.host.change(|state| {
            state.loaded.insert("nvidia".to_owned(), String::new());
            state.nodes.insert("/dev/nvidia3".into(), node);
            state.nodes.insert("/dev/nvidiactl".into(), ctl);
            state.gpus.push(Gpu {
                address: "0000:01:00.0".to_owned(),
                device: 0x1eb8,
                taken: Taken::Driver,
                kernel_message: None,
            });
        });
        scene
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("directories");
        fs::write(path, text).expect("written");
    }

    fn paths(&self) -> Paths {
        Paths::new(self.dir.path(), Path::new("/"))
    }
}

#[test]
fn a_loaded_and_exposed_driver_has_a_spec() {
    let scene = Scene::new();
    let spec = of_host(&scene.paths(), &[Utility], &scene.host).expect("a spec");
    let names: Vec<_> = spec.full_names().collect();
    assert_eq!(names, ["nvidia.com/gpu=0", "nvidia.com/gpu=all"]);
    let own = |device: &Device| device.container_edits.device_nodes.clone();
    assert_eq!(spec.devices.iter().map(own).collect::<Vec<_>>(), vec![vec![node("nvidia3")]; 2]);
    assert_eq!(spec.container_edits.device_nodes, [node("nvidiactl")]);
    let mounts = &spec.container_edits.mounts;
    assert!(!mounts.is_empty());
    for mount in mounts {
        let within = mount.host_path.strip_prefix('/').expect("absolute");
        assert!(within.starts_with("run/nvidia/driver/usr/"), "{within}");
        assert!(scene.dir.path().join(within).is_file(), "{within}");
    }
}

#[test]
fn a_control_node_that_is_missing_is_left_out() {
    let scene = Scene::new();
    scene.host.change(|state| {
        state.nodes.remove(Path::new("/dev/nvidiactl"));
    });
    let spec = of_host(&scene.paths(), &[Utility], &scene.host).expect("a spec");
    assert_eq!(spec.container_edits.device_nodes, []);
}

#[rstest]
#[case::not_loaded(30, "no NVIDIA driver is loaded", |scene: &Scene| {
    scene.host.change(|state| state.loaded.clear());
})]
#[case::not_exposed(30, "no driver is exposed at ", |scene: &Scene| {
    fs::remove_dir_all(scene.dir.path().join("run/nvidia/driver")).expect("removed");
})]
#[case::another_version(30, "has driver 535.261.03, and 550.163.01 is loaded", |scene: &Scene| {
    let version = Some("550.163.01".to_owned());
    scene.host.knows("nvidia", FakeModule { version, ..FakeModule::default() });
})]
#[case::no_gpu(17, "the loaded driver drives no GPU", |scene: &Scene| {
    scene.host.change(|state| state.gpus[0].taken = Taken::Nobody);
})]
#[case::no_node(30, "no GPU has its device node in /dev", |scene: &Scene| {
    scene.host.change(|state| {
        state.nodes.remove(Path::new("/dev/nvidia3"));
    });
})]
#[case::another_devices_node(30, "no GPU has its device node in /dev", |scene: &Scene| {
    let other = Node { major: 1, minor: 3, mode: 0o666, owner: Owner::default() };
    scene.host.change(|state| {
        state.nodes.insert("/dev/nvidia3".into(), other);
    });
})]
fn there_is_none(#[case] code: u8, #[case] cause: &str, #[case] change: fn(&Scene)) {
    let scene = Scene::new();
    change(&scene);
    let failure = of_host(&scene.paths(), &[Utility], &scene.host).expect_err("no spec");
    assert_eq!(failure.code().number(), code);
    assert!(failure.to_string().contains(cause), "{failure}");
    assert!(failure.remedy_text().is_some());
}
