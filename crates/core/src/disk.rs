//! Syncs files to disk, with a deadline.
//!
//! fsync(2) and syncfs(2) on a disk that is gone sleep uninterruptibly in the kernel. So they run
//! on a thread of their own, which is left behind where they hang: the caller reports that and
//! continues to its end (docs/deadlines.md).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::syncfs;

use crate::bounded_call;
use crate::deadlines::Deadlines;

/// `disk-deadline` in milliseconds: one for the whole process, because every write waits for it. 0
/// until [`give`] sets it; then the default of [`Deadlines`] applies.
///
/// [`Deadlines`]: crate::deadlines::Deadlines
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// Sync operation on a file, or on its file system.
type Sync = fn(&File) -> io::Result<()>;

/// Sets `disk-deadline` from now on.
pub fn give(limit: Duration) {
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
/// The kernel's error; a timeout where the disk takes longer than `disk-deadline`.
pub fn sync(file: &File) -> io::Result<()> {
    within(limit(), file, File::sync_all)
}

/// Waits until the whole file system of the file is on the disk.
///
/// # Errors
/// As [`sync`].
pub fn sync_whole(file: &File) -> io::Result<()> {
    within(limit(), file, |file| Ok(syncfs(file)?))
}

fn within(limit: Duration, file: &File, sync: Sync) -> io::Result<()> {
    // A tmpfs is never written to disk: a thread would cost more than the call.
    if fstatfs(file).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC) {
        return sync(file);
    }
    let file = Arc::new(file.try_clone()?);
    let its = Arc::clone(&file);
    match bounded_call::in_time("sync", limit, move || sync(&its)) {
        // If no thread can be started, the sync is made here instead.
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

    /// Opens a file that is not on a tmpfs: a test's store may be.
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
