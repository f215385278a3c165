use std::io::Write;

use rstest::rstest;
use tar::EntryType;

use super::*;
use crate::tree_entries::TreeEntry;
use crate::userspace::assemble::tests::{assembled, assembled_with};
use crate::userspace::manifest::{Depth, manifest_of, verify};
use crate::userspace::packed::Packed;
use crate::userspace::sample::{VERSION, deb, driver, package_of, store};
use crate::userspace::{AvailableUserspace, available};
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;

/// Paths of a driver's sources with their text; programs have `!` before it.
const PLAIN: [(&str, &str); 5] = [
    ("Kbuild", "ccflags-y += -DNV_VERSION_STRING=\\\"535.1.2\\\""),
    ("conftest.sh", "!#!/bin/sh"),
    ("common/inc/nv.h", "inc"),
    ("nvidia/nv-p2p.h", "interface"),
    ("nvidia/nv-kernel.o_binary", "object"),
];

/// A member of a tar: path, kind, link's target, text.
type Member = (String, EntryType, &'static str, &'static str);

/// The plain sources below `lead`.
fn plain(lead: &str) -> Vec<Member> {
    let member = |(path, text): (&str, &'static str)| {
        (format!("{lead}{path}"), EntryType::Regular, "", text)
    };
    PLAIN.map(member).into()
}

fn link(path: &str, kind: EntryType, target: &'static str) -> Member {
    (path.to_owned(), kind, target, "")
}

/// A tar whose paths are written literally, with modes that no tree should have.
fn tar_of(members: &[Member]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, kind, target, text) in members {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(if text.starts_with('!') { 0o4777 } else { 0o2666 });
        header.set_mtime(1_600_000_000);
        header.set_size(text.len() as u64);
        if let Some(gnu) = header.as_gnu_mut().filter(|_| kind.is_gnu_sparse()) {
            gnu.realsize = *b"00000000000\0";
        }
        header.set_link_name_literal(target).expect("a short link");
        // The builder refuses paths with `..`, so the name is written directly.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        tar.append(&header, text.as_bytes()).expect("append");
    }
    tar.into_inner().expect("tar")
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(bytes).expect("xz");
    xz.finish().expect("xz")
}

/// Debian's layout: a compressed tar in the package, the sources below `modules/NAME`.
fn debian(store: &Store, members: &[Member]) -> Sources {
    let path = "./usr/src/nvidia-open-kernel.tar.xz".to_owned();
    let data = deb(&[(path, xz(&tar_of(members)))]);
    let package = package_of(store, "nvidia-open-kernel-source", &data);
    Sources::in_package(package, Flavour::Open)
}

/// The layout of other distributions, and of -dkms packages: the sources themselves.
fn unpacked(store: &Store, _: &[Member]) -> Sources {
    let file = |(path, text): (&str, &str)| {
        (format!("./usr/src/nvidia-{VERSION}/{path}"), text.as_bytes().to_vec())
    };
    let package = package_of(store, "nvidia-kernel-source-535-open", &deb(&PLAIN.map(file)));
    Sources::in_package(package, Flavour::Open)
}

const DEBIAN: &str = "modules/nvidia-open-kernel/";

fn with_sources(store: &Store, sources: Sources) -> Result<AvailableUserspace, Failure> {
    assembled_with(store, driver(store), Some(sources))
}

#[rstest]
#[case::debian(debian)]
#[case::unpacked(unpacked)]
fn the_tree_has_them_where_other_programs_look(#[case] layout: fn(&Store, &[Member]) -> Sources) {
    let (_dir, store) = store();
    let sources = layout(&store, &plain(DEBIAN));
    let used = sources.used().expect("a package");
    let tree = with_sources(&store, sources).expect("assembled");
    verify(&tree, Depth::Full, Disk::default()).expect("verifies");
    assert_eq!(tree.sources, Some(Flavour::Open));
    let manifest = manifest_of(&tree).expect("manifest");
    assert_eq!(manifest.sources, Some(Flavour::Open));
    assert_eq!(manifest.packages.last(), Some(&used));
    let mode = |path: &str| match manifest.entries.get(&directory(VERSION).join(path)) {
        Some(TreeEntry::File { mode, .. } | TreeEntry::Dir { mode }) => *mode,
        other => panic!("{path}: {other:?}"),
    };
    for (path, _) in PLAIN.iter().filter(|(path, _)| *path != "conftest.sh") {
        assert!([0o644, 0o755].contains(&mode(path)), "{path}: {:o}", mode(path));
    }
    assert_eq!((mode("conftest.sh"), mode("nvidia"), mode("")), (0o755, 0o755, 0o755));
    let others = manifest.entries.keys().filter(|path| path.starts_with("usr/src"));
    assert!(
        others.into_iter().all(|p| p == Path::new("usr/src") || p.starts_with(directory(VERSION)))
    );
}

#[test]
fn a_tree_with_them_is_another_than_one_without() {
    let (_dir, store) = store();
    let without = assembled(&store, driver(&store)).expect("assembled");
    let with = with_sources(&store, debian(&store, &plain(DEBIAN))).expect("assembled");
    assert_ne!(with.root, without.root);
    assert!(!without.root.join("usr/src").exists());
    let listed = available(&store).expect("listed");
    let sources: Vec<_> = listed.iter().map(|tree| tree.sources).collect();
    assert!(sources.contains(&None) && sources.contains(&Some(Flavour::Open)), "{sources:?}");
    let again = with_sources(&store, debian(&store, &plain(DEBIAN))).expect("found");
    assert_eq!(again, with);
}

#[test]
fn they_are_carried_to_another_store() {
    let ((_dir, store), (_other_dir, other)) = (store(), store());
    let tree = with_sources(&store, debian(&store, &plain(DEBIAN))).expect("assembled");
    let packed = Packed::read(&tree).expect("packs");
    let staged = other.dir("tmp").join("staged");
    fs::create_dir(&staged).expect("made");
    for file in &packed.files {
        fs::copy(tree.root.join(&file.path), staged.join(&file.sha256)).expect("copied");
    }
    let carried = packed.unpack(&other, &|sha256| staged.join(sha256)).expect("unpacks");
    assert_eq!(carried.sources, Some(Flavour::Open));
    assert_eq!(
        carried.root.parent().and_then(Path::file_name),
        tree.root.parent().and_then(Path::file_name)
    );
    verify(&carried, Depth::Full, Disk::default()).expect("verifies");
}

fn hostile(extra: Member) -> Vec<Member> {
    let mut members = plain(DEBIAN);
    members.insert(0, extra);
    members
}

fn of_version(kbuild: &'static str) -> Vec<Member> {
    let mut members = plain(DEBIAN);
    members[0].3 = kbuild;
    members
}

fn written_through(target: &'static str) -> Vec<Member> {
    let mut members = hostile(link("modules/nvidia-open-kernel", EntryType::Symlink, target));
    members.truncate(3);
    members
}

#[rstest]
#[case::climbs(hostile(("../../evil".into(), EntryType::Regular, "", "x")), "leads outside")]
#[case::absolute(hostile(("/evil".into(), EntryType::Regular, "", "x")), "leads outside")]
#[case::through_a_link(written_through("/tmp"), "symbolic link")]
#[case::through_a_climbing_link(written_through("../.."), "symbolic link")]
#[case::hard_link_out(
    hostile(link("modules/nvidia-open-kernel/x", EntryType::Link, "/etc/passwd")),
    "leads outside"
)]
#[case::link_out(
    hostile(link("modules/nvidia-open-kernel/x", EntryType::Symlink, "/etc")),
    "is a link to /etc"
)]
#[case::link_up(
    hostile(link("modules/nvidia-open-kernel/common/x", EntryType::Symlink, "../nvidia")),
    "is a link to ../nvidia"
)]
#[case::sparse(hostile(link("modules/nvidia-open-kernel/x", EntryType::GNUSparse, "")), "sparse")]
#[case::another_version(
    of_version("-DNV_VERSION_STRING=\\\"535.1.3\\\""),
    "they are of 535.1.3, not 535.1.2"
)]
#[case::no_version(of_version("obj-m"), "states no version")]
#[case::no_sources(vec![("modules/x/README".into(), EntryType::Regular, "", "x")], "holds no kernel sources")]
fn nothing_is_left_of_sources_with(#[case] members: Vec<Member>, #[case] said: &str) {
    let (dir, store) = store();
    let failure = with_sources(&store, debian(&store, &members)).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
    assert!(failure.report().contains(said), "{}", failure.report());
    for left in ["userspace", "tmp"] {
        assert_eq!(fs::read_dir(store.dir(left)).expect("listed").count(), 0, "{left}");
    }
    assert!(!dir.path().join("evil").exists() && !Path::new("/evil").exists());
}

/// Entries that are left out: the tree has none of them, and is whole.
#[rstest]
#[case::device(EntryType::Char)]
#[case::pipe(EntryType::Fifo)]
fn a_node_is_left_out(#[case] kind: EntryType) {
    let (_dir, store) = store();
    let path = format!("{DEBIAN}nvidia/x");
    let members = hostile(link(&path, kind, ""));
    let tree = with_sources(&store, debian(&store, &members)).expect("assembled");
    let found = tree.root.join(directory(VERSION)).join("nvidia/x").symlink_metadata();
    assert!(found.is_err(), "{found:?}");
}

#[test]
fn a_package_whose_digest_differs_is_refused() {
    let (_dir, store) = store();
    let sources = debian(&store, &plain(DEBIAN));
    let sha256 = sources.used().expect("a package").sha256;
    fs::write(store.blob_path(&sha256), deb(&[])).expect("changed");
    let failure = with_sources(&store, sources).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
}

#[rstest]
#[case("nv.h", true)]
#[case("inc/nv.h", true)]
#[case("../nv.h", false)]
#[case("inc/../../nv.h", false)]
#[case("/usr/src/nv.h", false)]
#[case("./nv.h", false)]
#[case("", false)]
fn a_link_may_lead_down_alone(#[case] target: &str, #[case] wanted: bool) {
    assert_eq!(leads_down(Path::new(target)), wanted);
}
