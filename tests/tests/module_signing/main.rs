//! Tests of modules that the program signs for the kernel: with the kernel's real sign-file out of
//! a package, and with signatures that openssl made. Both are compared with sign-file's output.

mod host;

use std::fs;
use std::path::{Path, PathBuf};

use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::module_signing::appended;
use longshore_modules::sets::SetStore;

use longshore_tests::packages::{self, KERNEL};
use longshore_tests::scene::disk;
use longshore_tests::scene::{Scene, finish, names};
use longshore_tests::signer::Signer;
use longshore_tests::{archive, module_sets};

/// A scene whose archive has sign-file, an unsigned set in its store, and a signer.
struct Bench {
    scene: Scene,
    set: ModuleSet,
    signer: Signer,
}

impl Bench {
    fn new() -> Self {
        Self::with(host::archive())
    }

    fn with(suite: archive::Suite) -> Self {
        let scene = Scene::with(suite);
        let store = Store::open(&scene.path("store"), disk()).expect("store");
        let set = module_sets::put(&store, KERNEL);
        let signer = Signer::new(&scene.path("signer"), "Module signing");
        Self { scene, set, signer }
    }

    fn store(&self) -> Store {
        Store::open(&self.scene.path("store"), disk()).expect("store")
    }

    /// Returns `sign-modules` for the scene's kernel, with further arguments.
    fn command(&self, args: &[&str]) -> std::process::Command {
        self.scene.agent(&[&["sign-modules", "--kernel", KERNEL][..], args].concat())
    }

    fn with_key(&self, key: &Path, args: &[&str]) -> std::process::Command {
        let mut command = self.command(args);
        command.arg("--module-key").arg(key);
        command.arg("--module-certificate").arg(&self.signer.certificate);
        command
    }

    fn with_signatures(&self, dir: &Path) -> std::process::Command {
        let mut command = self.command(&[]);
        command.arg("--module-signatures").arg(dir);
        command.arg("--module-certificate").arg(&self.signer.certificate);
        command
    }

    /// Returns the signed sets of the store.
    fn signed(&self) -> Vec<ModuleSet> {
        let mut sets = self.store().sets().expect("sets");
        sets.retain(|set| set.key.signed_by.is_some());
        sets
    }

    /// Returns the one signed set, after comparing its modules with sign-file's output for the
    /// unsigned ones.
    fn assert_signed_as_sign_file_does(&self, hash: &str) -> ModuleSet {
        self.scene.assert_sound();
        let [signed] = &self.signed()[..] else { panic!("not one signed set") };
        assert_eq!(signed.key.unsigned(), self.set.key);
        for (unsigned, signed) in self.set.modules.iter().zip(&signed.modules) {
            let module = self.store().read_blob(&unsigned.sha256).expect("unsigned");
            let theirs = self.signer.sign_file(hash, &module);
            let ours = self.store().read_blob(&signed.sha256).expect("signed");
            assert!(ours == theirs, "{} differs from sign-file's output", signed.file);
            let (content, message) = appended::split(&ours).expect("well-formed");
            assert!(
                content == module && self.signer.openssl_verifies(content, message.expect("one"))
            );
        }
        signed.clone()
    }

    fn export(&self) -> PathBuf {
        let out = self.scene.path("to-sign");
        finish(self.command(&[]).arg("--export").arg(&out)).assert_done();
        out
    }
}

/// Lists all files in a directory and below, except hermetic roots, which hold libcrypto.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in names(dir).iter().filter(|name| *name != "roots") {
        let path = dir.join(name);
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn a_set_is_signed_with_the_kernels_own_sign_file() {
    let bench = Bench::new();
    let layout = bench.scene.path("layout");
    let mut command = bench.with_key(&bench.signer.key, &[]);
    finish(command.arg("--out").arg(&layout)).assert_done();
    let signed = bench.assert_signed_as_sign_file_does("sha256");
    let by = signed.key.signed_by.expect("signed");
    assert_eq!(by.name, "Example: Module signing");
    assert_eq!(by.key_ids, [bench.signer.key_id()]);
    assert_eq!(by.hash.to_string(), "sha256", "what the kernel's configuration says");
    let exported = longshore_modules::layout::list(&layout).expect("a layout");
    assert_eq!(exported[0].set.modules, signed.modules);
    let secret = bench.signer.secret_line();
    for path in files_below(&bench.scene.path("store")) {
        let bytes = fs::read(&path).expect("read");
        assert!(!String::from_utf8_lossy(&bytes).contains(&secret), "{} has it", path.display());
    }
}

#[test]
fn the_second_time_the_signed_set_is_there() {
    let bench = Bench::new();
    let sign = || finish(&mut bench.with_key(&bench.signer.key, &[])).assert_done();
    sign();
    let first = bench.signed();
    bench.scene.configure("host-apt = false\n");
    sign();
    assert_eq!(bench.signed(), first, "and no archive was asked");
}

#[test]
fn a_key_may_have_a_passphrase_and_either_form() {
    let bench = Bench::new();
    let mut command = bench.with_key(&bench.signer.encrypted("secret word"), &[]);
    finish(command.env("KBUILD_SIGN_PIN", "secret word")).assert_done();
    bench.assert_signed_as_sign_file_does("sha256");
    let mut command = bench.with_key(&bench.signer.pkcs1(), &["--module-hash", "sha512"]);
    finish(&mut command).assert_done();
    assert_eq!(bench.signed().len(), 2, "another hash is another set");
}

#[test]
fn a_mounted_secret_is_enough() {
    let bench = Bench::new();
    let secret = bench.signer.mounted(&bench.scene.path("secret"));
    finish(bench.command(&[]).arg("--module-key").arg(secret)).assert_done();
    bench.assert_signed_as_sign_file_does("sha256");
}

#[test]
fn a_key_that_cannot_be_used_signs_nothing() {
    let bench = Bench::new();
    let other = Signer::new(&bench.scene.path("other"), "Somebody else");
    let wrong = bench.signer.encrypted_against("secret word", "another");
    let mut command = bench.with_key(&wrong, &[]);
    command.env("KBUILD_SIGN_PIN", "another");
    bench.scene.refuses(command, 2, &["signing with the key", "bad decrypt", "KBUILD_SIGN_PIN"]);
    let without = bench.with_key(&wrong, &[]);
    bench.scene.refuses(without, 2, &["signing with the key", "KBUILD_SIGN_PIN"]);
    let command = bench.with_key(&other.key, &[]);
    bench.scene.refuses(command, 2, &["private key does not match certificate"]);
    let command = bench.with_key(&bench.scene.path("nowhere"), &[]);
    bench.scene.refuses(command, 2, &["reading the key", "nowhere"]);
    assert!(bench.signed().is_empty());
}

#[test]
fn a_kbuild_package_without_sign_file_is_named() {
    let bench = Bench::with(host::archive_without_sign_file());
    let command = bench.with_key(&bench.signer.key, &[]);
    bench.scene.refuses(command, 11, &["no sign-file", "--module-signatures"]);
}

/// The compile takes minutes, and its modules would stay unsigned.
#[test]
fn a_build_whose_modules_nothing_can_sign_ends_before_the_build_root_is_unpacked() {
    let scene = Scene::with(packages::buildable(&[]));
    let signer = Signer::new(&scene.path("signer"), "Module signing");
    let root = scene.path("root");
    fs::create_dir(&root).expect("directory");
    let mut build = scene.agent(&["build", "--kernel", "6.1.0-99-amd64"]);
    build.arg("--driver").arg(packages::DRIVER).arg("--build-root").arg(&root);
    build.arg("--module-key").arg(&signer.key);
    build.arg("--module-certificate").arg(&signer.certificate);
    let said = ["no sign-file for 6.1.0-99-amd64", "--module-signatures"];
    scene.refuses(build, 11, &said);
    assert!(names(&scene.path("store/roots")).is_empty());
}

#[test]
fn signatures_made_elsewhere_are_appended_as_sign_file_would() {
    let bench = Bench::new();
    let dir = bench.export();
    for module in files_below(&dir) {
        bench.signer.openssl_signs(&module, &["-noattr", "-nocerts", "-md", "sha512"]);
        fs::remove_file(&module).expect("only the signatures come back");
    }
    finish(&mut bench.with_signatures(&dir)).assert_done();
    bench.assert_signed_as_sign_file_does("sha512");
}

#[test]
fn signatures_that_no_kernel_would_take_are_refused() {
    let bench = Bench::new();
    let dir = bench.export();
    let command = bench.with_signatures(&dir);
    bench.scene.refuses(command, 15, &["none of the 0 signatures", "nvidia.ko", "--export"]);
    let modules = files_below(&dir);
    for module in &modules {
        bench.signer.openssl_signs(module, &["-nocerts", "-md", "sha256"]);
    }
    let command = bench.with_signatures(&dir);
    bench.scene.refuses(command, 13, &["signed attributes", "-noattr"]);
    let other = Signer::new(&bench.scene.path("other"), "Somebody else");
    for module in &modules {
        other.openssl_signs(module, &["-noattr", "-nocerts", "-md", "sha256"]);
    }
    let command = bench.with_signatures(&dir);
    bench.scene.refuses(command, 13, &["signed by Somebody else", "Module signing"]);
    for module in &modules {
        fs::write(module, b"something else").expect("write");
        bench.signer.openssl_signs(module, &["-noattr", "-nocerts", "-md", "sha256"]);
    }
    let command = bench.with_signatures(&dir);
    bench.scene.refuses(command, 13, &["over exactly this file"]);
    assert!(bench.signed().is_empty());
}

#[test]
fn what_cannot_be_asked_for_is_said() {
    let bench = Bench::new();
    bench.scene.refuses(bench.command(&[]), 2, &["nothing to sign modules with", "--module-key"]);
    let command = bench.scene.agent(&["sign-modules", "--kernel", "6.1.0-99-amd64"]);
    bench.scene.refuses(command, 12, &["no such set", "6.1.0-99-amd64"]);
}
