//! Modules that were compiled elsewhere: pushed as a set, then found, judged and pulled as any
//! other.

use longshore_tests::module_sets;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use longshore_core::flavour::Flavour;
use longshore_modules::artifact::HeadersFrom;
use longshore_modules::sets::SetStore;
use longshore_modules::signature::key::{PublicKey, SecretKey};

use super::*;
use longshore_tests::scene::longshore;

const RELEASE: &str = "6.6.30-vendor";
const VERSION: &str = "#2 SMP PREEMPT Vendor 6.6.30-2";

/// Returns the `.modinfo` of a module of the driver.
fn info(name: &str, change: &[(&str, &str)]) -> String {
    let depends = if name == "nvidia" { "" } else { "nvidia" };
    let fields = [
        ("name", name.replace('-', "_")),
        ("license", "Dual MIT/GPL".to_owned()),
        ("version", "550.163.01".to_owned()),
        ("vermagic", format!("{RELEASE} SMP preempt mod_unload ")),
        ("depends", depends.to_owned()),
    ];
    let changed = |key: &str| change.iter().find(|(k, _)| *k == key).map(|(_, v)| (*v).to_owned());
    let fields = fields.map(|(key, value)| format!("{key}={}\0", changed(key).unwrap_or(value)));
    fields.concat()
}

/// Makes a directory with the modules of a driver, not in their load order.
fn modules(scene: &Scene) -> PathBuf {
    let dir = scene.dir.path().join("modules");
    fs::create_dir(&dir).expect("dir");
    for (file, name) in [("a-drm.ko", "nvidia-drm"), ("nvidia.ko", "nvidia")] {
        fs::write(dir.join(file), module_sets::elf(&info(name, &[]))).expect("writes");
    }
    fs::write(dir.join("Makefile"), "all:\n").expect("writes");
    dir
}

fn push(scene: &Scene, dir: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(longshore());
    let store = scene.dir.path().join("store");
    command.env_clear().env("LONGSHORE_STORE", store).env("COSIGN_PASSWORD", "");
    command.args(["push", &scene.name(), "--modules"]).arg(dir).args(more);
    command.output().expect("runs")
}

#[tokio::test]
async fn what_was_compiled_elsewhere_is_pushed_signed_and_pulled() {
    let scene = Scene::new();
    let dir = modules(&scene);
    let key = SecretKey::generate();
    let secret = scene.dir.path().join("cosign.key");
    fs::write(&secret, key.to_encrypted_pem("").expect("pem")).expect("writes");
    let public = scene.dir.path().join("cosign.pub");
    fs::write(&public, key.public_pem().expect("pem")).expect("writes");
    let sign = ["--kernel-version", VERSION, "--sign-key", secret.to_str().expect("a path")];
    let pushed = push(&scene, &dir, &sign);
    let said = String::from_utf8_lossy(&pushed.stdout).into_owned();
    assert!(pushed.status.success(), "{pushed:?}");
    assert!(said.contains("signed; ") && said.contains("compiled elsewhere"), "{said}");

    let registry = scene.open(&[]);
    let requested =
        SetRequest { driver: Some("550"), flavour: None, kernel_release: RELEASE, arch: "x86_64" };
    let found = find(&registry, requested).await.expect("finds");
    let [found] = &found[..] else { panic!("one set: {found:?}") };
    let keys = [PublicKey::read(&public).expect("a key")];
    let evidence = registry.evidence(found, &trusting(&keys)).await.expect("evidence");
    evidence.verify(&found.set, &keys).expect("signed");
    let set = scene.pull(&found.digest()).await.expect("pulls");
    module_sets::assert_sound(&scene.other);

    let names: Vec<&str> = set.modules.iter().map(|module| module.name.as_str()).collect();
    assert_eq!(names, ["nvidia", "nvidia_drm"]);
    let key = &set.key;
    assert_eq!((key.driver_version.as_str(), key.flavour), ("550.163.01", Flavour::Open));
    assert_eq!((key.kernel_release.as_str(), key.kernel_version.as_str()), (RELEASE, VERSION));
    assert_eq!((key.compiler.as_str(), set.headers_from), ("unknown", HeadersFrom::Unknown));
    assert!(!set.has_signed_headers());
}

fn put(dir: &Path, file: &str, name: &str, change: &[(&str, &str)]) {
    fs::write(dir.join(file), module_sets::elf(&info(name, change))).expect("writes");
}

/// A change of a directory of modules, and its refusal.
type Case = (fn(&Path), i32, &'static str);

const WRONG: [Case; 13] = [
    (|d| fs::write(d.join("b.ko"), "text").expect("writes"), 13, "b.ko: not a kernel module"),
    (
        |d| put(d, "b.ko", "nvidia-uvm", &[("version", "535.1.1")]),
        13,
        "b.ko is of driver 535.1.1, nvidia.ko of 550.163.01",
    ),
    (
        |d| put(d, "b.ko", "nvidia-uvm", &[("vermagic", "6.1.0 SMP ")]),
        13,
        "b.ko was built for the kernel \"6.1.0\"",
    ),
    (
        |d| put(d, "b.ko", "nvidia-uvm", &[("vermagic", "6.6.30-vendor SMP mod_unload ")]),
        13,
        "b.ko was built for \"6.6.30-vendor SMP mod_unload \"",
    ),
    (|d| put(d, "b.ko", "gdrdrv", &[]), 13, "b.ko is no module of NVIDIA's driver"),
    (|d| put(d, "b.ko", "nvidia-drm", &[]), 13, "the module nvidia_drm twice"),
    (|d| fs::remove_file(d.join("nvidia.ko")).expect("removes"), 13, "it has no nvidia.ko"),
    (|d| put(d, "nvidia.ko", "nvidia", &[("depends", "nvidia_drm")]), 13, "in a cycle"),
    (|d| put(d, "nvidia.ko", "nvidia", &[("license", "GPL")]), 13, "of neither flavour"),
    (
        |d| symlink(d.join("nvidia.ko"), d.join("b.ko")).expect("links"),
        13,
        "b.ko cannot be used: it is a link",
    ),
    (
        |d| nix::unistd::mkfifo(&d.join("b.ko"), nix::sys::stat::Mode::S_IRWXU).expect("makes"),
        13,
        "b.ko cannot be used: it is no regular file",
    ),
    (
        |d| fs::rename(d.join("a-drm.ko"), d.join("a-drm.ko.xz")).expect("renames"),
        13,
        "a-drm.ko.xz is compressed",
    ),
    (|d| fs::remove_dir_all(d).expect("removes"), 2, "No such file or directory"),
];

#[test]
fn a_directory_that_is_no_set_is_refused() {
    let scene = Scene::new();
    let before = scene.store.sets().expect("sets").len();
    for (change, code, expected) in WRONG {
        let dir = modules(&scene);
        change(&dir);
        let refused = push(&scene, &dir, &["--kernel-version", VERSION]);
        let said = String::from_utf8_lossy(&refused.stderr).replace("\\\"", "\"");
        assert_eq!(refused.status.code(), Some(code), "{expected}: {said}");
        assert!(said.contains(expected), "{expected}: {said}");
        assert_eq!(scene.store.sets().expect("sets").len(), before, "{expected}");
        if dir.exists() {
            fs::remove_dir_all(&dir).expect("removes");
        }
    }
}

#[test]
fn a_kernel_that_does_not_run_here_has_to_be_named_whole() {
    let scene = Scene::new();
    let dir = modules(&scene);
    for (more, expected) in [
        (&[][..], "uname -v"),
        (&["--kernel-version", VERSION, "--kernel", "6.1.0"], "not \"6.1.0\""),
        (&["--kernel-version", "6.1.0"], "uname -v"),
    ] {
        let refused = push(&scene, &dir, more);
        let said = String::from_utf8_lossy(&refused.stderr).replace("\\\"", "\"");
        assert!(!refused.status.success() && said.contains(expected), "{said}");
    }
}
