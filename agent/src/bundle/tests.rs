use std::fs;
use std::io::Read;
use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};
use tar::EntryType::{
    Char, Directory, Fifo, GNULongName, GNUSparse, Link, Regular, Symlink, XHeader,
};

use super::*;
use crate::upkeep::check::check;
use longshore_core::disk::Disk;
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_modules::artifact::{ModuleEntry, ModuleSet};
use longshore_modules::sets::SetStore;
use longshore_modules::signature::Trust;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::testing::modinfo::module;
use longshore_modules::testing::set;
use longshore_sources::userspace::AvailableUserspace;
use longshore_sources::userspace::{self, Depth};

const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// A store with a set and a tree, and an empty host.
struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    set: ModuleSet,
    tree: AvailableUserspace,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store");
        let mut set = set();
        let image = module(
            ".modinfo",
            format!("name=nvidia\0version=535.261.03\0vermagic={} SMP \0", set.key.kernel_release)
                .as_bytes(),
        );
        store.put(&image).expect("put");
        let entry = ModuleEntry::describe("nvidia.ko", &image, &set.key.kernel_release);
        set.modules = vec![entry.expect("a module")];
        store.put_set(&set).expect("set");
        let root = store.dir("userspace/any/root");
        fs::create_dir_all(root.join("usr/lib")).expect("directories");
        fs::write(root.join("usr/lib/libcuda.so.1"), "library").expect("file");
        std::os::unix::fs::symlink("libcuda.so.1", root.join("usr/lib/libcuda.so")).expect("link");
        let manifest = longshore_sources::testing::manifest(&root);
        fs::write(root.with_file_name("manifest.json"), manifest).expect("manifest");
        let tree = AvailableUserspace {
            driver_version: "535.261.03".into(),
            arch: "x86_64".into(),
            root,
            sources: None,
            tools: Vec::new(),
        };
        Self { dir, store, set, tree }
    }

    fn contents(&self, key: Option<&SecretKey>) -> Contents {
        let (sets, trees) = (std::slice::from_ref(&self.set), std::slice::from_ref(&self.tree));
        Contents::collect(sets, trees, key, &self.store).expect("contents")
    }

    fn bundle(&self, key: Option<&SecretKey>) -> Vec<u8> {
        let out = self.dir.path().join("bundle.tar");
        write(&self.contents(key), &out, Disk::default(), &Silent).expect("written");
        fs::read(out).expect("read")
    }
}

/// An empty store, as on another host.
fn host() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store = Store::open(dir.path(), Disk::default()).expect("store");
    (dir, store)
}

fn take(bundle: &[u8], store: &Store, trusts: &[Trust]) -> Result<Imported, Failure> {
    import(&mut &*bundle, "b.tar", store, trusts, &Silent)
}

fn assert_empty(store: &Store) {
    for dir in ["sets", "userspace", "blobs/sha256", "tmp"] {
        assert_eq!(fs::read_dir(store.dir(dir)).expect("listed").count(), 0, "{dir}");
    }
}

/// Checks that the bundle is refused, with nothing recorded.
fn refuses(bundle: &[u8], trusts: &[Trust], expected: &str) {
    let (_dir, store) = host();
    let failure = take(bundle, &store, trusts).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains(expected), "{expected:?} is not in {}", failure.report());
    assert!(failure.remedy_text().is_some(), "{}", failure.report());
    assert_empty(&store);
}

fn requiring(key: &SecretKey) -> Trust {
    Trust::in_keys([key.public()])
}

/// The files of a tar file, to be changed and written again.
fn files(bundle: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(bundle);
    let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.expect("entry");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("read");
        (String::from_utf8(entry.path_bytes().into_owned()).expect("text"), bytes)
    };
    archive.entries().expect("a tar file").map(read).collect()
}

fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        add(&mut tar, name, Regular, bytes, bytes.len() as u64);
    }
    tar.into_inner().expect("tar")
}

fn add(tar: &mut tar::Builder<Vec<u8>>, name: &str, kind: tar::EntryType, bytes: &[u8], size: u64) {
    let mut header = tar::Header::new_gnu();
    let field = &mut header.as_gnu_mut().expect("gnu").name;
    field[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(size);
    header.set_cksum();
    tar.append(&header, bytes).expect("append");
}

#[test]
fn what_is_bundled_is_taken_over_whole() {
    let scene = Scene::new();
    let (_dir, store) = host();
    let imported = take(&scene.bundle(None), &store, &[]).expect("imported");
    assert_eq!(imported.sets, std::slice::from_ref(&scene.set));
    assert_eq!(store.find_set(&scene.set.key).expect("found"), Some(scene.set));
    let trees = userspace::available(&store).expect("listed");
    assert_eq!(trees, imported.trees);
    userspace::verify(&trees[0], Depth::Full, Disk::default()).expect("as it was");
    assert!(check(&store).expect("read").failure().is_none());
    assert_eq!(fs::read_dir(store.dir("tmp")).expect("listed").count(), 0);
}

#[test]
fn the_same_content_makes_the_same_bytes_on_every_host() {
    let scene = Scene::new();
    let key = SecretKey::generate();
    let bundle = scene.bundle(Some(&key));
    assert!(bundle == scene.bundle(Some(&key)));
    let (_dir, store) = host();
    let imported = take(&bundle, &store, &[]).expect("imported");
    let again = Contents::collect(&imported.sets, &imported.trees, None, &store).expect("contents");
    let out = scene.dir.path().join("again.tar");
    write(&again, &out, Disk::default(), &Silent).expect("written");
    // The set kept its own signature; the tree's is over the imported file.
    let (first, second) = (files(&bundle), files(&fs::read(out).expect("read")));
    assert!(second.iter().skip(2).all(|file| first.contains(file)));
}

#[test]
fn a_second_import_changes_nothing() {
    let scene = Scene::new();
    let bundle = scene.bundle(None);
    let (_dir, store) = host();
    take(&bundle, &store, &[]).expect("imported");
    let library =
        userspace::available(&store).expect("listed")[0].root.join("usr/lib/libcuda.so.1");
    let before = fs::metadata(&library).expect("there").modified().expect("time");
    take(&bundle, &store, &[]).expect("imported again");
    assert_eq!(fs::metadata(&library).expect("there").modified().expect("time"), before);
    // Damage is repaired.
    fs::write(&library, "librarz").expect("damaged");
    let module = store.blob_path(&scene.set.modules[0].sha256);
    fs::write(module, "damaged").expect("damaged");
    let imported = take(&bundle, &store, &[]).expect("imported once more");
    assert_eq!(userspace::available(&store).expect("listed"), imported.trees);
    // The damaged tree may be in use as a driver root: gc removes it when it is not.
    let damaged = check(&store).expect("read").damaged;
    let paths: Vec<_> = damaged.iter().map(|damage| damage.path.as_path()).collect();
    assert!(library.starts_with(paths[0]) && paths.len() == 1, "{paths:?}");
}

#[test]
fn signatures_are_asked_of_everything() {
    let scene = Scene::new();
    let (key, other) = (SecretKey::generate(), SecretKey::generate());
    let signed = scene.bundle(Some(&key));
    let (_dir, store) = host();
    let mut lax = Trust::in_keys([other.public()]);
    lax.required = false;
    let trusts = [requiring(&key), lax];
    let imported = take(&signed, &store, &trusts).expect("imported");
    let evidence = store.evidence(&imported.sets[0]).expect("kept");
    evidence.verify(&scene.set, &[key.public()]).expect("verifies from the store");
    refuses(&signed, &[requiring(&other)], "another key");
    refuses(&signed, &[requiring(&key), requiring(&other)], "another key");
    refuses(&scene.bundle(None), &[requiring(&key)], "no signature");
    // The tree's signature removed from the index, the set's left in.
    let mut files = files(&signed);
    let index = files.iter_mut().find(|(name, _)| name == "index.json").expect("there");
    let mut json: serde_json::Value = serde_json::from_slice(&index.1).expect("JSON");
    json["manifests"].as_array_mut().expect("a list").pop();
    index.1 = json.to_string().into_bytes();
    refuses(&tar_of(&files), &[requiring(&key)], "no signature");
}

#[test]
fn what_is_cut_off_anywhere_is_refused() {
    let scene = Scene::new();
    let bundle = scene.bundle(None);
    let (_dir, store) = host();
    // The end of a tar file has no content.
    let content = bundle.len() - 1024;
    for end in (0..content).step_by(97).chain([content - 512, 1, 511, 512, 513]) {
        let padding = files(&bundle).last().map_or(0, |(_, bytes)| 512 - bytes.len() % 512);
        if end > content - padding {
            continue;
        }
        let failure = take(&bundle[..end], &store, &[]).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification, "{end}: {}", failure.report());
        assert_empty(&store);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_or_changes_nothing() {
    let scene = Scene::new();
    let key = SecretKey::generate();
    let mut bundle = scene.bundle(Some(&key));
    let trusts = [requiring(&key)];
    for at in (0..bundle.len()).step_by(131) {
        let (_dir, store) = host();
        bundle[at] ^= 0x10;
        match take(&bundle, &store, &trusts) {
            Err(failure) => {
                assert_eq!(failure.code(), ExitCode::Verification, "{at}: {}", failure.report());
                assert_empty(&store);
            }
            // Padding, or an unused field of a header.
            Ok(imported) => {
                assert_eq!(imported.sets, std::slice::from_ref(&scene.set), "{at}");
                assert!(check(&store).expect("read").failure().is_none(), "{at}");
            }
        }
        bundle[at] ^= 0x10;
    }
}

const EMPTY: &str = "blobs/sha256/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const ZEROS: &str = "blobs/sha256/0000000000000000000000000000000000000000000000000000000000000000";
const STRANGE: &str = "not part of a bundle";

#[rstest]
#[case::parent(STRANGE, &[("../x", Regular, "")])]
#[case::absolute(STRANGE, &[("/etc/x", Regular, "")])]
#[case::parent_from_blobs(STRANGE, &[("blobs/sha256/../../x", Regular, "")])]
#[case::device(STRANGE, &[("index.json", Char, "")])]
#[case::fifo(STRANGE, &[("index.json", Fifo, "")])]
#[case::hard_link(STRANGE, &[("index.json", Link, "")])]
#[case::link(STRANGE, &[("oci-layout", Symlink, "")])]
#[case::sparse(STRANGE, &[("index.json", GNUSparse, "")])]
#[case::long_name(STRANGE, &[("././@LongLink", GNULongName, "x")])]
#[case::foreign(STRANGE, &[("usr/bin/sh", Regular, "#!")])]
#[case::file_for_directory(STRANGE, &[("blobs", Regular, "")])]
#[case::twice("index.json twice", &[("index.json", Regular, "{}"), ("index.json", Regular, "{}")])]
#[case::blob_twice("twice", &[(EMPTY, Regular, ""), (EMPTY, Regular, "")])]
#[case::wrong_digest("has the digest", &[(ZEROS, Regular, "x")])]
#[case::empty("has no oci-layout", &[])]
#[case::no_index("has no index.json", &[("oci-layout", Regular, LAYOUT)])]
#[case::other_layout("layout has the version", &[("oci-layout", Regular, r#"{"imageLayoutVersion":"9"}"#)])]
#[case::damaged_layout("oci-layout is damaged", &[("oci-layout", Regular, "{")])]
fn a_tar_file_is_refused_that_holds(
    #[case] expected: &str,
    #[case] files: &[(&str, tar::EntryType, &str)],
) {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, kind, text) in files {
        add(&mut tar, name, *kind, text.as_bytes(), text.len() as u64);
    }
    refuses(&tar.into_inner().expect("tar"), &[], expected);
}

#[rstest]
#[case::index("index.json", Regular, 1 << 40)]
#[case::blob(ZEROS, Regular, 1 << 50)]
#[case::record("x", XHeader, 1 << 40)]
#[case::directory("blobs/", Directory, 1 << 40)]
fn what_says_it_is_huge_is_refused_before_it_is_read(
    #[case] name: &str,
    #[case] kind: tar::EntryType,
    #[case] size: u64,
) {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, name, kind, b"", size);
    refuses(&tar.into_inner().expect("tar"), &[], if size > 64 << 30 { "" } else { "says it has" });
}

#[rstest]
#[case::no_tar(b"this is no tar file at all, but it is longer than one block of it is".repeat(20))]
#[case::zeros(vec![0; 4096])]
#[case::nothing(Vec::new())]
fn what_is_no_tar_file_is_refused(#[case] bytes: Vec<u8>) {
    refuses(&bytes, &[], "the bundle b.tar");
}

/// The bundle with another index, and an additional blob.
fn reindexed(bundle: &[u8], change: impl Fn(&mut Value), blob: Option<&[u8]>) -> Vec<u8> {
    let mut files = files(bundle);
    let index = files.iter_mut().find(|(name, _)| name == "index.json").expect("there");
    let mut json: Value = serde_json::from_slice(&index.1).expect("JSON");
    change(&mut json);
    index.1 = json.to_string().into_bytes();
    if let Some(blob) = blob {
        let digest = longshore_core::digest::digest_of(blob).expect("digest");
        files.push((format!("blobs/sha256/{digest}"), blob.to_vec()));
    }
    tar_of(&files)
}

#[rstest]
#[case::nothing_named("neither modules nor", "/manifests", json!([]))]
#[case::absent("is not in it", "/manifests/0/digest", json!("sha256:0000"))]
#[case::parent("is not in it", "/manifests/0/digest", json!("sha256:../../x"))]
#[case::other_size("bytes, and has others", "/manifests/0/size", json!(1))]
#[case::other_kind("another kind", "/mediaType", json!("application/x"))]
#[case::other_schema("another kind", "/schemaVersion", json!(1))]
#[case::no_list("index.json is damaged", "/manifests", json!(3))]
#[case::negative("index.json is damaged", "/manifests/0/size", json!(-1))]
fn an_index_is_refused(#[case] expected: &str, #[case] at: &str, #[case] value: Value) {
    let change = |index: &mut Value| *index.pointer_mut(at).expect("there") = value.clone();
    refuses(&reindexed(&Scene::new().bundle(None), change, None), &[], expected);
}

/// The bundle, whose index names an image of attestations often: beside the set's signature, `layers`.
fn attested(bundle: &[u8], layers: &[Value]) -> Vec<u8> {
    let config = json!({"mediaType": "x", "digest": "y", "size": 1});
    let image = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    let digest = longshore_core::digest::digest_of(image.as_bytes()).expect("digest");
    let entry = json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": format!("sha256:{digest}"), "size": image.len(),
        "annotations": {"kind": "dev.cosignproject.cosign/atts"},
    });
    let often = |index: &mut Value| {
        let list = index["manifests"].as_array_mut().expect("a list");
        list.extend(vec![entry.clone(); 1000]);
    };
    reindexed(bundle, often, Some(image.as_bytes()))
}

#[test]
fn a_damaged_attestation_counts_as_none_and_hinders_only_where_one_is_required() {
    let (scene, key) = (Scene::new(), SecretKey::generate());
    let absent = json!({
        "mediaType": "application/vnd.dsse.envelope.v1+json",
        "digest": format!("sha256:{}", "0".repeat(64)), "size": 1,
    });
    let bundle = attested(&scene.bundle(Some(&key)), &[absent]);
    let (_dir, store) = host();
    take(&bundle, &store, &[requiring(&key)]).expect("a well-signed set is imported");
    let kept = store.evidence(&scene.set).expect("its signature is kept");
    assert!(kept.attestations().is_empty());
    let provenance = requiring(&key).requiring(vec!["provenance".parse().expect("a type")]);
    refuses(&bundle, std::slice::from_ref(&provenance), "is not in it");
    let unsigned = attested(&scene.bundle(None), &[]);
    refuses(&unsigned, &[provenance], "it has no signature");
}

#[test]
fn a_bundle_that_names_one_image_of_attestations_often_has_its_envelopes_once() {
    let (scene, key) = (Scene::new(), SecretKey::generate());
    let envelope = b"{}";
    let digest = longshore_core::digest::digest_of(&envelope[..]).expect("digest");
    let layer = json!({
        "mediaType": "application/vnd.dsse.envelope.v1+json",
        "digest": format!("sha256:{digest}"), "size": envelope.len(),
    });
    let bundle = attested(&scene.bundle(Some(&key)), &[layer.clone(), layer]);
    let mut files = files(&bundle);
    files.push((format!("blobs/sha256/{digest}"), envelope.to_vec()));
    let (_dir, store) = host();
    take(&tar_of(&files), &store, &[]).expect("imported");
    assert_eq!(store.evidence(&scene.set).expect("kept").attestations().len(), 1);
}

#[test]
fn manifests_of_other_kinds_are_passed_over() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let scene = Scene::new();
    let foreign = json!({"schemaVersion": 2, "layers": [],
        "config": {"mediaType": "x", "digest": "y", "size": 1}});
    let foreign = foreign.to_string().into_bytes();
    let digest = longshore_core::digest::digest_of(&*foreign).expect("digest");
    let more = |index: &mut Value| {
        let list = index["manifests"].as_array_mut().expect("a list");
        let (digest, size) = (format!("sha256:{digest}"), foreign.len());
        list.push(json!({"mediaType": MANIFEST, "digest": digest, "size": size}));
        list.push(json!({"mediaType": INDEX, "digest": "sha256:abc", "size": 1}));
    };
    let (_dir, store) = host();
    take(&reindexed(&scene.bundle(None), more, Some(&foreign)), &store, &[]).expect("imported");
    let only = |index: &mut Value| {
        for entry in index["manifests"].as_array_mut().expect("a list") {
            entry["mediaType"] = INDEX.into();
        }
    };
    refuses(&reindexed(&scene.bundle(None), only, None), &[], "neither modules nor");
}

#[test]
fn what_lies_in_any_order_under_dots_is_taken() {
    let scene = Scene::new();
    let mut files = files(&scene.bundle(None));
    files.reverse();
    let mut tar = tar::Builder::new(Vec::new());
    for dir in ["./", "./blobs/", "./blobs/sha256/"] {
        add(&mut tar, dir, Directory, b"", 0);
    }
    for (name, bytes) in &files {
        add(&mut tar, "x", XHeader, b"13 mtime=1.5\n", 13);
        add(&mut tar, &format!("./{name}"), Regular, bytes, bytes.len() as u64);
    }
    let (_dir, store) = host();
    take(&tar.into_inner().expect("tar"), &store, &[]).expect("imported");
}

#[test]
fn a_store_that_is_damaged_makes_no_bundle() {
    let scene = Scene::new();
    let out = scene.dir.path().join("out.tar");
    for (path, bytes) in [
        (scene.store.blob_path(&scene.set.modules[0].sha256), &b"other"[..]),
        (scene.tree.root.join("usr/lib/libcuda.so.1"), b"librarz"),
    ] {
        let good = fs::read(&path).expect("read");
        for bytes in [bytes, &[&good[..], b"more"].concat()] {
            fs::write(&path, bytes).expect("damaged");
            let failure =
                write(&scene.contents(None), &out, Disk::default(), &Silent).expect_err("refused");
            assert_eq!(failure.code(), ExitCode::Verification);
            assert!(!out.exists());
        }
        fs::write(&path, good).expect("put back");
    }
    write(&scene.contents(None), &out, Disk::default(), &Silent).expect("written");
    let left = fs::read_dir(scene.dir.path()).expect("listed").count();
    assert_eq!(left, 2, "the store and the bundle");
}

#[rstest]
#[case::below_a_file("store/lock/x")]
#[case::directory("store")]
#[case::absent("no/such/x")]
fn a_place_that_cannot_be_written_is_refused_at_once(#[case] out: &str) {
    let scene = Scene::new();
    fs::write(scene.store.root().join("lock"), "").expect("file");
    let failure = check_destination(&scene.dir.path().join(out)).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Preflight);
    check_destination(&scene.dir.path().join("x.tar")).expect("can be written");
    check_destination(Path::new("-")).expect("standard output");
}
