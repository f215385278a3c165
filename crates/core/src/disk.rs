//! Syncs files to disk, with a deadline.
//!
//! fsync(2) and syncfs(2) on a disk that is gone sleep uninterruptibly in the kernel. So they run
//! on a thread of their own, which is left behind where they hang: the caller reports that and
//! continues to its end (docs/reference/deadlines.md).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::syncfs;

use crate::bounded_call;

/// Sync operation on a file, or on its file system.
type Sync = fn(&File) -> io::Result<()>;

/// The disk under the store or the record, which is waited for as long as `disk-deadline`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    deadline: Duration,
}

impl Disk {
    /// A disk that is waited for as long as `deadline`.
    pub const fn within(deadline: Duration) -> Self {
        Self { deadline }
    }

    /// Waits until the file, or directory, is on the disk.
    ///
    /// # Errors
    /// The kernel's error; a timeout where the disk takes longer than its deadline.
    pub fn sync(self, file: &File) -> io::Result<()> {
        self.wait(file, File::sync_all)?;
        #[cfg(any(test, feature = "testing"))]
        observed(file);
        Ok(())
    }

    /// Waits until the whole file system of the file is on the disk.
    ///
    /// # Errors
    /// As [`Disk::sync`].
    pub fn sync_whole(self, file: &File) -> io::Result<()> {
        self.wait(file, |file| Ok(syncfs(file)?))
    }

    fn wait(self, file: &File, sync: Sync) -> io::Result<()> {
        // A tmpfs is never written to disk: a thread would cost more than the call.
        if fstatfs(file).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC) {
            return sync(file);
        }
        let file = Arc::new(file.try_clone()?);
        let its = Arc::clone(&file);
        match bounded_call::in_time("sync", self.deadline, move || sync(&its)) {
            // If no thread can be started, the sync is made here instead.
            Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => sync(&file),
            Some(synced) => synced,
            None => Err(self.unanswered()),
        }
    }

    fn unanswered(self) -> io::Error {
        let s = self.deadline.as_secs_f64();
        let why = format!("the disk has not written it within {s} s (disk-deadline)");
        io::Error::new(ErrorKind::TimedOut, why)
    }
}

/// Observer of a test, which is told each file and directory that is on the disk now.
#[cfg(any(test, feature = "testing"))]
pub type Observer = Box<dyn FnMut(&File)>;

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static OBSERVER: std::cell::RefCell<Option<Observer>> = const { std::cell::RefCell::new(None) };
}

/// Sets, or removes, the observer of this thread's calls of [`Disk::sync`].
#[cfg(any(test, feature = "testing"))]
pub fn observe_syncs(observer: Option<Observer>) {
    OBSERVER.with_borrow_mut(|current| *current = observer);
}

#[cfg(any(test, feature = "testing"))]
fn observed(file: &File) {
    OBSERVER.with_borrow_mut(|observer| {
        if let Some(observer) = observer {
            observer(file);
        }
    });
}

/// The default of `disk-deadline`, for tests: elsewhere it comes from the settings.
#[cfg(any(test, feature = "testing"))]
impl Default for Disk {
    fn default() -> Self {
        Self::within(crate::deadlines::Deadlines::default().disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    /// Opens a file that is not on a tmpfs: a test's store may be.
    fn on_disk() -> File {
        let file = File::open("/proc/self/status").expect("a file of no tmpfs");
        assert_ne!(fstatfs(&file).expect("fstatfs").filesystem_type(), TMPFS_MAGIC);
        file
    }

    fn hangs(_: &File) -> io::Result<()> {
        std::thread::park();
        Ok(())
    }

    #[test]
    fn a_disk_that_does_not_answer_is_given_up_and_said() {
        let disk = Disk::within(Duration::from_millis(20));
        let error = disk.wait(&on_disk(), hangs).expect_err("it hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the disk has not written it within 0.02 s (disk-deadline)");
    }

    #[test]
    fn two_stores_keep_their_deadlines_apart() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let open = |name: &str, ms| {
            let disk = Disk::within(Duration::from_millis(ms));
            Store::open(&dir.path().join(name), disk).expect("opens")
        };
        let (quick, slow) = (open("quick", 20), open("slow", 40));
        for (store, said) in [
            (slow.clone(), "0.04 s"),
            (quick.clone(), "0.02 s"),
            (slow, "0.04 s"),
            (quick.on(Disk::within(Duration::from_millis(30))), "0.03 s"),
        ] {
            let error = store.disk().wait(&on_disk(), hangs).expect_err("it hangs");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn what_the_kernel_says_comes_through() {
        fn full(_: &File) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(28))
        }
        let error = Disk::default().wait(&on_disk(), full).expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let file = tempfile::tempfile().expect("a file");
        Disk::default().sync(&file).expect("synced");
        Disk::default().sync_whole(&file).expect("synced");
    }
}
