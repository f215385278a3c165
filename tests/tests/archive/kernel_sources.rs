//! A user-mode tree with the driver's kernel sources, from a signed archive to the store.

use longshore_core::flavour::Flavour;
use longshore_sources::userspace::{self, AvailableUserspace, Depth};
use longshore_tests::archive::{ARCH, deb, gzip};
use longshore_tests::packages::saying;

use super::*;

const VERSION: &str = "535.261.03";
const TAR: &str = "./usr/src/nvidia-open-kernel.tar.gz";

/// Returns the data of a package, which is a compressed tar with these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, *bytes).expect("append");
    }
    gzip(&tar.into_inner().expect("tar"))
}

/// Makes the smallest driver, in Debian's layout.
fn driver() -> Suite {
    let kbuild = format!("ccflags-y += -DNV_VERSION_STRING=\\\"{VERSION}\\\"\n");
    let sources = tar(&[
        ("modules/nvidia-open-kernel/Kbuild", kbuild.as_bytes()),
        ("modules/nvidia-open-kernel/conftest.sh", b""),
        ("modules/nvidia-open-kernel/nvidia/nv-p2p.h", b"interface"),
    ]);
    let object = saying("", 0);
    let triplet = if ARCH == "arm64" { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };
    let library = |name: &str| format!("./usr/lib/{triplet}/nvidia/current/{name}.so.{VERSION}");
    let (cuda, ml) = (library("libcuda"), library("libnvidia-ml"));
    let gsp = format!("./usr/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin");
    let files: [(&str, &str, &[u8]); 5] = [
        ("nvidia-open-kernel-source", TAR, &sources),
        ("libcuda1", &cuda, &object),
        ("libnvidia-ml1", &ml, &object),
        ("nvidia-smi", "./usr/bin/nvidia-smi", &object),
        ("firmware-nvidia-gsp", &gsp, b"firmware"),
    ];
    let package = |(name, path, bytes): (&str, &str, &[u8])| {
        let stanza = format!(
            "Package: {name}\nVersion: {VERSION}-1\nArchitecture: {ARCH}\nSource: nvidia-graphics\n"
        );
        (stanza, deb(&[(path, bytes)]))
    };
    Suite { packages: files.map(package).into(), ..Suite::usual() }
}

/// Makes a transitional package of that driver, in Ubuntu's form.
fn transitional() -> (String, Vec<u8>) {
    let stanza = format!(
        "Package: nvidia-kernel-source-525-open\nVersion: {VERSION}-1\nArchitecture: {ARCH}\n\
         Source: nvidia-graphics\nDepends: nvidia-open-kernel-source\n"
    );
    let path = "./usr/share/doc/nvidia-kernel-source-525-open/changelog.Debian.gz";
    (stanza, deb(&[(path, b"changelog")]))
}

#[tokio::test]
async fn a_transitional_package_does_not_stand_for_the_sources() {
    let mut suite = driver();
    suite.packages.push(transitional());
    let scene = Scene::with(suite);
    let tree = assemble(&scene, Flavour::Open).await.expect("assembled");
    let manifest = userspace::manifest_of(&tree).expect("manifest");
    let names: Vec<_> = manifest.packages.iter().map(|used| used.name.as_str()).collect();
    assert!(names.contains(&"nvidia-open-kernel-source"), "{names:?}");
    assert!(!names.contains(&"nvidia-kernel-source-525-open"), "{names:?}");
}

async fn assemble(scene: &Scene, flavour: Flavour) -> Result<AvailableUserspace, Failure> {
    let archive = scene.open().await?;
    userspace::assemble(VERSION, Some(flavour), &archive, &scene.store, &Silent).await
}

fn trees(scene: &Scene) -> usize {
    std::fs::read_dir(scene.store.dir("userspace")).expect("listed").count()
}

#[tokio::test]
async fn the_sources_of_the_flavour_are_fetched_verified_and_laid_out() {
    let scene = Scene::with(driver());
    let tree = assemble(&scene, Flavour::Open).await.expect("assembled");
    userspace::verify(&tree, Depth::Full, disk()).expect("verifies");
    let header = tree.root.join("usr/src/nvidia-535.261.03/nvidia/nv-p2p.h");
    assert_eq!(std::fs::read(header).expect("reads"), b"interface");
    let manifest = userspace::manifest_of(&tree).expect("manifest");
    let used = manifest.packages.last().expect("a package");
    let package = &scene.suite.packages[0].1;
    assert_eq!(
        (used.name.as_str(), used.sha256.clone()),
        ("nvidia-open-kernel-source", archive::digest(package))
    );
    scene.assert_sound();
}

#[tokio::test]
async fn sources_that_the_archive_lacks_are_named_before_anything_is_fetched() {
    let scene = Scene::with(driver());
    let failure = assemble(&scene, Flavour::Proprietary).await.expect_err("none");
    let texts = ["535.261.03 proprietary", "its sources cannot be exposed"];
    scene.assert_failure(&failure, ExitCode::Download, &texts);
    assert_eq!((trees(&scene), scene.server.requests("/pool").len()), (0, 0));
}

#[tokio::test]
async fn sources_that_differ_from_the_signed_index_make_no_tree() {
    let scene = Scene::with(driver());
    let mut other = scene.suite.packages[0].1.clone();
    let last = other.len() - 20;
    other[last] ^= 1;
    scene.server.put(&scene.suite.pool(0), other);
    let failure = assemble(&scene, Flavour::Open).await.expect_err("refused");
    scene.assert_failure(&failure, ExitCode::Verification, &["its digest differs"]);
    assert_eq!(trees(&scene), 0);
}
