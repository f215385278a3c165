//! Processes and files of this test.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longshore_debian::compression::{SUBCOMMAND, decompress_by};
use longshore_tests::processes::{ChildProcess, children};
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
    let is_it =
        |child: &ChildProcess| child.is_ended || child.words.iter().any(|word| word == SUBCOMMAND);
    children(parent).into_iter().filter(is_it).map(|child| child.pid).collect()
}
