//! Reads one input of a fuzz target with a limit of memory, for tests/tests/corpus.rs:
//!
//! ```text
//! corpus-reader TARGET FILE
//! ```
//!
//! An allocation beyond the limit aborts the process. The file and its beginnings, cut off after each eighth,
//! are read one after the other.

#[allow(unreachable_pub, reason = "a library, where it is fuzzed")]
#[path = "../fuzz/src/lib.rs"]
mod readers;

use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};

/// Memory of the process, as its address space, with the program itself (docs/internals/fuzzing.md).
const GIBIBYTE: u64 = 1 << 30;

/// Readers that a limit has to end: they show that it holds.
const CONTROLS: [readers::Target; 2] = [("takes-memory", takes_memory), ("takes-long", takes_long)];

fn takes_memory(_: &[u8]) {
    std::hint::black_box(vec![1_u8; 1 << 30]);
}

fn takes_long(_: &[u8]) {
    std::thread::sleep(Duration::from_secs(3600));
}

#[allow(clippy::print_stderr, reason = "the last line names the input that was too much")]
fn main() {
    setrlimit(Resource::RLIMIT_AS, GIBIBYTE, GIBIBYTE).expect("a limit");
    let mut words = std::env::args().skip(1);
    let (target, file) = (words.next().expect("a target"), words.next().expect("a file"));
    let mut all = readers::TARGETS.iter().chain(&CONTROLS);
    let (_, read) = all.find(|(name, _)| *name == target).expect("a target of this name");
    let bytes = std::fs::read(&file).expect("read");
    for eighths in 0..=8 {
        eprintln!("{target}: {eighths} eighths of {file}");
        read(&bytes[..bytes.len() * eighths / 8]);
    }
}
