//! Every reader of untrusted input, as a function of bytes. A reader may refuse its input; it may
//! not panic, hang, take much memory, or leave files behind.
//!
//! The fuzz targets call these, and so do the tests (tests/tests/corpus.rs), with the corpus.

mod configurations;
mod records;
mod sources;

use std::fs;
use std::path::Path;

use longshore::engine::image;
use longshore_core::deadlines::Deadlines;
use longshore_core::disk::Disk;
use longshore_core::image_reference::Reference;
use longshore_core::store::Store;
use longshore_debian::keyring::Keyring;
use longshore_debian::packages::{Index, Origin};
use longshore_debian::release::Release;
use longshore_debian::{deb, version};
use longshore_modules::artifact::core_objects::DescribedCore;
use longshore_modules::artifact::image::{Described, digest};
use longshore_modules::artifact::{ModuleEntry, index};
use longshore_modules::kernel::modinfo;
use longshore_modules::layout;
use longshore_modules::signature::attestation::{Attestation, AttestationReader};
use longshore_modules::signature::set_index::{SetIndex, SignedIndex};
use longshore_modules::signature::{self, Evidence, SignatureReader, Trust};
use longshore_sources::runfile;

pub use configurations::{apt_conf, apt_lists, json_edit, toml_edit, units};
pub use records::{cdi, challenge, journal, lease, node_annotation};
pub use sources::{layer, recipe};

/// A reader and its name.
pub type Target = (&'static str, fn(&[u8]));

/// The targets by name.
pub const TARGETS: [Target; 18] = [
    ("run_file", run_file),
    ("deb", deb),
    ("packages", packages),
    ("release", release),
    ("modinfo", modinfo),
    ("oci", oci),
    ("layer", layer),
    ("recipe", recipe),
    ("toml_edit", toml_edit),
    ("json_edit", json_edit),
    ("units", units),
    ("apt_lists", apt_lists),
    ("apt_conf", apt_conf),
    ("journal", journal),
    ("lease", lease),
    ("node_annotation", node_annotation),
    ("challenge", challenge),
    ("cdi", cdi),
];

/// Number of names that are looked up in an index; looking up all of a large one takes long.
const NAMES: usize = 50;
/// 2026-11-20.
const NOW: u64 = 1_795_132_800;

/// Runs `read` with the path `inside` in a new directory, and checks that nothing was written
/// beside it.
fn beside_nothing(read: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    read(&dir.path().join("inside"));
    let names = fs::read_dir(dir.path()).expect("listed");
    let others: Vec<_> =
        names.map(|entry| entry.expect("entry").file_name()).filter(|n| n != "inside").collect();
    assert!(others.is_empty(), "written outside: {others:?}");
}

/// Runs `read` with a new, empty directory.
fn inside(read: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    read(dir.path());
}

/// Reads a .run file: header, payload, manifest, list of GPUs.
pub fn run_file(bytes: &[u8]) {
    beside_nothing(|inside| {
        let store = Store::open(inside, Disk::within(Deadlines::default().disk)).expect("a store");
        let mut reader = bytes;
        let _ = runfile::inspect("driver.run", &mut reader, &store);
        let left = fs::read_dir(store.dir("tmp")).expect("listed").count();
        assert_eq!(left, 0, "an unfinished file is left");
    });
}

/// Reads a Debian package: ar, compression, tar.
pub fn deb(bytes: &[u8]) {
    let listed = deb::list("package", bytes);
    if let Some(path) = listed.as_ref().ok().and_then(|paths| paths.first()) {
        let _ = deb::read_file("package", bytes, path);
    }
    beside_nothing(|inside| {
        deb::make_usrmerge_links(inside).expect("links");
        let _ = deb::unpack("package", bytes, inside, &mut deb::everything);
    });
}

/// Reads an archive's index of packages.
pub fn packages(bytes: &[u8]) {
    let origin = Origin {
        base_url: "https://archive.example.com/debian".into(),
        suite: "bookworm".into(),
        component: "main".into(),
        arch: "amd64".into(),
        host_flat: false,
    };
    let promised = bytes.len() as u64;
    let _ = Index::read(bytes, promised / 2, origin.clone());
    let Ok(index) = Index::read(bytes, promised, origin) else { return };
    let mut names: Vec<&str> = index.names().collect();
    names.dedup();
    let mut versions = Vec::new();
    for name in names.into_iter().take(NAMES) {
        for package in index.named(name).into_iter().take(NAMES) {
            assert!(package.url().starts_with("https://archive.example.com/debian/"));
            for provided in &package.provides {
                let _ = index.providing(&provided.name).len();
            }
            versions.push(package.version);
        }
    }
    for pair in versions.windows(2) {
        let (there, back) =
            (version::compare(&pair[0], &pair[1]), version::compare(&pair[1], &pair[0]));
        assert_eq!(there, back.reverse(), "{pair:?}");
    }
}

/// Reads a suite's InRelease, its signed text, and a keyring.
pub fn release(bytes: &[u8]) {
    let keyring = Keyring::read(include_bytes!("../corpus/release/archive-key.asc"));
    let text = keyring.verify_cleartext(bytes, NOW);
    let _ = keyring.verify(b"text", bytes, NOW);
    // Unsigned input is parsed, too.
    let text = text.unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned());
    let _ = Release::parse(&text);
    let _ = Keyring::read(bytes).verify_cleartext(bytes, NOW);
}

/// Reads a kernel module, as built and as compressed by distributions.
pub fn modinfo(bytes: &[u8]) {
    if let Ok(info) = modinfo::read(bytes) {
        let release = info.kernel_release().unwrap_or_default();
        let _ = ModuleEntry::describe("nvidia.ko", bytes, release);
    }
    let _ = modinfo::parse(bytes);
    let _ = image::unpack(Path::new("nvidia.ko"), bytes.to_vec());
}

/// Reads the description of a set, or of core objects, in a registry or an image layout: a manifest, and after a NUL its
/// config.
pub fn oci(bytes: &[u8]) {
    let (manifest, config) = match bytes.iter().position(|b| *b == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b"{}"[..]),
    };
    let _ = Described::assemble(manifest.to_vec(), config.to_vec(), "here");
    let _ = index::entry_for(manifest, "x86_64", "here");
    let _ = SignatureReader::default().layers(manifest);
    let _ = AttestationReader::default().layers(manifest);
    if let Some(attestation) = Attestation::from_bytes(manifest.to_vec()) {
        let kind = "provenance".parse().expect("a type");
        attestation
            .verify(&digest(config), &kind, &Trust::default())
            .expect_err("no key signed it");
    }
    let _ = SetIndex::parse(manifest);
    if let Ok(signed) = SignedIndex::from_bytes(manifest.to_vec()) {
        signed.verify(&[]).expect_err("no key signed it");
    }
    if let Ok(evidence) = serde_json::from_slice::<Evidence>(manifest) {
        let _ = serde_json::to_vec(&evidence);
    }
    if let Ok(text) = std::str::from_utf8(manifest) {
        let _ = text.parse::<Reference>();
        let _ = signature::payload::digest_in(text);
    }
    let fitting = fitting(manifest, config);
    if let Ok(described) = Described::assemble(fitting.clone(), config.to_vec(), "here") {
        described.set.check().expect("an accepted set is valid");
    }
    if let Ok(core) = DescribedCore::assemble(fitting.clone(), config.to_vec(), "here") {
        core.record.check().expect("accepted core objects are bounded");
        Described::assemble(fitting.clone(), config.to_vec(), "here").expect_err("they are no set");
    }
    beside_nothing(|inside| lay_out(inside, manifest, &fitting, config));
}

/// Returns the manifest with the config's digest and size, which no mutation finds.
fn fitting(manifest: &[u8], config: &[u8]) -> Vec<u8> {
    let Ok(mut json) = serde_json::from_slice::<serde_json::Value>(manifest) else {
        return manifest.to_vec();
    };
    if let Some(described) = json.get_mut("config").and_then(|c| c.as_object_mut()) {
        described.insert("digest".into(), digest(config).into());
        described.insert("size".into(), config.len().into());
    }
    serde_json::to_vec(&json).unwrap_or_default()
}

/// Reads them as a layout's index, and as a set in a layout.
fn lay_out(dir: &Path, listing: &[u8], manifest: &[u8], config: &[u8]) {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("made");
    fs::write(dir.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    fs::write(dir.join("index.json"), listing).expect("written");
    for bytes in [manifest, config] {
        let hex = digest(bytes).replace("sha256:", "");
        fs::write(blobs.join(hex), bytes).expect("written");
    }
    let _ = layout::list(dir);
    let _ = layout::describe(dir, &digest(manifest));
    let _ = layout::evidence(dir, &digest(manifest), &Trust::default());
}
