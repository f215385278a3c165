//! Core objects of a source tree in a real docker-registry: compiled on one host, pushed beside the set, and linked on
//! another host, which compiles its kernel's part alone. Compiles are real but for make.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use longshore_modules::artifact::core_objects::{CORE_PATHS, DescribedCore};
use longshore_modules::sets::core_objects::{StoredCore, of_tree};
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signature::signature_tag;
use longshore_tests::archive::{ARCH, Suite};
use longshore_tests::packages::{self, DRIVER, Item, KERNEL, deb};
use longshore_tests::scene::{Ended, Scene as Host, finish};

use super::cosign::PASSWORD;
use super::together::{MODULES, archive, entries, tags};
use super::*;

/// A second kernel of the same compiler.
pub(super) const NEXT: &str = "6.1.0-51-amd64";

/// Returns the archive of a build, with both kernels and the packages of core objects.
pub(super) fn suite() -> Suite {
    let mut suite = archive(0, false);
    suite.packages.push(packages::headers_of(NEXT));
    for (name, version, depends, path) in [
        ("g++-12", "12.2.0-1", "Depends: gcc-12\n", "./usr/bin/g++-12"),
        ("xz-utils", "1", "", "./usr/bin/xz"),
    ] {
        let stanza =
            format!("Package: {name}\nVersion: {version}\nArchitecture: {ARCH}\n{depends}");
        suite.packages.push((stanza, deb(&[Item::Program(path, &packages::saying("", 0))])));
    }
    suite
}

/// Returns the tar of a tree, whose make is the stand-in's.
pub(super) fn tree() -> Vec<u8> {
    let mut files = vec![
        ("version.mk".to_owned(), format!("NVIDIA_VERSION = {DRIVER}\n").into_bytes()),
        (
            "kernel-open/Kbuild".to_owned(),
            format!("ccflags-y += -DNV_VERSION_STRING=\\\"{DRIVER}\\\"\n").into_bytes(),
        ),
        ("src/nvidia/Makefile".to_owned(), b"all:\n".to_vec()),
        ("src/nvidia-modeset/Makefile".to_owned(), b"all:\n".to_vec()),
    ];
    for name in ["kernel-open/conftest.sh", "kernel-open/go", "go"] {
        files.push((name.to_owned(), Vec::new()));
    }
    for path in CORE_PATHS {
        let dir = Path::new(path).parent().expect("a directory").display();
        files.push((format!("kernel-open/{dir}/a.c"), Vec::new()));
    }
    let module =
        |name: &str| (format!("kernel-open/{name}.ko.in"), module_sets::module(name, KERNEL));
    files.extend(MODULES.map(module));
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        header.set_mtime(1_700_000_000);
        let path = format!("open-gpu-kernel-modules-{DRIVER}/{path}");
        tar.append_data(&mut header, path, bytes.as_slice()).expect("append");
    }
    tar.into_inner().expect("a tar")
}

/// Hosts with stores of their own, a registry, and the keys of the host that pushes.
struct Fleet {
    host: Host,
    hub: Hub,
    sha256: String,
}

impl Fleet {
    fn new() -> Self {
        let (host, hub) = (Host::with(suite()), Hub::start(None));
        let tree = tree();
        fs::write(host.path("tree.tar"), &tree).expect("writes");
        let sha256 = longshore_tests::archive::digest(&tree);
        Self { host, hub, sha256 }
    }

    fn reference(&self) -> String {
        format!("http://{}/nvidia/modules", self.hub.address)
    }

    /// Writes a key pair, and returns the paths of both.
    fn keys(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = SecretKey::generate();
        let (secret, public) =
            (self.host.path(&format!("{name}.key")), self.host.path(&format!("{name}.pub")));
        fs::write(&secret, key.to_encrypted_pem(PASSWORD).expect("PEM")).expect("writes");
        fs::write(&public, key.public_pem().expect("PEM")).expect("writes");
        (secret, public)
    }

    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = self.host.agent(args);
        command
            .env("LONGSHORE_STORE", self.host.path(name))
            .env("LONGSHORE_DRIVER", DRIVER)
            .env("COSIGN_PASSWORD", PASSWORD);
        command
    }

    /// Builds for a kernel in the store of this name; returns the log.
    fn build(&self, name: &str, kernel: &str, settings: &[(&str, &str)]) -> Ended {
        let tree = self.host.path("tree.tar").display().to_string();
        let pin = format!("{DRIVER}={}", self.sha256);
        let args = ["build", "--kernel", kernel, "--flavour", "open", "--source-tree", &tree];
        let mut command =
            self.command(name, &[&args[..], &["--source-tree-sha256", &pin]].concat());
        command.envs(settings.iter().copied());
        let ended = finish(&mut command);
        ended.assert_done();
        module_sets::assert_sound(&self.store(name));
        ended
    }

    fn push(&self, name: &str, key: Option<&Path>) -> Ended {
        let reference = self.reference();
        let mut command = self.command(name, &["push", &reference, "--kernel", KERNEL]);
        if let Some(key) = key {
            command.arg("--sign-key").arg(key);
        }
        let ended = finish(&mut command);
        ended.assert_done();
        ended
    }

    fn store(&self, name: &str) -> Store {
        Store::open(&self.host.path(name), disk()).expect("store")
    }

    /// Returns the store's only core objects.
    fn core(&self, name: &str) -> StoredCore {
        let mut found = of_tree(&self.sha256, &self.store(name));
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    /// True if core objects were compiled into this store.
    fn compiled_core(&self, name: &str) -> bool {
        let logs = entries(&self.host.path(name).join("logs"));
        logs.iter().any(|log| log.display().to_string().contains("-core-"))
    }
}

#[test]
fn one_host_compiles_core_objects_and_another_links_them_for_its_kernel() {
    let fleet = Fleet::new();
    let reference = fleet.reference();
    fleet.build("one", KERNEL, &[("LONGSHORE_PUBLISH", &reference)]);
    assert!(fleet.compiled_core("one"));
    let tag = fleet.core("one").record.query().tag();
    assert!(tags(&fleet.hub).contains(&tag), "{:?}", tags(&fleet.hub));

    let ended = fleet.build("two", NEXT, &[("LONGSHORE_PUBLISH", &reference)]);
    assert!(!fleet.compiled_core("two"), "{ended}");
    let (one, two) = (fleet.core("one"), fleet.core("two"));
    assert_eq!(one.record, two.record);
    let set = fleet.store("two").sets().expect("sets").remove(0);
    let record = fleet.store("two").build_record(&set).expect("a record");
    let manifest = DescribedCore::from_record(&one.record).expect("describes").digest();
    assert_eq!(record.core.and_then(|core| core.pulled), Some(manifest));
    // A second build in the same store links those of the store.
    fleet.build("two", KERNEL, &[]);
    assert!(!fleet.compiled_core("two"));
}

#[test]
fn a_registry_that_fails_or_lies_costs_a_warning() {
    let fleet = Fleet::new();
    fleet.build("one", KERNEL, &[]);
    fleet.push("one", None);
    let away = format!("http://{}/nvidia/modules", hub::free_address());
    let ended = fleet.build("away", NEXT, &[("LONGSHORE_REGISTRIES", &away)]);
    assert!(ended.err.contains("are not used: "), "{ended}");
    assert!(fleet.compiled_core("away"));

    let core = fleet.core("one");
    let object = core.record.objects.values().next().expect("one");
    let blob = fleet.hub.blob(&object.sha256);
    let mut bytes = fs::read(&blob).expect("reads");
    bytes[0] ^= 1;
    fs::write(&blob, bytes).expect("writes");
    let ended = fleet.build("lied", NEXT, &[("LONGSHORE_REGISTRIES", &fleet.reference())]);
    assert!(ended.err.contains("not what was promised"), "{ended}");
    assert!(fleet.compiled_core("lied"));
    assert_eq!(fleet.core("lied"), core);
}

#[test]
fn where_signatures_are_required_only_signed_core_objects_are_linked() {
    let fleet = Fleet::new();
    let ((secret, public), (_, other)) = (fleet.keys("own"), fleet.keys("other"));
    let reference = fleet.reference();
    let requiring = |key: &Path| {
        [
            ("LONGSHORE_REGISTRIES", reference.clone()),
            ("LONGSHORE_SIGNATURE_KEYS", key.display().to_string()),
        ]
    };
    let build = |name: &str, key: &Path| {
        let settings = requiring(key);
        let settings: Vec<_> =
            settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        fleet.build(name, NEXT, &settings)
    };
    fleet.build("one", KERNEL, &[]);
    fleet.push("one", None);
    let ended = build("unsigned", &public);
    assert!(ended.err.contains("it has no signature"), "{ended}");
    assert!(fleet.compiled_core("unsigned"));

    // The same artifact, signed by a later push.
    fleet.push("one", Some(&secret));
    let core = fleet.core("one");
    let digest = DescribedCore::from_record(&core.record).expect("describes").digest();
    assert!(tags(&fleet.hub).contains(&signature_tag(&digest)));
    let ended = build("signed", &public);
    assert!(!fleet.compiled_core("signed"), "{ended}");
    let ended = build("by-others", &other);
    assert!(ended.err.contains("made with another key"), "{ended}");
    assert!(fleet.compiled_core("by-others"));
    let mut denied = requiring(&public).to_vec();
    denied.push(("LONGSHORE_DENIED_SETS", digest));
    let denied: Vec<_> = denied.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let ended = fleet.build("denied", NEXT, &denied);
    assert!(ended.err.contains("is denied (denied-sets)"), "{ended}");
    assert!(fleet.compiled_core("denied"));
}

#[test]
fn a_host_that_signs_links_no_unsigned_core_objects_and_signs_its_own() {
    let fleet = Fleet::new();
    let (secret, _) = fleet.keys("own");
    let (secret, reference) = (secret.display().to_string(), fleet.reference());
    fleet.build("one", KERNEL, &[]);
    fleet.push("one", None);
    // Pulled unsigned for a set that nobody signs: the store has them then.
    fleet.build("two", NEXT, &[("LONGSHORE_REGISTRIES", &reference)]);
    assert!(!fleet.compiled_core("two"));
    let publish = [("LONGSHORE_PUBLISH", reference.as_str()), ("LONGSHORE_PUBLISH_KEY", &secret)];
    let ended = fleet.build("two", NEXT, &publish);
    assert!(fleet.compiled_core("two"), "{ended}");
    assert!(ended.err.contains("they were pulled, and it has no signature"), "{ended}");
    let core = fleet.core("two");
    assert_eq!(core.pulled, None);
    // The same bytes, which the registry has already; the publisher signs them.
    let digest = DescribedCore::from_record(&core.record).expect("describes").digest();
    assert!(tags(&fleet.hub).contains(&signature_tag(&digest)));
    let ended = fleet.build("three", KERNEL, &publish);
    assert!(!fleet.compiled_core("three"), "{ended}");
}

#[test]
fn a_push_without_core_objects_in_the_store_pushes_the_set() {
    let fleet = Fleet::new();
    fleet.build("one", KERNEL, &[]);
    let core = fleet.core("one");
    let file = format!("core/{}.json", core.record.key);
    fs::remove_file(fleet.host.path("one").join(file)).expect("removes");
    let ended = fleet.push("one", None);
    assert!(ended.err.contains("the store has removed them"), "{ended}");
    assert_eq!(tags(&fleet.hub).len(), 1);
    let index =
        finish(&mut fleet.command("one", &["list", &fleet.reference(), "--kernel", KERNEL]));
    index.assert_done();
}
