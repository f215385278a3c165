use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rstest::rstest;

use super::sample::{self, Compression, Member, NAME, VERSION, driver, file, other};
use super::*;
use crate::runfile::Pin;
use crate::userspace::AvailableUserspace;
use crate::userspace::{Depth, assemble_run_file, verify};
use longshore_core::image_reference::Repository;
use longshore_core::progress::Silent;
use longshore_fetch::http::{Fetcher, Policy};
use longshore_modules::registry::{Registry, RegistrySource};
use longshore_modules::testing::StandIn;

struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    fetcher: Fetcher,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        let policy = Policy { attempts: 1, ..Policy::default() };
        let fetcher = Fetcher::new(policy, Path::new("/")).expect("fetcher");
        Self { dir, store, fetcher }
    }

    fn source(&self, bytes: &[u8]) -> RunFileSource {
        sample::pinned(self.dir.path(), bytes)
    }

    async fn looked(&self, source: &RunFileSource) -> Result<Looked, Failure> {
        look(source, PinnedFetcher::new(&self.fetcher, &open), &self.store).await
    }

    /// Identifies a file that need not extract itself.
    async fn look(&self, source: &RunFileSource) -> Result<AvailableRunFile, Failure> {
        match self.looked(source).await? {
            Looked::Known(file) => Ok(file),
            Looked::Foreign(file) => panic!("{} is of a known form", file.name),
        }
    }

    async fn fetch(&self, source: &RunFileSource) -> Result<StoredRunFile, Failure> {
        let found = self.look(source).await?;
        let fetcher = PinnedFetcher::new(&self.fetcher, &open);
        fetch(&found, fetcher, &self.store, &Silent).await
    }

    /// Lists the store's contents except for its empty directories.
    fn leftovers(&self) -> Vec<PathBuf> {
        let dirs = ["drivers", "tmp", "blobs/sha256"];
        let list = |dir| fs::read_dir(self.store.dir(dir)).expect("listed");
        dirs.into_iter().flat_map(list).map(|entry| entry.expect("entry").path()).collect()
    }
}

fn open(repository: &Repository) -> Result<Registry, Failure> {
    let source = RegistrySource { reference: repository.clone(), mirrors: Vec::new() };
    let policy = Policy { attempts: 1, ..Policy::default() };
    Registry::open_with(policy, &source, Path::new("/"), &|_| None)
}

async fn stored(scene: &Scene) -> StoredRunFile {
    let bytes = sample::run_file(&driver(), Compression::Xz);
    scene.fetch(&scene.source(&bytes)).await.expect("fetched")
}

#[rstest]
#[case::xz(Compression::Xz)]
#[case::zstd(Compression::Zstd)]
#[case::gzip(Compression::Gzip)]
#[case::tar(Compression::None)]
#[tokio::test]
async fn a_file_is_unpacked_whatever_it_is_compressed_with(#[case] compression: Compression) {
    let scene = Scene::new();
    // Some makeself files end with a newline, others do not.
    let mut bytes = sample::run_file(&driver(), compression);
    bytes.push(b'\n');
    let source = scene.source(&bytes);
    let before = scene.look(&source).await.expect("looked at");
    assert_eq!((before.version.as_str(), before.stored), (VERSION, false));
    assert_eq!(before.flavours, [Flavour::Open, Flavour::Proprietary]);
    let stored = scene.fetch(&source).await.expect("fetched");
    assert_eq!(stored.written.version, VERSION);
    assert_eq!(stored.written.flavours, [Flavour::Open, Flavour::Proprietary]);
    stored.verify().expect("as it was written");
    let Pin::Sha256(sha256) = &source.pin else { panic!("pinned") };
    assert_eq!(scene.leftovers(), [scene.store.dir("drivers").join(sha256)]);
    let after = scene.look(&source).await.expect("looked at");
    assert!(after.stored && after.gpus.is_some_and(|gpus| gpus.chip(0x1eb8).is_some()));
}

#[tokio::test]
async fn only_what_is_wanted_is_kept() {
    let scene = Scene::new();
    let tree = scene.store.dir("drivers").join(&stored(&scene).await.written.sha256).join("tree");
    for absent in
        ["32", "nvidia-installer", "libnvidia-glcore.so.535.1.2", "libnvidia-cfg.so.535.1.2"]
    {
        assert!(!tree.join(absent).exists(), "{absent}");
    }
    let mode = |path: &str| fs::metadata(tree.join(path)).expect("there").permissions().mode();
    assert_eq!(mode("libnvidia-ml.so.535.1.2") & 0o7777, 0o711);
    assert_eq!(mode("firmware/gsp_tu10x.bin") & 0o7777, 0o644);
}

#[rstest]
#[case::open(Flavour::Open, "open")]
#[case::proprietary(Flavour::Proprietary, "proprietary")]
#[tokio::test]
async fn sources_of_both_flavours_are_copied_with_their_times(
    #[case] flavour: Flavour,
    #[case] text: &str,
) {
    let scene = Scene::new();
    let into = scene.dir.path().join("build");
    fs::create_dir(&into).expect("made");
    let sources = stored(&scene).await.copy_sources(flavour, &into).expect("copied");
    let conftest = sources.join("conftest.sh");
    assert_eq!(fs::read_to_string(&conftest).expect("read"), text);
    let modified = fs::metadata(&conftest).and_then(|m| m.modified()).expect("time");
    let since = modified.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert_eq!(since.as_secs(), 1_700_000_000);
}

#[tokio::test]
async fn a_driver_root_is_made_of_it() {
    let scene = Scene::new();
    let file = stored(&scene).await;
    let tree = assemble_run_file(file, None, &scene.store, &Silent).await.expect("assembled");
    verify(&tree, Depth::Full, Disk::default()).expect("verifies");
    let AvailableUserspace { driver_version, root, .. } = &tree;
    assert_eq!(driver_version, VERSION);
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let link = |name: &str| fs::read_link(libraries.join(name)).expect("link");
    assert_eq!(link("libcuda.so"), Path::new("libcuda.so.1"));
    assert_eq!(link("libcuda.so.1"), Path::new("libcuda.so.535.1.2"));
    for path in ["usr/bin/nvidia-smi", "lib/firmware/nvidia/535.1.2/gsp_tu10x.bin"] {
        assert!(root.join(path).is_file(), "{path}");
    }
}

#[rstest]
#[case::open(Flavour::Open, "open")]
#[case::proprietary(Flavour::Proprietary, "proprietary")]
#[tokio::test]
async fn a_driver_root_has_the_sources_of_one_flavour(
    #[case] flavour: Flavour,
    #[case] text: &str,
) {
    let scene = Scene::new();
    let file = stored(&scene).await;
    let assemble = |sources| assemble_run_file(file.clone(), sources, &scene.store, &Silent);
    let tree = assemble(Some(flavour)).await.expect("assembled");
    verify(&tree, Depth::Full, Disk::default()).expect("verifies");
    assert_eq!(tree.sources, Some(flavour));
    let conftest = tree.root.join("usr/src/nvidia-535.1.2/conftest.sh");
    assert_eq!(fs::read_to_string(conftest).expect("read"), text);
    file.verify().expect("the store's copy is as it was");
    let other = assemble(None).await.expect("assembled");
    assert_ne!(other.root, tree.root);
}

#[tokio::test]
async fn a_file_without_the_flavour_makes_no_root_with_sources() {
    let scene = Scene::new();
    let bytes = sample::run_file(&without("kernel-open/Kbuild"), Compression::Gzip);
    let file = scene.fetch(&scene.source(&bytes)).await.expect("fetched");
    let made = assemble_run_file(file, Some(Flavour::Open), &scene.store, &Silent).await;
    let failure = made.expect_err("no open sources");
    assert_eq!(failure.code(), ExitCode::Download);
    assert_eq!(fs::read_dir(scene.store.dir("userspace")).expect("listed").count(), 0);
}

#[tokio::test]
async fn a_changed_file_of_the_store_is_refused() {
    let scene = Scene::new();
    let file = stored(&scene).await;
    let tree = scene.store.dir("drivers").join(&file.written.sha256).join("tree");
    fs::write(tree.join("kernel-open/conftest.sh"), "evil").expect("written");
    let failure = file.copy_sources(Flavour::Open, scene.dir.path()).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("kernel-open/conftest.sh differs"), "{failure}");
}

fn without(path: &str) -> Vec<Member> {
    driver().into_iter().filter(|member| !member.path.ends_with(path)).collect()
}

fn with(member: Member) -> Vec<u8> {
    let mut members = driver();
    members.push(member);
    sample::run_file(&members, Compression::Gzip)
}

fn with_before(kind: tar::EntryType) -> Vec<u8> {
    let mut members = driver();
    members.extend([sample::before(kind, vec![b'a'; 2 << 20]), file("kernel/x", "x")]);
    sample::run_file(&members, Compression::Gzip)
}

fn with_long(path: String) -> Vec<u8> {
    sample::run_file(&[driver(), sample::long(&path).to_vec()].concat(), Compression::Gzip)
}

fn packed(members: &[Member]) -> Vec<u8> {
    sample::run_file(members, Compression::Gzip)
}

fn cut(share: usize) -> Vec<u8> {
    let mut whole = sample::run_file(&driver(), Compression::Xz);
    whole.truncate(whole.len() * share / 100);
    whole
}

fn offset_by(lines: usize) -> Vec<u8> {
    let bytes = sample::run_file(&driver(), Compression::Xz);
    let skip = bytes.windows(8).position(|w| w == b"skip=13\n").expect("there");
    let mut changed = bytes[..skip].to_vec();
    changed.extend(format!("skip={lines}\n").bytes());
    changed.extend(&bytes[skip + 8..]);
    changed
}

fn headed(header: Vec<u8>) -> Vec<u8> {
    [header, sample::compressed(&sample::tar_of(&driver()), Compression::Zstd)].concat()
}

const DEVICE: tar::EntryType = tar::EntryType::Char;
const LINK: tar::EntryType = tar::EntryType::Symlink;

/// Each of these has the digest it is pinned to.
#[rstest]
#[case::cut_off(cut(60), 13, "cut off")]
#[case::cut_off_at_its_end(cut(99), 13, "cut off")]
#[case::cut_off_in_its_header(sample::header(VERSION, "x86_64"), 13, "no payload")]
#[case::offset_too_small(offset_by(12), 13, "payload is unknown")]
#[case::offset_too_large(offset_by(14), 13, "NVIDIA-Linux-x86_64-535.1.2.run")]
#[case::a_page(b"<html>please log in</html>\n".to_vec(), 13, "does not begin like")]
#[case::parent(with(file("kernel/../../evil", "x")), 13, "leads outside")]
#[case::parent_unwanted(with(file("../evil", "x")), 13, "leads outside")]
#[case::absolute(with(file("/etc/evil", "x")), 13, "leads outside")]
#[case::device(with(other("kernel/null", DEVICE, None)), 13, "device node")]
#[case::link_out(with(other("kernel/etc", LINK, Some("/etc"))), 13, "is outside")]
#[case::link_up(with(other("kernel/up", LINK, Some("../../x"))), 13, "is outside")]
#[case::sparse(with(other("kernel/x", tar::EntryType::GNUSparse, None)), 13, "is a sparse file")]
#[case::long_path(with_long(format!("kernel/{}", "ab".repeat(600))), 13, "more than 1024 bytes")]
#[case::deep_path(with_long(format!("kernel/{}x", "a/".repeat(70))), 13, "more than 64 directories")]
#[case::long_name_bomb(with_before(tar::EntryType::GNULongName), 13, "more than 1 MiB")]
#[case::long_link_bomb(with_before(tar::EntryType::GNULongLink), 13, "more than 1 MiB")]
#[case::pax_bomb(with_before(tar::EntryType::XHeader), 13, "more than 1 MiB")]
#[case::no_manifest(packed(&without(".manifest")), 13, "no .manifest")]
#[case::no_library(packed(&without("libcuda.so.535.1.2")), 13, "it is not there")]
#[case::no_sources(packed(&without("Kbuild")), 13, "no kernel sources")]
#[case::another_version(headed(sample::header("550.1.2", "x86_64")), 13, "its header says 550.1.2")]
#[case::another_machine(headed(sample::header(VERSION, "aarch64")), 10, "is for aarch64")]
#[tokio::test]
async fn nothing_is_kept_of(#[case] bytes: Vec<u8>, #[case] code: u8, #[case] said: &str) {
    let scene = Scene::new();
    let failure = scene.fetch(&scene.source(&bytes)).await.expect_err("refused");
    let report = failure.report();
    assert_eq!(failure.code().number(), code, "{report}");
    assert!(report.contains(said), "{report}");
    assert!(failure.remedy_text().is_some(), "{report}");
    assert!(scene.leftovers().is_empty(), "{:?}", scene.leftovers());
}

#[tokio::test]
async fn another_script_is_looked_at_and_not_believed() {
    let scene = Scene::new();
    let source = scene.source(b"#!/bin/sh\necho hello\n");
    let looked = scene.looked(&source).await.expect("looked at");
    let Looked::Foreign(file) = looked else { panic!("known: {looked:?}") };
    assert_eq!((file.name.as_str(), Pin::Sha256(file.sha256)), (NAME, source.pin));
    assert!(scene.leftovers().is_empty());
}

#[test]
fn directories_are_bounded_in_all_and_not_only_for_each_path() {
    let scene = Scene::new();
    let deep = |n: usize| file(&format!("kernel/{n}/{}x", "a/".repeat(40)), "x");
    let members: Vec<Member> = (0..600).map(deep).collect();
    let bytes = packed(&members);
    let failure = inspect(NAME, &mut bytes.as_slice(), &scene.store).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.report().contains("more than 20000 directories"), "{}", failure.report());
    assert!(scene.leftovers().is_empty());
}

#[test]
fn a_bomb_is_refused_while_it_unpacks() {
    let scene = Scene::new();
    let bomb = file("kernel/zeros", vec![0; 8 << 20]);
    let bytes = with(bomb);
    assert!(bytes.len() < 1 << 20, "{}", bytes.len());
    let unpacked = unpack::unpack(NAME, &mut bytes.as_slice(), &scene.store, 4 << 20);
    let failure = unpacked.err().expect("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.report().contains("more than 4 MiB"), "{}", failure.report());
    assert!(scene.leftovers().is_empty());
}

#[test]
fn names_and_records_of_common_length_are_read() {
    let scene = Scene::new();
    // More than the limit between two files, all of it skipped.
    let large = file("nvidia-installer", vec![0; 3 << 20]);
    let path = format!("kernel/{}/long.c", "a".repeat(120));
    let members = [driver(), vec![large], sample::long(&path).to_vec()].concat();
    let bytes = sample::run_file(&members, Compression::Gzip);
    let unpacked =
        unpack::unpack(NAME, &mut bytes.as_slice(), &scene.store, 16 << 20).expect("unpacked");
    assert!(unpacked.tree().join(path).is_file());
}

#[tokio::test]
async fn another_digest_is_the_first_thing_said_of_a_file() {
    let scene = Scene::new();
    let mut source = scene.source(&sample::run_file(&driver(), Compression::Xz));
    source.pin = Pin::Sha256("0".repeat(64));
    let failure = scene.fetch(&source).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("its digest differs"), "{failure}");
    assert!(scene.leftovers().is_empty());
}

#[tokio::test]
async fn a_mirror_that_has_another_file_is_passed_over() {
    let scene = Scene::new();
    let source = scene.source(&sample::run_file(&driver(), Compression::Xz));
    let changed = scene.dir.path().join("changed.run");
    fs::write(&changed, sample::run_file(&without("libnvidia-cfg.so.535.1.2"), Compression::Xz))
        .expect("written");
    let missing = "file:///no/such/driver.run".to_owned();
    let urls =
        [vec![missing, format!("file://{}", changed.display())], source.urls.clone()].concat();
    let stored = scene.fetch(&RunFileSource { urls, ..source }).await.expect("fetched");
    assert_eq!(stored.written.version, VERSION);
}

#[rstest]
#[case::missing_first(false)]
#[case::missing_last(true)]
#[tokio::test]
async fn of_several_mirrors_the_one_with_other_bytes_is_reported(#[case] is_last: bool) {
    let scene = Scene::new();
    let mut source = scene.source(&sample::run_file(&driver(), Compression::Xz));
    source.pin = Pin::Sha256("0".repeat(64));
    source.urls.insert(if is_last { 1 } else { 0 }, "file:///no/such/driver.run".to_owned());
    let failure = scene.fetch(&source).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("its digest differs"), "{failure}");
}

/// Returns the file's source in these registries alone.
fn in_registries(source: RunFileSource, registries: &[&StandIn]) -> RunFileSource {
    let urls = registries.iter().map(|one| format!("oci://{}", one.repository())).collect();
    RunFileSource { urls, ..source }
}

#[rstest]
#[case::by_its_digest(false)]
#[case::by_a_checksum_beside_it(true)]
#[tokio::test]
async fn a_file_of_a_repository_is_the_blob_of_its_digest(#[case] beside: bool) {
    let (scene, lacking, registry) = (Scene::new(), StandIn::start(), StandIn::start());
    let bytes = sample::run_file(&driver(), Compression::Xz);
    let path = registry.put_blob(&bytes);
    let mut source = in_registries(scene.source(&bytes), &[&lacking, &registry]);
    if beside {
        let sidecar = scene.dir.path().join("sum");
        let Pin::Sha256(sha256) = &source.pin else { panic!("pinned") };
        fs::write(&sidecar, format!("{sha256}  renamed.run\n")).expect("written");
        source.pin = Pin::Sidecar(format!("file://{}", sidecar.display()));
    }
    let found = scene.look(&source).await.expect("looked at");
    assert_eq!((found.name.as_str(), found.version.as_str()), (NAME, VERSION));
    scene.fetch(&source).await.expect("fetched").verify().expect("right");
    let asked = |times: usize| vec![format!("GET {path}"); times];
    // The header twice, and the whole file.
    assert_eq!((lacking.requests(), registry.requests()), (asked(3), asked(3)));
    scene.fetch(&source).await.expect("of the store");
    assert_eq!((lacking.requests(), registry.requests()), (asked(0), asked(0)));
}

#[rstest]
#[case::absent(None, ExitCode::Download, "has no blob sha256:")]
#[case::a_page(Some(b"<html>".to_vec()), ExitCode::Verification, "no .run file of a known form")]
#[case::another_file(
    Some(sample::run_file(&without("libnvidia-cfg.so.535.1.2"), Compression::Xz)),
    ExitCode::Verification,
    "its digest differs"
)]
#[tokio::test]
async fn a_repository_without_the_file_is_refused(
    #[case] served: Option<Vec<u8>>,
    #[case] code: ExitCode,
    #[case] said: &str,
) {
    let (scene, registry) = (Scene::new(), StandIn::start());
    let bytes = sample::run_file(&driver(), Compression::Xz);
    let path = registry.put_blob(&bytes);
    registry.replace(&path, served.as_deref());
    let source = in_registries(scene.source(&bytes), &[&registry]);
    let failure = scene.fetch(&source).await.expect_err("refused");
    assert_eq!(failure.code(), code);
    let report = failure.report();
    let host = registry.repository();
    assert!(report.contains(said) && report.contains(host.host()), "{report}");
    assert!(scene.leftovers().is_empty());
}

#[tokio::test]
async fn a_checksum_beside_it_pins_a_file() {
    let scene = Scene::new();
    let source = scene.source(&sample::run_file(&driver(), Compression::Xz));
    let Pin::Sha256(sha256) = &source.pin else { panic!("pinned") };
    let sidecar = scene.dir.path().join("sum");
    fs::write(&sidecar, format!("{sha256}  {NAME}\n")).expect("written");
    let pin = Pin::Sidecar(format!("file://{}", sidecar.display()));
    let found = scene.look(&RunFileSource { pin, ..source.clone() }).await;
    assert_eq!(&found.expect("looked at").sha256, sha256);
}

#[tokio::test]
async fn a_checksum_is_not_asked_for_over_http() {
    let scene = Scene::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.set_nonblocking(true).expect("set");
    let address = listener.local_addr().expect("address");
    let source = scene.source(b"");
    let pin = Pin::Sidecar(format!("http://user:secret@{address}/sum"));
    let failure = pin::sha256_of(&RunFileSource { pin, ..source }, NAME, &scene.fetcher).await;
    let failure = failure.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download);
    assert!(!failure.report().contains("secret"), "{}", failure.report());
    let nobody = listener.accept().expect_err("no connection");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_damaged_copy_is_replaced() {
    let scene = Scene::new();
    let source = scene.source(&sample::run_file(&driver(), Compression::Xz));
    let first = scene.fetch(&source).await.expect("fetched");
    let dir = scene.store.dir("drivers").join(&first.written.sha256);
    fs::write(dir.join("driver.json"), "{").expect("written");
    scene.fetch(&source).await.expect("fetched again").verify().expect("right");
    assert_eq!(scene.leftovers(), [dir]);
}

#[rstest]
#[case("470.256.02", &[Flavour::Proprietary])]
#[case("515.43.04", &[Flavour::Open, Flavour::Proprietary])]
fn flavours_are_expected_by_branch(#[case] version: &str, #[case] wanted: &[Flavour]) {
    assert_eq!(expected_flavours(version), wanted);
}
