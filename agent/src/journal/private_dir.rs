//! Directory that only root can write to, and the files in it: opened without following a link, and
//! not trusted if another user can have written them.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, UnlinkatFlags, unlinkat};

use longshore_core::disk::Disk;
use longshore_core::root::reopen;
use longshore_host::values::DirId;

const OWNER_ALONE: u32 = 0o700;
/// Permission bits that let other users write.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// Reason that a file or directory is not trusted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotOurs(String);

impl NotOurs {
    /// True if an error has this cause.
    pub(crate) fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|cause| cause.is::<Self>())
    }
}

/// A directory that only root, or the user of this process, can write to.
#[derive(Debug)]
pub(crate) struct PrivateDir {
    path: PathBuf,
    dir: File,
}

impl PrivateDir {
    /// Opens the directory, makes it if it is missing, and removes other users' permissions.
    ///
    /// # Errors
    /// The kernel's error; [`NotOurs`] if it has another owner, or others can have written there.
    pub(crate) fn make(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(OWNER_ALONE).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let dir = Self::open(path)?;
        if dir.dir.metadata()?.mode() & 0o077 != 0 {
            dir.dir.set_permissions(Permissions::from_mode(OWNER_ALONE))?;
        }
        Ok(dir)
    }

    /// Opens the directory, which must exist.
    ///
    /// # Errors
    /// Like [`PrivateDir::make`].
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // The error of opening a link would only be that it is no directory.
        if fs::symlink_metadata(path)?.is_symlink() {
            return Err(io::Error::other("it is a symbolic link"));
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let dir = File::from(openat(AT_FDCWD, path, flags, Mode::empty())?);
        check_owner(&dir.metadata()?)?;
        Ok(Self { path: path.to_path_buf(), dir })
    }

    /// Returns the path it was opened at.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory's device and inode.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) fn id(&self) -> io::Result<DirId> {
        self.dir.metadata().map(|found| (found.dev(), found.ino()))
    }

    /// Reads a file of at most `most` bytes; None if there is none. Never blocks: refuses a pipe, a
    /// socket or a link.
    ///
    /// # Errors
    /// The kernel's error; [`NotOurs`] if others can have written it, or it has a second name.
    pub(crate) fn read(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Err(nix::errno::Errno::ENOENT) => return Ok(None),
            found => File::from(found?),
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        check_owner(&found)?;
        // Zero names: it was replaced since it was opened.
        if found.nlink() > 1 {
            return Err(not_ours(format!("it has {} names (hard links)", found.nlink())));
        }
        let mut bytes = Vec::new();
        reopen(&file)?.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::other("it is far too large"));
        }
        Ok(Some(bytes))
    }

    /// Creates a file, mode 0600 whatever the umask; fails if the name is taken, and follows no
    /// link.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) fn create(&self, name: &str) -> io::Result<File> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(file)
    }

    /// Removes a file; a missing file is no error.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Renames a file, replacing one that has the new name.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(self.dir.as_fd(), from, self.dir.as_fd(), to)?)
    }

    /// Syncs the directory's names to `disk`.
    ///
    /// # Errors
    /// Like [`Disk::sync`].
    pub(crate) fn sync(&self, disk: Disk) -> io::Result<()> {
        disk.sync(&self.dir)
    }
}

impl AsRawFd for PrivateDir {
    fn as_raw_fd(&self) -> RawFd {
        self.dir.as_raw_fd()
    }
}

/// Refuses a file or directory that another user owns or can write.
fn check_owner(found: &Metadata) -> io::Result<()> {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != 0 && owner != Uid::effective().as_raw() {
        return Err(not_ours(format!("it belongs to user {owner}")));
    }
    if mode & WRITTEN_BY_OTHERS != 0 {
        return Err(not_ours(format!("others can write to it (mode {mode:04o})")));
    }
    Ok(())
}

fn not_ours(why: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, NotOurs(why))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    fn scene() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        (dir, path)
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_directory_made_by_others_is_tightened_and_files_are_their_owners_alone() {
        let (_dir, path) = scene();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let dir = PrivateDir::make(&path).unwrap();
        drop(dir.create("file").unwrap());
        assert_eq!((mode(&path), mode(&path.join("file"))), (0o700, 0o600));
    }

    #[rstest]
    #[case(0o777, 0, "others can write to it (mode 0777)")]
    #[case(0o1777, 0, "others can write to it (mode 1777)")]
    #[case(0o720, 0, "others can write to it (mode 0720)")]
    #[case(0o700, 4711, "it belongs to user 4711")]
    fn what_others_can_have_written_is_not_believed(
        #[case] bits: u32,
        #[case] owner: u32,
        #[case] why: &str,
    ) {
        let (_dir, path) = scene();
        let dir = PrivateDir::make(&path).unwrap();
        drop(dir.create("file").unwrap());
        for what in [path.join("file"), path.clone()] {
            std::os::unix::fs::chown(&what, Some(owner), None).unwrap();
            fs::set_permissions(&what, Permissions::from_mode(bits)).unwrap();
        }
        for refused in [dir.read("file", 10).unwrap_err(), PrivateDir::make(&path).unwrap_err()] {
            assert!(NotOurs::is_cause_of(&refused), "{refused}");
            assert_eq!(refused.to_string(), why);
        }
        assert_eq!(mode(&path), bits, "it was left alone");
    }

    #[test]
    fn no_link_is_followed() {
        let (root, path) = scene();
        let dir = PrivateDir::make(&path).unwrap();
        let secret = root.path().join("secret");
        fs::write(&secret, "text").unwrap();
        symlink(&secret, path.join("link")).unwrap();
        fs::hard_link(&secret, path.join("second")).unwrap();
        assert!(dir.read("link", 10).is_err() && dir.read("second", 10).is_err());
        assert!(dir.create("link").is_err());
        symlink(&path, root.path().join("way")).unwrap();
        assert!(PrivateDir::make(&root.path().join("way")).is_err());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "text");
    }
}
