//! Processes and files of this test.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longshore_debian::compression::{SUBCOMMAND, decompress_by};
use longshore_tests::scene::{longshore, names};

/// Permit of the only test that starts processes and counts them.
static COUNTED: Mutex<()> = Mutex::new(());

/// Decompression by the program; at its end nothing of it may be left.
pub(crate) struct Counted {
    files: usize,
    _one: MutexGuard<'static, ()>,
}

impl Counted {
    pub(crate) fn begin() -> Self {
        let one = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
        decompress_by(longshore());
        Self { files: open_files(), _one: one }
    }

    /// Checks that the processes that decompress are gone, and their pipes.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(decompressing(std::process::id()), [0; 0]);
        assert_eq!(open_files(), self.files);
    }
}

fn open_files() -> usize {
    names(Path::new("/proc/self/fd")).len()
}

/// Returns the children of `parent` that decompress, and those that have ended and are not waited for.
pub(crate) fn decompressing(parent: u32) -> Vec<u32> {
    let pids = names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    let is_it = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = match stat.rsplit_once(") ") {
            Some((_, rest)) => rest.split(' ').collect(),
            None => return false,
        };
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let named = line.split(|byte| *byte == 0).any(|word| word == SUBCOMMAND.as_bytes());
        fields[1] == parent.to_string() && (named || fields[0] == "Z")
    };
    pids.filter(is_it).collect()
}
