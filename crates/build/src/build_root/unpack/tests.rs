use super::*;
use std::fs;
use std::os::unix::fs::MetadataExt;

use longshore_core::failure::ExitCode;
use rstest::rstest;

/// An entry of a layer.
#[derive(Clone, Copy)]
enum Made<'a> {
    Dir(&'a str),
    File(&'a str, &'a str),
    Mode(&'a str, u32),
    Link(&'a str, &'a str),
    Name(&'a str, &'a str),
    Fifo(&'a str),
    Device(&'a str),
}
use Made::{Device, Dir, Fifo, Link, Mode, Name};

fn header(kind: EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(1_700_000_000);
    header.set_uid(1000);
    header
}

/// Sets a name as it is: the crate itself writes none that climbs.
fn named(header: &mut tar::Header, path: &str, link: &str) {
    if let Some(gnu) = header.as_gnu_mut() {
        gnu.name[..path.len()].copy_from_slice(path.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
    }
}

fn layer(entries: &[Made<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let (path, link, text, mut header) = match *entry {
            Dir(path) => (path, "", "", header(EntryType::Directory, 0o755)),
            Made::File(path, text) => (path, "", text, header(EntryType::Regular, 0o644)),
            Mode(path, mode) => (path, "", "", header(EntryType::Regular, mode)),
            Link(path, to) => (path, to, "", header(EntryType::Symlink, 0o777)),
            Name(path, of) => (path, of, "", header(EntryType::Link, 0o644)),
            Fifo(path) => (path, "", "", header(EntryType::Fifo, 0o644)),
            Device(path) => (path, "", "", header(EntryType::Char, 0o644)),
        };
        named(&mut header, path, link);
        header.set_size(text.len() as u64);
        header.set_cksum();
        builder.append(&header, text.as_bytes()).expect("append");
    }
    builder.into_inner().expect("a tar file")
}

fn unpack(layers: &[Vec<u8>]) -> (tempfile::TempDir, Outcome<()>) {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::create_dir(dir.path().join("root")).expect("directory");
    fs::write(dir.path().join("outside"), "untouched").expect("write");
    let mut unpacking = Unpacking::into(&dir.path().join("root")).expect("opens");
    let done = layers.iter().try_for_each(|layer| unpacking.layer(|| Ok(layer.as_slice())));
    (dir, done)
}

/// Lists the paths below `root`, with the texts of files and the targets of links.
fn listed(dir: &tempfile::TempDir) -> Vec<String> {
    let (root, mut found) = (dir.path().join("root"), Vec::new());
    let mut next = vec![root.clone()];
    while let Some(at) = next.pop() {
        for entry in fs::read_dir(&at).expect("list").map(|e| e.expect("entry").path()) {
            let meta = entry.symlink_metadata().expect("metadata");
            let path = entry.strip_prefix(&root).expect("below").display().to_string();
            found.push(match &meta {
                _ if meta.is_dir() => format!("{path}/"),
                _ if meta.is_symlink() => {
                    format!("{path} -> {}", fs::read_link(&entry).expect("link").display())
                }
                _ => format!("{path}={}", fs::read_to_string(&entry).expect("read")),
            });
            if meta.is_dir() {
                next.push(entry);
            }
        }
    }
    found.sort();
    found
}

use Made::File as F;

#[rstest]
#[case::over(vec![vec![F("a", "1"), F("b", "1")], vec![F("b", "2")]], &["a=1", "b=2"])]
#[case::whiteout(vec![vec![F("d/a", "1"), F("d/b", "1")], vec![F("d/.wh.a", "")]], &["d/", "d/b=1"])]
#[case::whiteout_of_a_directory(vec![vec![F("d/e/a", "1")], vec![F("d/.wh.e", "")]], &["d/"])]
#[case::opaque(
    vec![vec![F("d/a", "1"), F("d/e/b", "1")], vec![F("d/c", "2"), F("d/.wh..wh..opq", "")]],
    &["d/", "d/c=2"]
)]
#[case::opaque_top(vec![vec![F("a", "1")], vec![F(".wh..wh..opq", ""), F("b", "2")]], &["b=2"])]
#[case::whiteout_and_a_new_one(vec![vec![F("a/x", "1")], vec![F(".wh.a", ""), F("a", "2")]], &["a=2"])]
#[case::whiteout_of_nothing(vec![vec![F("a", "1")], vec![F("x/y/.wh.z", ""), F(".wh.q", "")]], &["a=1"])]
#[case::other_tools_marks(vec![vec![F("a", "1")], vec![F(".wh..wh.plnk", "")]], &["a=1"])]
#[case::directory_over_a_link(vec![vec![Link("d", "/x")], vec![Dir("d"), F("d/a", "2")]], &["d/", "d/a=2"])]
#[case::file_over_a_directory(vec![vec![F("d/a", "1")], vec![F("d", "2")]], &["d=2"])]
#[case::directory_stays(vec![vec![F("d/a", "1")], vec![Dir("d")]], &["d/", "d/a=1"])]
#[case::name_of_a_lower_layer(vec![vec![F("a", "1")], vec![Name("d/b", "a")]], &["a=1", "d/", "d/b=1"])]
#[case::name_of_a_file_that_a_higher_layer_replaces(
    vec![vec![F("a", "1")], vec![Name("b", "a")], vec![F("a", "2")]],
    &["a=2", "b=1"]
)]
#[case::name_of_a_file_that_a_higher_layer_removes(
    vec![vec![F("a", "1"), Name("b", "a")], vec![F(".wh.a", "")]],
    &["b=1"]
)]
#[case::name_of_itself(vec![vec![F("a", "1")], vec![Name("a", "./a")]], &["a=1"])]
#[case::name_of_a_link(vec![vec![Link("a", "/etc/x"), Name("b", "a")]], &["a -> /etc/x", "b -> /etc/x"])]
#[case::through_an_inner_link(
    vec![vec![Dir("usr"), Dir("usr/lib"), Link("lib", "usr/lib")], vec![F("lib/a", "2")]],
    &["lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/a=2"]
)]
#[case::absolute_link_is_inner(
    vec![vec![Link("lib", "/usr/lib"), F("lib/a", "1")]],
    &["lib -> /usr/lib", "usr/", "usr/lib/", "usr/lib/a=1"]
)]
#[case::link_that_climbs_is_inner(
    vec![vec![Dir("d"), Link("d/up", "../../../.."), F("d/up/outside", "mine")]],
    &["d/", "d/up -> ../../../..", "outside=mine"]
)]
#[case::whiteout_through_a_link(
    vec![vec![Link("up", "../.."), F("outside", "1")], vec![F("up/.wh.outside", "")]],
    &["outside=1", "up -> ../.."]
)]
#[case::whiteout_below_a_link_that_stays(
    vec![vec![F("k/e/a", "1"), Link("d", "k")], vec![F("d/.wh.e", ""), F("d/e/.wh.a", "")]],
    &["d -> k", "k/", "k/e/", "k/e/a=1"]
)]
#[case::whiteout_of_a_link(vec![vec![F("k/a", "1"), Link("d", "k")], vec![F(".wh.d", "")]], &["k/", "k/a=1"])]
#[case::whiteout_of_a_link_then_below_it(
    vec![vec![F("k/a", "1"), Link("d", "k")], vec![F(".wh.d", ""), F("d/.wh.a", "")]],
    &["k/", "k/a=1"]
)]
#[case::opaque_directory_over_a_link(
    vec![
        vec![F("src/k/Makefile", "1"), Link("lib/build", "/src/k")],
        vec![Dir("lib/build"), F("lib/build/.wh..wh..opq", ""), F("lib/build/Makefile", "2")],
    ],
    &["lib/", "lib/build/", "lib/build/Makefile=2", "src/", "src/k/", "src/k/Makefile=1"]
)]
#[case::opaque_mark_before_its_directory(
    vec![vec![F("k/a", "1"), Link("d", "k")], vec![F("d/.wh..wh..opq", ""), Dir("d"), F("d/a", "2")]],
    &["d/", "d/a=2", "k/", "k/a=1"]
)]
#[case::opaque_mark_below_a_directory_over_a_link(
    vec![
        vec![F("k/e/a", "1"), Link("d", "k")],
        vec![Dir("d"), Dir("d/e"), F("d/e/.wh..wh..opq", ""), F("d/e/b", "2")],
    ],
    &["d/", "d/e/", "d/e/b=2", "k/", "k/e/", "k/e/a=1"]
)]
#[case::opaque_directory_below_a_link_that_stays(
    vec![
        vec![F("usr/lib/d/a", "1"), Link("lib", "usr/lib")],
        vec![Dir("lib/d"), F("lib/d/.wh..wh..opq", ""), F("lib/d/b", "2")],
    ],
    &["lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/d/", "usr/lib/d/a=1", "usr/lib/d/b=2"]
)]
#[case::whiteout_below_a_directory_over_a_link(
    vec![vec![F("k/a", "1"), Link("d", "k")], vec![Dir("d"), F("d/.wh.a", "")]],
    &["d/", "k/", "k/a=1"]
)]
#[case::whiteout_before_its_directory_over_a_link(
    vec![vec![F("k/a", "1"), Link("d", "k")], vec![F("d/.wh.a", ""), Dir("d"), F("d/b", "2")]],
    &["d/", "d/b=2", "k/", "k/a=1"]
)]
#[case::whiteout_before_a_directory_above_it_over_a_link(
    vec![vec![F("k/e/a", "1"), Link("d", "k")], vec![F("d/e/.wh.a", ""), Dir("d/e"), Dir("d")]],
    &["d/", "d/e/", "k/", "k/e/", "k/e/a=1"]
)]
#[case::whiteout_before_its_directory_over_a_link_that_climbs(
    vec![vec![F("a", "1"), Link("d", "../../..")], vec![F("d/.wh.a", ""), Dir("d")]],
    &["a=1", "d/"]
)]
#[case::file_before_its_directory_over_a_link(
    vec![vec![F("k/a", "1"), Link("d", "k")], vec![F("d/a", "2"), Dir("d")]],
    &["d/", "d/a=2", "k/", "k/a=1"]
)]
#[case::whiteout_before_its_directory(
    vec![vec![F("d/a", "1"), F("d/b", "1")], vec![F("d/.wh.a", ""), Dir("d")]],
    &["d/", "d/b=1"]
)]
#[case::whiteout_below_a_file(vec![vec![F("a", "1")], vec![F("a/.wh.b", "")]], &["a=1"])]
#[case::whiteout_below_a_directory_over_a_file(
    vec![vec![F("a", "1")], vec![Dir("a"), F("a/.wh.b", "")]],
    &["a/"]
)]
#[case::devices_are_left_out(vec![vec![Fifo("f"), Device("d"), F("a", "1")]], &["a=1"])]
#[case::device_over_a_file(vec![vec![F("a", "1"), F("b", "1")], vec![Device("a")]], &["b=1"])]
fn layers_lie_over_each_other(#[case] layers: Vec<Vec<Made<'_>>>, #[case] wanted: &[&str]) {
    let layers: Vec<_> = layers.iter().map(|entries| layer(entries)).collect();
    let (dir, done) = unpack(&layers);
    done.expect("unpacks");
    assert_eq!(listed(&dir), wanted);
    assert_eq!(fs::read_to_string(dir.path().join("outside")).expect("there"), "untouched");
}

#[rstest]
#[case::climbs(&[F("../outside", "x")], "climbs")]
#[case::climbs_inside(&[F("a/../../outside", "x")], "climbs")]
#[case::whiteout_climbs(&[F("../.wh.outside", "")], "climbs")]
#[case::whiteout_of_the_parent(&[F("d/.wh...", "")], "names no entry")]
#[case::whiteout_of_the_directory(&[F("d/.wh..", "")], "names no entry")]
#[case::whiteout_of_nothing(&[F("d/.wh.", "")], "names no entry")]
#[case::name_of_nothing(&[Name("a", "b")], "no file in it")]
#[case::name_of_a_directory(&[Dir("b"), Name("a", "b")], "no file in it")]
#[case::name_of_the_outside(&[Name("a", "../outside")], "climbs")]
#[case::below_a_file(&[F("a", "1"), F("a/b", "2")], "cannot be made")]
#[case::round(&[Link("a", "b"), Link("b", "a"), F("a/x", "1")], "cannot be made")]
#[case::dangling_round(&[Link("a", "/a/b"), F("a/x", "1")], "cannot be made")]
#[case::no_target(&[Link("a", "")], "no target")]
fn hostile_layers_are_refused(#[case] entries: &[Made<'_>], #[case] said: &str) {
    // In the lowest layer, and above one.
    for layers in [vec![layer(entries)], vec![layer(&[Dir("d")]), layer(entries)]] {
        let (dir, done) = unpack(&layers);
        let failure = done.expect_err("refused").failure("oci://registry.example.com/a");
        assert_eq!(failure.code(), ExitCode::Verification, "{failure}");
        assert!(failure.report().contains(said), "{}", failure.report());
        assert_eq!(fs::read_to_string(dir.path().join("outside")).expect("there"), "untouched");
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 2);
    }
}

#[test]
fn everything_is_roots_without_setuid_bits_and_of_its_time() {
    let (dir, done) = unpack(&[layer(&[Mode("su", 0o6755), Mode("secret", 0o600)])]);
    done.expect("unpacks");
    let meta = |name: &str| fs::metadata(dir.path().join("root").join(name)).expect("there");
    assert_eq!(meta("su").mode() & 0o7777, 0o755);
    assert_eq!(meta("secret").mode() & 0o7777, 0o600);
    assert_eq!(meta("su").uid(), nix::unistd::geteuid().as_raw());
    assert_eq!(meta("su").mtime(), 1_700_000_000);
}

fn compressed(layer: &[u8], kind: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match kind {
        "gz" => {
            let level = flate2::Compression::fast();
            flate2::bufread::GzEncoder::new(layer, level).read_to_end(&mut out).expect("gzip");
        }
        "xz" => {
            liblzma::bufread::XzEncoder::new(layer, 0).read_to_end(&mut out).expect("xz");
        }
        _ => out = zstd::encode_all(layer, 1).expect("zstd"),
    }
    out
}

#[rstest]
#[case("gz")]
#[case("xz")]
#[case("zst")]
fn layers_are_read_in_every_compression_and_not_when_cut_off(#[case] kind: &str) {
    let packed = compressed(&layer(&[F("a", "1")]), kind);
    let (dir, done) = unpack(std::slice::from_ref(&packed));
    done.expect("unpacks");
    assert_eq!(listed(&dir), ["a=1"]);
    let (_dir, done) = unpack(&[packed[..packed.len() - 6].to_vec()]);
    let failure = done.expect_err("refused").failure("here");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains("cut off or damaged"), "{failure}");
}

#[test]
fn a_sparse_file_is_refused() {
    let mut header = header(EntryType::GNUSparse, 0o644);
    named(&mut header, "a", "");
    header.set_size(0);
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, &b""[..]).expect("append");
    let (_dir, done) = unpack(&[builder.into_inner().expect("a tar file")]);
    let text = done.expect_err("refused").failure("here").report();
    assert!(text.contains("sparse") || text.contains("damaged"), "{text}");
}

#[rstest]
#[case::bytes(Limits { entries: 10, bytes: 1 << 20, ..LIMITS }, "more than 1 MiB")]
#[case::entries(Limits { entries: 1, bytes: 8 << 20, ..LIMITS }, "more than 1 entries")]
fn a_layer_bomb_ends_at_the_limit(#[case] limits: Limits, #[case] said: &str) {
    let zeros = "\0".repeat(1 << 20);
    let bomb = compressed(&layer(&[F("a", &zeros), F("b", &zeros)]), "gz");
    assert!(bomb.len() < 32 << 10, "{}", bomb.len());
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut unpacking = Unpacking::within(dir.path(), limits).expect("opens");
    let failure = unpacking.layer(|| Ok(bomb.as_slice())).expect_err("refused").failure("here");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(failure.to_string().contains(said), "{failure}");
}

#[test]
fn limits_hold_for_all_layers_together() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let limits = Limits { entries: 3, bytes: 1 << 20, ..LIMITS };
    let mut unpacking = Unpacking::within(dir.path(), limits).expect("opens");
    let one = layer(&[F("a", "1"), F("b", "1")]);
    unpacking.layer(|| Ok(one.as_slice())).expect("within");
    unpacking.layer(|| Ok(one.as_slice())).expect_err("four entries");
}

// The bound is small here: thousands of directories take a slow disk minutes to remove.
#[rstest]
#[case::both_layers(24, &[true, true])]
#[case::one_layer(23, &[true, false])]
#[case::just_one_layer(12, &[true, false])]
#[case::no_layer(11, &[false])]
fn directories_without_an_entry_are_bounded(#[case] implied: u64, #[case] fits: &[bool]) {
    // Each makes four times three directories, and one that has an entry.
    let of = |from: u32| {
        let paths: Vec<String> = (from..from + 4).map(|n| format!("{n}/d/e/f")).collect();
        let entries = paths.iter().map(|path| F(path, "")).chain([Dir("named"), F("named/f", "")]);
        layer(&entries.collect::<Vec<_>>())
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let limits = Limits { implied, ..LIMITS };
    let mut unpacking = Unpacking::within(dir.path(), limits).expect("opens");
    for (layer, fits) in [of(0), of(4)].iter().zip(fits) {
        let done = unpacking.layer(|| Ok(layer.as_slice()));
        assert_eq!(done.is_ok(), *fits);
        if let Err(refusal) = done {
            let failure = refusal.failure("here");
            assert_eq!(failure.code(), ExitCode::Verification);
            let said = format!("more than {implied} directories");
            assert!(failure.to_string().contains(&said), "{failure}");
        }
    }
}

/// A link with contents, which are skipped.
fn link_of(size: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = header(EntryType::Symlink, 0o777);
    named(&mut header, "link", "target");
    header.set_size(size as u64);
    header.set_cksum();
    builder.append(&header, vec![0; size].as_slice()).expect("append");
    builder.into_inner().expect("a tar file")
}

#[test]
fn contents_of_every_kind_of_entry_are_counted() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let limits = Limits { entries: 10, bytes: 1 << 20, ..LIMITS };
    let mut unpacking = Unpacking::within(dir.path(), limits).expect("opens");
    let bomb = link_of(2 << 20);
    let failure = unpacking.layer(|| Ok(bomb.as_slice())).expect_err("refused").failure("here");
    assert!(failure.to_string().contains("more than 1 MiB"), "{failure}");
}

#[test]
fn bytes_after_the_end_of_layers_are_bounded_for_all_together() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut unpacking = Unpacking::into(dir.path()).expect("opens");
    unpacking.most = 8 << 20;
    let mut padded = layer(&[F("a", "1")]);
    padded.resize(3 << 20, 0);
    let padded = compressed(&padded, "gz");
    for _ in 0..2 {
        unpacking.layer(|| Ok(padded.as_slice())).expect("within");
    }
    let refusal = unpacking.layer(|| Ok(padded.as_slice())).expect_err("9 MiB");
    let report = refusal.failure("here").report();
    assert!(report.contains("more than 8 MiB"), "{report}");
}
