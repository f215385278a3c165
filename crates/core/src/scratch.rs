//! Locked scratch directories, and removal of those whose owner died.
//!
//! A killed process leaves its directory behind, a gigabyte of it after a build. Each directory is
//! locked by its owner; the kernel releases the lock when the owner dies, and the next process that
//! claims a directory removes the unlocked ones.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::Flock;
use tempfile::TempDir;

use crate::durable::write_failure;
use crate::failure::Failure;
use crate::locks;
use crate::store::{Store, UNFINISHED};

/// Prefix of every scratch directory's name, before its purpose.
const PREFIX: &str = "work-";

/// A temporary directory of the store, removed when dropped.
#[derive(Debug)]
pub struct ScratchDir {
    dir: TempDir,
    _held: Flock<File>,
}

impl ScratchDir {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Removes the directory now, and reports a failure to do so.
    pub fn close(self) -> io::Result<()> {
        self.dir.close()
    }

    /// Removes the directory, unless it is still shared; a leftover is removed by a later claim.
    pub fn remove(this: Arc<Self>) {
        let path = this.path().to_path_buf();
        if let Some(Err(error)) = Arc::into_inner(this).map(Self::close) {
            tracing::warn!("removing {}: {error}", path.display());
        }
    }

    /// Marks the directory as renamed to its final place: nothing is left to remove.
    pub fn moved(self) {
        let _ = self.dir.keep();
    }
}

/// Creates a scratch directory for `purpose`, after removing those of dead processes.
///
/// # Errors
/// Exit code 15 where the store cannot be written.
pub fn claim(store: &Store, purpose: &str) -> Result<ScratchDir, Failure> {
    let tmp = store.dir("tmp");
    let prefix = format!("{PREFIX}{purpose}-");
    // A directory that other users may open is one they may lock.
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).permissions(Permissions::from_mode(0o700));
    let claimed = sweep(&tmp).and_then(|()| locks::made_locked(|| builder.tempdir_in(&tmp)));
    let (dir, held) = claimed.map_err(|e| write_failure(&tmp, e))?;
    Ok(ScratchDir { dir, _held: held })
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
        // Another process may rename or remove this entry right now.
        let Ok(file) = File::open(&path) else { continue };
        // Locked during removal: the owner of a new directory then creates another
        // (locks::made_locked).
        let Some(held) = locks::try_alone(file)? else { continue };
        if !locks::is_at(&held, &path)? {
            continue;
        }
        tracing::info!(path = %path.display(), "removing the scratch directory of a dead process");
        match remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), "removing: {error}");
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;

    fn names(store: &Store) -> usize {
        fs::read_dir(store.dir("tmp")).expect("list").count()
    }

    #[test]
    fn a_stranger_who_locks_the_directory_of_scratch_directories_keeps_nobody_from_one() {
        let dir = crate::testing::for_all();
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        crate::testing::loosen(dir.path(), &store.dir("tmp"));
        let _holder = crate::testing::Holder::start(&store.dir("tmp"));
        let claimed = claim(&store, "build").expect("claim");
        let mode = fs::metadata(claimed.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "no other user may open, and so lock, it");
    }

    /// Concurrent claims and sweeps: no owner ever loses its directory.
    #[test]
    fn what_is_claimed_stays_while_others_sweep() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (claimed, blob) =
                            (claim(&store, "build").expect("claim"), store.put(b"x").expect("put"));
                        assert!(claimed.path().is_dir() && store.has_blob(&blob));
                    }
                });
            }
        });
        assert_eq!(names(&store), 0);
    }

    #[test]
    fn what_the_dead_left_is_removed_and_what_is_held_stays() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
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
