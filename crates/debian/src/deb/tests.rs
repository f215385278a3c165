use super::*;
use longshore_core::failure::ExitCode;
use rstest::rstest;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};

enum Item<'a> {
    File(&'a str, &'a [u8]),
    Dir(&'a str),
    Link(&'a str, &'a str),
    Hard(&'a str, &'a str),
    Node(&'a str),
}
use Item::{Dir, File, Hard, Link, Node};

/// A tar whose paths are written literally, `..` and all.
fn tar_of(items: &[Item<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for item in items {
        let (path, kind, target, bytes, mode) = match item {
            File(path, bytes) => (path, tar::EntryType::Regular, None, *bytes, 0o4755),
            Dir(path) => (path, tar::EntryType::Directory, None, &b""[..], 0o755),
            Link(path, to) => (path, tar::EntryType::Symlink, Some(to), &b""[..], 0o777),
            Hard(path, to) => (path, tar::EntryType::Link, Some(to), &b""[..], 0o644),
            Node(path) => (path, tar::EntryType::Char, None, &b""[..], 0o666),
        };
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().expect("gnu").name[..path.len()].copy_from_slice(path.as_bytes());
        if let Some(to) = target {
            header.as_gnu_mut().expect("gnu").linkname[..to.len()].copy_from_slice(to.as_bytes());
        }
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_600_000_000);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        tar.append(&header, bytes).expect("append");
    }
    tar.into_inner().expect("tar")
}

fn compress(extension: &str, bytes: &[u8]) -> Vec<u8> {
    match extension {
        ".gz" => {
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            gz.write_all(bytes).expect("gz");
            gz.finish().expect("gz")
        }
        ".xz" => {
            let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
            xz.write_all(bytes).expect("xz");
            xz.finish().expect("xz")
        }
        ".zst" => zstd::encode_all(bytes, 1).expect("zst"),
        _ => bytes.to_vec(),
    }
}

fn deb_with(extension: &str, items: &[Item<'_>]) -> Vec<u8> {
    let mut deb = b"!<arch>\n".to_vec();
    let data = compress(extension, &tar_of(items));
    for (name, bytes) in [
        ("debian-binary", &b"2.0\n"[..]),
        ("control.tar.gz", b"odd"),
        (&format!("data.tar{extension}"), &data),
    ] {
        deb.extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}", 0, 0, 0, 100644).bytes());
        deb.extend(format!("{:<10}`\n", bytes.len()).bytes());
        deb.extend(bytes);
        deb.resize(deb.len().next_multiple_of(2), b'\n');
    }
    deb
}

fn unpack_into(dir: &Path, items: &[Item<'_>]) -> Result<Vec<UnpackedEntry>, Failure> {
    unpack("mini", &deb_with(".xz", items)[..], dir, &mut everything)
}

#[rstest]
fn every_compression_is_read(#[values("", ".gz", ".xz", ".zst")] extension: &str) {
    let dir = tempfile::tempdir().expect("dir");
    let deb = deb_with(extension, &[Dir("./"), Dir("./usr/"), File("./usr/a", b"bytes")]);
    let entries = unpack("mini", &deb[..], dir.path(), &mut everything).expect("unpacks");
    assert_eq!(fs::read(dir.path().join("usr/a")).expect("read"), b"bytes");
    assert_eq!(entries.len(), 2);
    let read = read_file("mini", &deb[..], Path::new("usr/a")).expect("reads");
    assert_eq!(read.as_deref(), Some(&b"bytes"[..]));
    assert_eq!(read_file("mini", &deb[..], Path::new("usr/b")).expect("reads"), None);
    assert_eq!(list("mini", &deb[..]).expect("lists").len(), 3);
}

#[rstest]
fn one_that_is_cut_off_is_refused(#[values("", ".gz", ".xz", ".zst")] extension: &str) {
    let noise: Vec<u8> = (0..20_000u32)
        .flat_map(|i| i.wrapping_mul(i).wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    let deb = deb_with(extension, &[File("./a", &noise)]);
    // The last byte may be the padding after the last member.
    for cut in [2, 3, 600, deb.len() / 2, deb.len() - 100, deb.len() - 4] {
        let dir = tempfile::tempdir().expect("dir");
        let failure = unpack("mini", &deb[..deb.len() - cut], dir.path(), &mut everything)
            .expect_err(&format!("refused when {cut} bytes are missing"));
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.to_string().contains("mini"), "{failure}");
    }
}

#[rstest]
#[case::parent(&[File("../out/evil", b"x")])]
#[case::parent_within(&[File("a/../../out/evil", b"x")])]
#[case::absolute(&[File("/tmp/longshore-evil", b"x")])]
#[case::through_a_link(&[Link("d", "../out"), File("d/evil", b"x")])]
#[case::through_an_absolute_link(&[Link("d", "/tmp"), File("d/longshore-evil", b"x")])]
#[case::directory_through_a_link(&[Link("d", "../out"), Dir("d/evil/")])]
#[case::through_a_false_usrmerge(&[Link("lib", "../out"), File("lib/evil", b"x")])]
#[case::usrmerge_onto_a_link(&[Link("usr", "../out"), Link("lib", "usr/lib"), File("lib/evil", b"x")])]
#[case::link_through_a_link(&[Link("d", "../out"), Link("d/evil", "x")])]
#[case::hard_link_outside(&[Hard("a", "../out/secret")])]
#[case::hard_link_absolute(&[Hard("a", "/etc/passwd")])]
#[case::hard_link_through_a_link(&[Link("d", "../out"), Hard("a", "d/secret")])]
#[case::hard_link_to_a_link(&[Link("d", "../out/secret"), Hard("a", "d")])]
fn nothing_is_written_outside(#[case] items: &[Item<'_>]) {
    let dir = tempfile::tempdir().expect("dir");
    let (into, out) = (dir.path().join("in"), dir.path().join("out"));
    fs::create_dir(&out).expect("dir");
    fs::write(out.join("secret"), "secret").expect("write");
    let failure = unpack_into(&into, items).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("mini"), "{failure}");
    assert_eq!(fs::read_dir(&out).expect("list").count(), 1);
    assert_eq!(fs::read(out.join("secret")).expect("read"), b"secret");
    assert!(!Path::new("/tmp/longshore-evil").exists());
}

#[test]
fn a_link_is_replaced_and_not_followed_by_the_file_of_its_name() {
    let dir = tempfile::tempdir().expect("dir");
    fs::write(dir.path().join("secret"), "secret").expect("write");
    let into = dir.path().join("in");
    unpack_into(&into, &[Link("a", "../secret"), File("a", b"new")]).expect("unpacks");
    assert_eq!(fs::read(dir.path().join("secret")).expect("read"), b"secret");
    assert_eq!(fs::read(into.join("a")).expect("read"), b"new");
}

#[test]
fn usrmerge_links_are_kept_and_files_go_through_them() {
    let dir = tempfile::tempdir().expect("dir");
    make_usrmerge_links(dir.path()).expect("links");
    let items = [
        Dir("./lib/"),
        Dir("./lib/modules/"),
        File("./lib/modules/a", b"a"),
        Link("./lib64", "usr/lib64"),
        Link("./bin/sh", "/usr/bin/dash"),
        Dir("./etc/"),
    ];
    unpack_into(dir.path(), &items).expect("unpacks");
    assert!(fs::symlink_metadata(dir.path().join("lib")).expect("lib").is_symlink());
    assert_eq!(fs::read(dir.path().join("usr/lib/modules/a")).expect("read"), b"a");
    let target = fs::read_link(dir.path().join("usr/bin/sh")).expect("link");
    assert_eq!(target, Path::new("/usr/bin/dash"));
}

#[test]
fn an_absolute_usrmerge_link_stays_inside() {
    let dir = tempfile::tempdir().expect("dir");
    symlink("/usr/lib", dir.path().join("lib")).expect("link");
    unpack_into(dir.path(), &[File("lib/longshore-test", b"a")]).expect("unpacks");
    assert!(dir.path().join("usr/lib/longshore-test").is_file());
    assert!(!Path::new("/usr/lib/longshore-test").exists());
}

#[test]
fn setuid_bits_and_device_nodes_are_dropped_and_times_kept() {
    let dir = tempfile::tempdir().expect("dir");
    let items = [File("su", b"x"), Node("null"), Hard("su2", "su")];
    let entries = unpack_into(dir.path(), &items).expect("unpacks");
    let found = fs::metadata(dir.path().join("su")).expect("su");
    assert_eq!(found.permissions().mode() & 0o7777, 0o755);
    let age = found.modified().expect("time").duration_since(std::time::UNIX_EPOCH);
    assert_eq!(age.expect("time").as_secs(), 1_600_000_000);
    assert!(!dir.path().join("null").exists());
    assert_eq!(entries[1].kind, EntryKind::HardLink("su".into()));
}

#[test]
fn files_go_where_they_are_placed() {
    let dir = tempfile::tempdir().expect("dir");
    let deb = deb_with(".gz", &[File("./a/b", b"1"), File("./c", b"2"), Hard("./a/d", "./a/b")]);
    let entries = unpack("mini", &deb[..], dir.path(), &mut |path| {
        path.strip_prefix("a").ok().map(|rest| Path::new("deep/er").join(rest))
    });
    assert_eq!(entries.expect("unpacks").len(), 2);
    assert!(dir.path().join("deep/er/d").is_file());
    assert!(!dir.path().join("c").exists());
    let failure =
        unpack("mini", &deb[..], dir.path(), &mut |path| Some(Path::new("..").join(path)));
    assert_eq!(failure.expect_err("refused").code(), ExitCode::Verification);
}

#[rstest]
#[case::empty(b"")]
#[case::no_ar(b"<html>not found</html>")]
#[case::no_members(b"!<arch>\n")]
#[case::damaged(b"!<arch>\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")]
fn what_is_no_package_is_refused(#[case] bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("dir");
    let failure = unpack("mini", bytes, dir.path(), &mut everything).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.report().contains("mini"), "{}", failure.report());
}

#[rstest]
#[case::parent(&[File("../out/evil", b"x")])]
#[case::absolute(&[File("/tmp/longshore-evil", b"x")])]
#[case::through_a_link(&[Link("d", "../out"), File("d/evil", b"x")])]
#[case::hard_link_outside(&[Hard("a", "../out/secret")])]
fn a_tar_within_a_package_writes_nowhere_else_either(#[case] items: &[Item<'_>]) {
    let dir = tempfile::tempdir().expect("dir");
    let (into, out) = (dir.path().join("into"), dir.path().join("out"));
    fs::create_dir(&out).expect("directory");
    let tar = compress(".xz", &tar_of(items));
    let failure = unpack_tar("mini", "x.tar.xz", &tar[..], &into).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("mini"), "{failure}");
    assert_eq!(fs::read_dir(&out).expect("list").count(), 0);
    assert!(!Path::new("/tmp/longshore-evil").exists());
}

#[rstest]
fn a_tar_within_a_package_is_whole_or_refused(#[values("", ".gz", ".xz", ".zst")] extension: &str) {
    let tar = compress(extension, &tar_of(&[Dir("./a/"), File("./a/b", b"bytes"), Node("./n")]));
    let dir = tempfile::tempdir().expect("dir");
    let name = format!("x.tar{extension}");
    unpack_tar("mini", &name, &tar[..], dir.path()).expect("unpacks");
    assert_eq!(fs::read(dir.path().join("a/b")).expect("read"), b"bytes");
    assert!(!dir.path().join("n").exists());
    let mode = fs::metadata(dir.path().join("a/b")).expect("there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    if !extension.is_empty() {
        let cut = unpack_tar("mini", &name, &tar[..tar.len() - 3], dir.path());
        assert_eq!(cut.expect_err("refused").code(), ExitCode::Verification);
    }
}

/// A package whose data is this tar.
fn deb_of(tar: &[u8]) -> Vec<u8> {
    let mut deb = b"!<arch>\n".to_vec();
    deb.extend(format!("{:<16}{:<12}{:<6}{:<6}{:<8}", "data.tar", 0, 0, 0, 100644).bytes());
    deb.extend(format!("{:<10}`\n", tar.len()).bytes());
    deb.extend(tar);
    deb
}

/// Returns the error for which a package is refused, unpacked and listed.
fn refused(deb: &[u8]) -> String {
    let dir = tempfile::tempdir().expect("dir");
    let failure = unpack("mini", deb, dir.path(), &mut everything).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    failure.report()
}

#[test]
fn a_sparse_file_is_refused_whatever_size_it_claims() {
    let mut header = tar::Header::new_gnu();
    header.set_path("zeros").expect("path");
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_size(0);
    header.as_gnu_mut().expect("gnu").realsize = *b"77777777777\0";
    header.set_cksum();
    let mut tar = tar::Builder::new(Vec::new());
    tar.append(&header, &b""[..]).expect("append");
    let report = refused(&deb_of(&tar.into_inner().expect("tar")));
    assert!(report.contains("sparse"), "{report}");
}

#[test]
fn a_path_may_be_deep_but_not_as_deep_as_a_stack() {
    let deep = |depth: usize| {
        let path = format!("{}x", "a/".repeat(depth));
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(1);
        tar.append_data(&mut header, path, &b"x"[..]).expect("append");
        deb_of(&tar.into_inner().expect("tar"))
    };
    let dir = tempfile::tempdir().expect("dir");
    unpack("mini", &deep(50)[..], dir.path(), &mut everything).expect("unpacks");
    for depth in [150, 100_000] {
        let report = refused(&deep(depth));
        assert!(report.contains("more than 100 directories"), "{report}");
    }
    list("mini", &deep(100_000)[..]).expect_err("refused");
}

#[test]
fn names_without_end_are_refused_before_they_fill_the_memory() {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(8 << 20);
    header.set_cksum();
    tar.append(&header, &vec![b'a'; 8 << 20][..]).expect("append");
    let report = refused(&deb_of(&tar.into_inner().expect("tar")));
    assert!(report.contains("more than 1 MiB"), "{report}");
}

#[test]
fn more_directories_than_a_package_has_are_refused() {
    let names: Vec<String> = (0..20_100).map(|n| format!("{n:05}/")).collect();
    let items: Vec<Item<'_>> = names.iter().map(|name| Dir(name)).collect();
    let report = refused(&deb_with(".zst", &items));
    assert!(report.contains("more than 20000 directories"), "{report}");
}

#[test]
fn two_packages_are_unpacked_side_by_side() {
    let dir = tempfile::tempdir().expect("dir");
    let into = dir.path().join("in");
    let deb = |name: &str| {
        let paths: Vec<String> =
            (0..300).map(|n| format!("usr/share/{}/{}/{name}", n % 50, n % 7)).collect();
        let items: Vec<Item<'_>> = paths.iter().map(|path| File(path, b"x")).collect();
        deb_with("", &items)
    };
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let (deb, into) = (deb(name), &into);
            scope.spawn(move || unpack(name, &deb[..], into, &mut everything).expect("unpacks"));
        }
    });
    assert_eq!(fs::read_dir(into.join("usr/share")).expect("list").count(), 50);
}

fn files_of(deb: &[u8], most: u64) -> Result<Vec<(PathBuf, String)>, Failure> {
    let mut files = Vec::new();
    let wanted = |path: &Path| path.starts_with("lib");
    each_file("mini", deb, most, &wanted, &mut |path, file| {
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|e| damaged("mini", e))?;
        files.push((path.to_path_buf(), text));
        Ok(())
    })?;
    Ok(files)
}

#[test]
fn selected_files_are_passed_on() {
    let items = [Dir("./lib"), File("./lib/a", b"1"), File("./usr/b", b"2"), File("lib/c", b"3")];
    let deb = deb_with(".zst", &items[1..]);
    let wanted = [("lib/a", "1"), ("lib/c", "3")];
    assert_eq!(files_of(&deb, 3).expect("read"), wanted.map(|(p, t)| (p.into(), t.into())));
}

#[rstest]
#[case::too_much(&[File("usr/a", b"12"), File("lib/b", b"34")], "more than 0 MiB")]
#[case::link(&[Link("lib/a", "b")], "lib/a is no regular file")]
#[case::hard_link(&[File("a", b"1"), Hard("lib/a", "a")], "lib/a is no regular file")]
#[case::device(&[Node("lib/a")], "lib/a is no regular file")]
#[case::outside(&[File("lib/../../a", b"1")], "leads outside")]
fn nothing_but_regular_files_within_the_limit_is_selected(
    #[case] items: &[Item<'_>],
    #[case] why: &str,
) {
    let failure = files_of(&deb_with(".gz", items), 3).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains(why), "{failure}");
}
