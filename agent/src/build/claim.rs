//! Temporary directories that are somebody's, and the removal of those that are nobody's.
//!
//! A process that is killed leaves its directory behind, a gigabyte of it after a build. Each is
//! locked by its owner; the kernel gives the lock back when the owner dies, and the next who wants
//! a directory removes what is no longer locked.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

use crate::failure::Failure;
use crate::store::{Store, UNFINISHED, lock, write_failure};

/// What every directory's name begins with, before what it is for.
const PREFIX: &str = "work-";

/// A temporary directory of the store, removed when dropped.
#[derive(Debug)]
pub(crate) struct Claimed {
    dir: TempDir,
    _held: Flock<File>,
}

impl Claimed {
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Removes it now, and says what went wrong.
    pub(crate) fn close(self) -> io::Result<()> {
        self.dir.close()
    }

    /// It was renamed to where it belongs: there is nothing left to remove.
    pub(crate) fn moved(self) {
        let _ = self.dir.keep();
    }
}

/// A new directory for `purpose`; first removes what dead processes left.
///
/// # Errors
/// Exit code 15 where the store cannot be written.
pub(crate) fn claim(store: &Store, purpose: &str) -> Result<Claimed, Failure> {
    let tmp = store.dir("tmp");
    let make = || -> io::Result<Claimed> {
        // Nobody sees a directory that is made but not locked yet.
        let _turn = lock(File::open(&tmp)?, FlockArg::LockExclusive)?;
        sweep(&tmp)?;
        // Its owner's alone, be the store's root what it may: kernel code is made in it.
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{purpose}-"))
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(&tmp)?;
        let held = lock(File::open(dir.path())?, FlockArg::LockExclusiveNonblock)?;
        Ok(Claimed { dir, _held: held })
    };
    make().map_err(|e| write_failure(&tmp, e))
}

fn sweep(tmp: &Path) -> io::Result<()> {
    for entry in fs::read_dir(tmp)? {
        let entry = entry?;
        let name = entry.file_name();
        let (name, path) = (name.to_string_lossy(), entry.path());
        let remove = match entry.file_type()? {
            kind if kind.is_dir() && name.starts_with(PREFIX) => fs::remove_dir_all,
            kind if kind.is_file() && name.starts_with(UNFINISHED) => fs::remove_file,
            _ => continue,
        };
        // A download may land, or be given up, at this moment.
        let Ok(file) = File::open(&path) else { continue };
        if lock(file, FlockArg::LockExclusiveNonblock).is_ok() {
            tracing::info!(path = %path.display(), "removing what an ended process left");
            if let Err(error) = remove(&path) {
                tracing::warn!(path = %path.display(), "removing: {error}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(store: &Store) -> usize {
        fs::read_dir(store.dir("tmp")).expect("list").count()
    }

    #[test]
    fn what_the_dead_left_is_removed_and_what_is_held_stays() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path()).expect("store opens");
        let held = claim(&store, "build").expect("claim");
        fs::create_dir_all(store.dir("tmp").join("work-build-dead/sub")).expect("directory");
        fs::write(store.dir("tmp").join("blob-dead"), "").expect("write");
        let download = store.blob_writer().expect("writer");
        let second = claim(&store, "root").expect("claim");
        assert_eq!(names(&store), 3, "held, second and the download that goes on");
        assert!(held.path().is_dir());
        second.close().expect("close");
        drop(held);
        assert_eq!(names(&store), 1);
        drop(download);
        assert_eq!(names(&store), 0);
    }
}
