//! Trees as tars and directories: what is taken, and what is refused.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use rstest::rstest;
use sha2::{Digest, Sha256};

use super::*;
use longshore_core::digest::hex;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::image_reference::Repository;
use longshore_core::progress::Silent;
use longshore_fetch::http::{Fetcher, Policy};
use longshore_modules::registry::{Registry, RegistrySource};
use longshore_modules::testing::StandIn;

const VERSION: &str = "580.142";

/// Returns the files of a small tree.
fn files(version: &str) -> Vec<(String, String)> {
    let file = |path: &str, text: String| (path.to_owned(), text);
    vec![
        file(
            "version.mk",
            format!("NVIDIA_VERSION = {version}\nNVIDIA_NVID_VERSION = {version}\n"),
        ),
        file("kernel-open/Kbuild", format!("ccflags-y += -DNV_VERSION_STRING=\\\"{version}\\\"\n")),
        file("kernel-open/conftest.sh", "#!/bin/sh\n".into()),
        file("src/nvidia/Makefile", "all:\n".into()),
        file(&format!("src/{}/a.c", "d".repeat(97)), "int a;\n".into()),
    ]
}

fn tar(entries: &[(String, String)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, text.as_bytes()).expect("appended");
    }
    tar.into_inner().expect("a tar")
}

fn below(top: &str, files: Vec<(String, String)>) -> Vec<(String, String)> {
    files.into_iter().map(|(path, text)| (format!("{top}/{path}"), text)).collect()
}

fn without(path: &str) -> Vec<(String, String)> {
    files(VERSION).into_iter().filter(|(name, _)| name != path).collect()
}

/// Returns a tar with one entry of a kind that the builder's own checks would refuse.
fn with_raw(path: &str, kind: tar::EntryType) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    if let Some(old) = header.as_gnu_mut() {
        old.name[..path.len()].copy_from_slice(path.as_bytes());
    }
    header.set_size(0);
    header.set_mode(0o644);
    header.set_entry_type(kind);
    header.set_link_name("/etc/passwd").expect("a target");
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(tar(&below("tree", files(VERSION))));
    bytes
}

/// Returns a tar that begins with git's global header, as hosts make those of tags.
fn of_git(entries: &[(String, String)]) -> Vec<u8> {
    let record = b"52 comment=0123456789abcdef0123456789abcdef01234567\n";
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::XGlobalHeader);
    header.set_path("pax_global_header").expect("a path");
    header.set_size(record.len() as u64);
    header.set_mode(0o666);
    header.set_cksum();
    let mut block = record.to_vec();
    block.resize(512, 0);
    [header.as_bytes().to_vec(), block, tar(entries)].concat()
}

struct Scene {
    dir: tempfile::TempDir,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        Self { dir, store }
    }

    fn tree(&self, bytes: &[u8]) -> SourceTree {
        let path = self.dir.path().join("tree.tar");
        fs::write(&path, bytes).expect("written");
        self.at(&path, hex(&Sha256::digest(bytes)))
    }

    fn at(&self, path: &Path, sha256: String) -> SourceTree {
        let urls = vec![format!("file://{}", path.display())];
        SourceTree { version: VERSION.into(), sha256, urls }
    }

    async fn taken(&self, tree: &SourceTree, part: Part) -> Result<UnpackedTree, Failure> {
        let fetcher = Fetcher::new(Policy::default(), Path::new("/")).expect("a fetcher");
        let open = |repository: &Repository| {
            let source = RegistrySource { reference: repository.clone(), mirrors: Vec::new() };
            Registry::open_with(Policy::default(), &source, Path::new("/"), &|_| None)
        };
        let fetcher = PinnedFetcher::new(&fetcher, &open);
        fetch(tree, fetcher, &self.store, &Silent).await?;
        unpack(tree, part, &self.store, &self.dir.path().join("into"))
    }
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).expect("compressed");
    gzip.finish().expect("compressed")
}

#[rstest]
#[case::with_a_top(Some("open-gpu-kernel-modules-580.142"), true)]
#[case::of_a_tag(Some("NVIDIA-open-gpu-kernel-modules-0123456"), true)]
#[case::plain(Some("x"), false)]
#[case::without_a_top(None, true)]
#[tokio::test]
async fn a_tarball_is_unpacked(#[case] top: Option<&str>, #[case] zipped: bool) {
    let scene = Scene::new();
    let entries = top.map_or_else(|| files(VERSION), |top| below(top, files(VERSION)));
    let bytes = if zipped { gzipped(&of_git(&entries)) } else { tar(&entries) };
    let tree = scene.tree(&bytes);
    let part = scene.taken(&tree, Part::KernelOpen).await.expect("taken");
    assert!(part.kernel_open().join("conftest.sh").is_file());
    assert!(!part.top.join("src").exists(), "the kernel's part alone");
    fs::remove_dir_all(scene.dir.path().join("into")).expect("removed");
    let whole = scene.taken(&tree, Part::Whole).await.expect("taken");
    assert!(whole.top.join("src/nvidia/Makefile").is_file());
}

#[rstest]
#[case::leads_outside(with_raw("../x", tar::EntryType::Regular), "leads outside")]
#[case::link(with_raw("tree/x", tar::EntryType::Symlink), "is a link")]
#[case::device(with_raw("tree/x", tar::EntryType::Char), "is a link, a device")]
#[case::two_tops(tar(&[below("a", files(VERSION)), below("b", vec![("x".into(), String::new())])].concat()), "more than one top folder: a, b")]
#[case::two_trees(tar(&[below("a", files(VERSION)), below("b", files(VERSION))].concat()), "several trees: a, b")]
#[case::another_project(tar(&[("linux/Makefile".into(), String::new())]), "not NVIDIA's open-gpu-kernel-modules")]
#[case::without_src(tar(&without("src/nvidia/Makefile")), "no src/nvidia")]
#[case::without_kernel_open(tar(&without("kernel-open/Kbuild")), "no kernel-open")]
#[case::of_another_version(tar(&files("580.95.05")), "version.mk is of 580.95.05, not of 580.142")]
#[case::a_page(b"<html>not found</html>".to_vec(), "payload is unknown")]
#[case::cut_off(gzipped(&tar(&files(VERSION)))[..200].to_vec(), "damaged")]
#[tokio::test]
async fn a_bad_tarball_is_refused(#[case] bytes: Vec<u8>, #[case] expected: &str) {
    let scene = Scene::new();
    let failure = scene.taken(&scene.tree(&bytes), Part::Whole).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.report().contains(expected), "{}", failure.report());
    assert!(failure.report().contains("[[source-tree]]"), "{}", failure.report());
}

#[tokio::test]
async fn a_bomb_is_stopped() {
    let scene = Scene::new();
    let many: Vec<_> = (0..50_001).map(|n| (format!("t/{n}"), String::new())).collect();
    let tree = scene.tree(&gzipped(&tar(&many)));
    let failure = scene.taken(&tree, Part::KernelOpen).await.expect_err("refused");
    assert!(failure.to_string().contains("more than 50000 files"), "{failure}");
}

#[tokio::test]
async fn a_tarball_with_another_digest_is_not_taken_and_the_message_tells_why_that_happens() {
    let scene = Scene::new();
    let mut tree = scene.tree(&tar(&files(VERSION)));
    tree.sha256 = "a".repeat(64);
    let failure = scene.taken(&tree, Part::Whole).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    let remedy = failure.remedy_or_default();
    assert!(remedy.contains("hosts make the tarballs of tags anew"), "{remedy}");
    assert!(!scene.store.has_blob(&tree.sha256));
}

/// Writes the files of a tree to a directory, with one that runs and what git keeps.
fn directory(scene: &Scene) -> PathBuf {
    let dir = scene.dir.path().join("checkout");
    for (path, text) in files(VERSION).into_iter().chain([(".git/HEAD".into(), "x".into())]) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, text).expect("written");
    }
    let script = dir.join("kernel-open/conftest.sh");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o775);
    fs::set_permissions(script, mode).expect("mode");
    dir
}

/// Returns the digest that the command of the documentation prints.
fn digest_by_tar(dir: &Path) -> String {
    let page = include_str!("../../../../docs/supply-chain/source-trees.md");
    let command = page.split("```sh\n").find_map(|block| block.split_once("| sha256sum"));
    let (command, _) = command.expect("the command");
    let words = command.split_whitespace().filter(|word| *word != "\\" && *word != "tar");
    let words = words.map(|word| if word == "DIR" { dir } else { Path::new(word) });
    let output = Command::new("tar").args(words).output().expect("tar runs");
    assert!(output.status.success(), "{output:?}");
    hex(&Sha256::digest(&output.stdout))
}

#[rstest]
#[case::as_it_is(false)]
#[case::with_hard_links(true)]
#[tokio::test]
async fn a_directory_has_the_digest_that_the_command_of_the_page_gives_it(#[case] is_linked: bool) {
    let scene = Scene::new();
    let dir = directory(&scene);
    if is_linked {
        let of = dir.join("src/nvidia/Makefile");
        fs::hard_link(of, dir.join("src/nvidia/Makefile.copy")).expect("linked");
    }
    let tree = scene.at(&dir, digest_by_tar(&dir));
    let whole = scene.taken(&tree, Part::Whole).await.expect("taken");
    let mut found: Vec<_> = fs::read_dir(&whole.top).expect("listed").flatten().collect();
    found.sort_by_key(fs::DirEntry::file_name);
    let found: Vec<_> = found.iter().map(fs::DirEntry::file_name).collect();
    assert_eq!(found, ["kernel-open", "src", "version.mk"]);
}

#[rstest]
#[case::changed(|dir: &Path| fs::write(dir.join("src/nvidia/Makefile"), "x").expect("written"), "local changes")]
#[case::built(|dir: &Path| fs::write(dir.join("src/nvidia/a.o"), "x").expect("written"), "were built in it")]
#[case::link(|dir: &Path| std::os::unix::fs::symlink("/etc", dir.join("x")).expect("link"), "is a link")]
#[tokio::test]
async fn a_directory_with_changes_is_refused(
    #[case] change: impl Fn(&Path),
    #[case] expected: &str,
) {
    let scene = Scene::new();
    let dir = directory(&scene);
    let tree = scene.at(&dir, digest_by_tar(&dir));
    change(&dir);
    let failure = scene.taken(&tree, Part::Whole).await.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.report().contains(expected), "{}", failure.report());
}

#[tokio::test]
async fn a_tarball_of_a_repository_is_fetched_once() {
    let scene = Scene::new();
    let (lacking, registry) = (StandIn::start(), StandIn::start());
    let bytes = gzipped(&of_git(&below("a", files(VERSION))));
    registry.put_blob(&bytes);
    let urls = [&lacking, &registry].map(|one| format!("oci://{}", one.repository())).to_vec();
    let tree = SourceTree { urls, ..scene.tree(&bytes) };
    for part in [Part::Whole, Part::KernelOpen] {
        let into = scene.dir.path().join("into");
        scene.taken(&tree, part).await.expect("taken");
        fs::remove_dir_all(into).expect("removed");
    }
    let asked = format!("GET blobs/sha256:{}", tree.sha256);
    assert_eq!(lacking.requests(), std::slice::from_ref(&asked));
    assert_eq!(registry.requests(), [asked]);
}

#[rstest]
#[case::missing_then_other_bytes(&["missing.tar", "other.tar"], ExitCode::Verification, "digest")]
#[case::other_bytes_then_missing(&["other.tar", "missing.tar"], ExitCode::Verification, "digest")]
#[case::missing(&["missing.tar", "absent.tar"], ExitCode::Download, "missing.tar")]
#[tokio::test]
async fn of_several_places_the_one_with_other_bytes_is_reported(
    #[case] places: &[&str],
    #[case] code: ExitCode,
    #[case] said: &str,
) {
    let scene = Scene::new();
    fs::write(scene.dir.path().join("other.tar"), "other").expect("written");
    let url = |place: &&str| format!("file://{}", scene.dir.path().join(place).display());
    let urls = places.iter().map(url).collect();
    let tree = SourceTree { urls, ..scene.tree(&tar(&files(VERSION))) };
    let failure = scene.taken(&tree, Part::Whole).await.expect_err("refused");
    assert_eq!(failure.code(), code);
    assert!(failure.report().contains(said), "{}", failure.report());
}

#[rstest]
#[case::absent(None, ExitCode::Download, "has no blob sha256:")]
#[case::other_bytes(Some(&b"other"[..]), ExitCode::Verification, "its digest differs")]
#[tokio::test]
async fn a_repository_without_the_tarball_is_refused(
    #[case] served: Option<&[u8]>,
    #[case] code: ExitCode,
    #[case] said: &str,
) {
    let (scene, registry) = (Scene::new(), StandIn::start());
    let bytes = tar(&files(VERSION));
    let path = registry.put_blob(&bytes);
    registry.replace(&path, served);
    let urls = vec![format!("oci://{}", registry.repository())];
    let tree = SourceTree { urls, ..scene.tree(&bytes) };
    let failure = scene.taken(&tree, Part::Whole).await.expect_err("refused");
    assert_eq!(failure.code(), code);
    let report = failure.report();
    assert!(report.contains(said) && report.contains(&tree.sha256), "{report}");
    assert!(!scene.store.has_blob(&tree.sha256));
}
