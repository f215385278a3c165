//! Runs the fuzz corpus through its readers (docs/fuzzing.md), so that fixed faults stay fixed.

#[allow(unreachable_pub, reason = "a library, where it is fuzzed")]
#[path = "../../fuzz/src/lib.rs"]
mod readers;

use std::fs;
use std::path::{Path, PathBuf};

use longshore_tests::scene::disk;

/// Returns the files of a target's corpus, sorted.
fn corpus(target: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no corpus");
    files
}

#[test]
fn no_file_of_the_corpus_is_too_much() {
    for (target, read) in readers::TARGETS {
        for file in corpus(target) {
            eprintln!("{}", file.display());
            read(&fs::read(&file).expect("read"));
        }
    }
}

#[test]
fn nor_is_the_beginning_of_one() {
    for (target, read) in readers::TARGETS {
        for file in corpus(target) {
            let bytes = fs::read(&file).expect("read");
            for cut in 0..8 {
                eprintln!("{}, {cut} eighths", file.display());
                read(&bytes[..bytes.len() * cut / 8]);
            }
        }
    }
}

#[test]
fn what_is_whole_is_read() {
    use longshore_build::source::runfile;
    use longshore_debian::deb;
    let dir = tempfile::tempdir().expect("dir");
    let store = longshore_core::store::Store::open(dir.path(), disk()).expect("store");
    for name in ["tar", "gzip", "xz", "zstd"] {
        let bytes = fs::read(corpus("run_file")[0].with_file_name(name)).expect("read");
        let found = runfile::inspect(name, &mut bytes.as_slice(), &store);
        assert_eq!(found.expect("a driver").version, "535.1.2", "{name}");
    }
    for name in ["metapackage", "plain-tar", "gnu", "pax", "gzip", "zstd"] {
        let bytes = fs::read(corpus("deb")[0].with_file_name(name)).expect("read");
        deb::list(name, bytes.as_slice()).expect("a package");
    }
}
