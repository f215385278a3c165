//! What is written is on the disk, or the disk is given up.
//!
//! fsync(2) and syncfs(2) on a disk that is gone sleep where no signal reaches them, and nothing takes
//! them out of the kernel. So they are made by a thread of their own, which is left behind where they
//! do not come back: whoever waits says so, and goes on to its end (docs/deadlines.md).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::syncfs;

use crate::deadlines::Deadlines;
use crate::input;

/// How long a disk may take to write what it was given, in milliseconds: one for the whole process, since
/// whatever is written anywhere waits for it. As [`Deadlines`] has it until somebody says otherwise; 0
/// until then.
///
/// [`Deadlines`]: crate::deadlines::Deadlines
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// What is done to a file, or the file system that it lies on.
type Sync = fn(&File) -> io::Result<()>;

/// From now on a disk may take so long.
pub(crate) fn give(limit: Duration) {
    LIMIT.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn limit() -> Duration {
    match LIMIT.load(Ordering::Relaxed) {
        0 => Deadlines::default().disk,
        given => Duration::from_millis(given),
    }
}

/// Waits until the file, or directory, is on the disk.
///
/// # Errors
/// What the kernel says; a timeout where the disk takes longer than `disk-deadline`.
pub fn sync(file: &File) -> io::Result<()> {
    within(limit(), file, File::sync_all)
}

/// Waits until the whole file system that the file lies on is on the disk.
///
/// # Errors
/// As [`sync`].
pub fn sync_whole(file: &File) -> io::Result<()> {
    within(limit(), file, |file| Ok(syncfs(file)?))
}

fn within(limit: Duration, file: &File, sync: Sync) -> io::Result<()> {
    // What lies in memory is written nowhere: a thread would cost more than the call.
    if fstatfs(file).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC) {
        return sync(file);
    }
    let file = Arc::new(file.try_clone()?);
    let its = Arc::clone(&file);
    match input::in_time("sync", limit, move || sync(&its)) {
        // No room for one more thread is no reason to write nothing.
        Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => sync(&file),
        Some(synced) => synced,
        None => {
            let why = format!(
                "the disk has not written it within {} s (disk-deadline)",
                limit.as_secs_f64()
            );
            Err(io::Error::new(ErrorKind::TimedOut, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The store of a test may lie in memory; this does not.
    fn on_disk() -> File {
        let file = File::open("/proc/self/status").expect("a file of no tmpfs");
        assert_ne!(fstatfs(&file).expect("fstatfs").filesystem_type(), TMPFS_MAGIC);
        file
    }

    #[test]
    fn a_disk_that_does_not_answer_is_given_up_and_said() {
        fn hangs(_: &File) -> io::Result<()> {
            std::thread::park();
            Ok(())
        }
        let error = within(Duration::from_millis(20), &on_disk(), hangs).expect_err("it hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the disk has not written it within 0.02 s (disk-deadline)");
    }

    #[test]
    fn what_the_kernel_says_comes_through() {
        fn full(_: &File) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(28))
        }
        let error = within(limit(), &on_disk(), full).expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let file = tempfile::tempfile().expect("a file");
        sync(&file).expect("synced");
        sync_whole(&file).expect("synced");
    }
}
