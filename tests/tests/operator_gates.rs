//! The re-enacted gates of the GPU operator (tests/operator-gates), over directories made for them.

use longshore_core::testing::write_program;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { dir: tempfile::tempdir().expect("a directory") };
        scene.program("bin/nvidia-smi", 0);
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn program(&self, path: &str, code: i32) {
        self.script(path, &format!("#!/bin/sh\nexit {code}\n"));
    }

    fn script(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        write_program(&path, text);
    }

    /// Runs a gate, and returns whether it passed.
    fn passes(&self, gate: &str, environment: &[(&str, &str)]) -> bool {
        let gates = Path::new(env!("CARGO_MANIFEST_DIR")).join("operator-gates");
        let path = format!("{}:/usr/bin:/bin", self.at("bin").display());
        Command::new(gates.join(gate))
            .env("RUN", self.at("run"))
            .env("SYS", self.at("sys"))
            .env("PATH", path)
            .envs(environment.iter().copied())
            .status()
            .expect("it runs")
            .success()
    }
}

const LOADED: &str = "sys/module/nvidia/refcnt";
const STATUS: &str = "run/validations/.driver-daemons-status";
const CONFIRMED: &str = "run/validations/.driver-ctr-ready";

#[test]
fn the_startup_probe() {
    let cases = [
        ("not loaded", None, Some("Ready\n"), 0, false),
        ("not ready", Some("0"), Some("NotReady\n"), 0, false),
        ("no status", Some("0"), None, 0, true),
        ("ready", Some("0"), Some("Ready\n"), 0, true),
        ("nvidia-smi fails", Some("0"), Some("Ready\n"), 6, false),
    ];
    for (name, loaded, status, code, passes) in cases {
        let scene = Scene::new();
        scene.program("bin/nvidia-smi", code);
        for (path, text) in [(LOADED, loaded), (STATUS, status)] {
            if let Some(text) = text {
                scene.write(path, text);
            }
        }
        assert_eq!(scene.passes("startup-probe", &[]), passes, "{name}");
        assert_eq!(scene.at(CONFIRMED).exists(), passes, "{name}");
        assert!(scene.passes("pre-stop", &[]), "{name}");
        assert!(!scene.at(CONFIRMED).exists() && !scene.at(STATUS).exists(), "{name}");
    }
}

#[test]
fn the_driver_manager_unloads_unless_the_digest_is_the_same() {
    let cases = [
        ("2166136261\n", "2166136261", false),
        ("2166136261\n", "1", true),
        ("216613", "2166136261", true),
        ("", "", true),
    ];
    for (stored, digest, unloads) in cases {
        let scene = Scene::new();
        scene.write(LOADED, "0");
        scene.write("run/nvidia-driver.state", stored);
        scene.write("run/nvidia-driver.pid", "1");
        let unloaded = scene.at("unloaded");
        scene.script("bin/rmmod", &format!("#!/bin/sh\necho \"$1\" >>'{}'\n", unloaded.display()));
        assert!(scene.passes("driver-manager", &[("DRIVER_CONFIG_DIGEST", digest)]), "{digest}");
        assert_eq!(unloaded.exists(), unloads, "{stored} {digest}");
        assert!(!scene.at("run/nvidia-driver.pid").exists());
    }
}

#[test]
fn the_validator_takes_a_driver_root_and_refuses_one_that_leads_out() {
    let scene = Scene::new();
    scene.write(CONFIRMED, "GDS_ENABLED: false\n");
    let library = "run/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";
    scene.program("run/driver/usr/bin/nvidia-smi", 0);
    assert!(!scene.passes("validator", &[]), "no library");
    scene.write(library, "");
    fs::create_dir_all(scene.at("run/driver/dev")).expect("made");
    assert!(!scene.passes("validator", &[]), "no PCI devices in the driver root");
    scene.write("run/driver/sys/bus/pci/devices/0000:01:00.0", "");
    assert!(scene.passes("validator", &[]));
    fs::remove_file(scene.at(library)).expect("removed");
    std::os::unix::fs::symlink("/bin/sh", scene.at(library)).expect("linked");
    assert!(!scene.passes("validator", &[]), "an absolute link");
}
