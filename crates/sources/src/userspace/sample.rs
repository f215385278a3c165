//! Packages of a small driver, for the tests of this directory.

use crate::sample_elf::elf;
use longshore_core::disk::Disk;
use longshore_core::store::Store;
use longshore_debian::packages::Package;

pub(super) const VERSION: &str = "535.1.2";
pub(super) const CURRENT: &str = "usr/lib/x86_64-linux-gnu/nvidia/current";

pub(super) fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, bytes.as_slice()).expect("append");
    }
    tar.into_inner().expect("tar")
}

pub(crate) fn deb(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut deb = b"!<arch>\n".to_vec();
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar", tar_of(&[])),
        ("data.tar", tar_of(files)),
    ];
    for (name, bytes) in members {
        let header =
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, bytes.len());
        deb.extend(header.bytes());
        deb.extend(&bytes);
        deb.resize(deb.len().next_multiple_of(2), b'\n');
    }
    deb
}

pub(super) fn package(store: &Store, name: &str, files: &[(String, Vec<u8>)]) -> Package {
    package_of(store, name, &deb(files))
}

/// Stores a package of these bytes.
pub(super) fn package_of(store: &Store, name: &str, bytes: &[u8]) -> Package {
    Package {
        name: name.into(),
        version: format!("{VERSION}-1"),
        arch: "amd64".into(),
        source: Some("graphics".into()),
        component: "non-free".into(),
        filename: String::new(),
        size: bytes.len() as u64,
        sha256: store.put(bytes).expect("stored"),
        depends: Vec::new(),
        provides: Vec::new(),
        base_url: "file:///archive".into(),
        origin: longshore_core::package_origin::PackageOrigin::named("bookworm"),
    }
}

pub(super) fn library(name: &str) -> (String, Vec<u8>) {
    let soname = format!("{name}.so.1");
    (format!("{CURRENT}/{name}.so.{VERSION}"), elf(62, Some(&soname), &["libc.so.6"]))
}

pub(super) fn tool(path: &str) -> (String, Vec<u8>) {
    (path.to_owned(), elf(62, None, &["libc.so.6"]))
}

/// A complete driver, in three packages.
pub(super) fn driver(store: &Store) -> Vec<Package> {
    let gsp = format!("lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin");
    vec![
        package(store, "firmware-nvidia-gsp", &[(gsp, b"firmware".to_vec())]),
        package(store, "libcuda1", &[library("libcuda")]),
        package(store, "libnvidia-ml1", &[library("libnvidia-ml")]),
        package(store, "nvidia-smi", &[tool("usr/lib/nvidia/current/nvidia-smi")]),
    ]
}

pub(super) fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store = Store::open(dir.path(), Disk::default()).expect("store");
    (dir, store)
}
