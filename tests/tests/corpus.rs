//! Runs the fuzz corpus through its readers (docs/internals/fuzzing.md), so that fixed faults stay fixed: each file in a
//! process of its own, with the limits of time and memory.

#[allow(unreachable_pub, reason = "a library, where it is fuzzed")]
#[path = "../../fuzz/src/lib.rs"]
mod readers;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use longshore_tests::scene::disk;

/// Time for a file and its beginnings together.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns the files of a target's corpus, sorted.
fn corpus(target: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no corpus");
    files
}

/// Has a file read by a process with a limit of memory, and ends that after `limit`.
fn read_within(limit: Duration, target: &str, file: &Path) -> Output {
    let mut reader = Command::new(env!("CARGO_BIN_EXE_corpus-reader"));
    let reader = reader.arg(target).arg(file).stdin(Stdio::null());
    let mut child = reader.stderr(Stdio::piped()).spawn().expect("the reader starts");
    let begun = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begun.elapsed() >= limit {
            child.kill().expect("killed");
        }
        thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().expect("its output")
}

/// Returns the end of a process, and its last line.
fn ended(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    format!("{}: {}", output.status, text.trim_end())
}

#[test]
fn no_file_of_the_corpus_and_no_beginning_of_one_takes_ten_seconds_or_a_gibibyte() {
    for (target, _) in readers::TARGETS {
        for file in corpus(target) {
            let output = read_within(LIMIT, target, &file);
            assert!(output.status.success(), "{}", ended(&output));
            let last = format!("{target}: 8 eighths of {}", file.display());
            assert!(ended(&output).contains(&last), "{}", ended(&output));
        }
    }
}

#[test]
fn a_reader_that_takes_more_is_found() {
    let file = &corpus("deb")[0];
    let output = read_within(LIMIT, "takes-memory", file);
    assert!(ended(&output).contains("memory allocation of 1073741824 bytes failed"), "{output:?}");
    assert_eq!(output.status.signal(), Some(6), "SIGABRT");
    let output = read_within(Duration::from_secs(1), "takes-long", file);
    assert_eq!(output.status.signal(), Some(9), "{}", ended(&output));
}

#[test]
fn what_is_whole_is_read() {
    use longshore_debian::deb;
    use longshore_sources::runfile;
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
