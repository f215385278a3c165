//! A directory taken as the root of a file system: a captured tree, `/proc/1/root`, or `/`.
//!
//! Absolute symlinks and `..` resolve inside it (openat2(2), `RESOLVE_IN_ROOT`, Linux 5.6), so a
//! tree's `/lib -> /usr/lib` is the tree's own, and a hostile link leads nowhere else.

mod regular;
mod resolved_name;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat};
use nix::sys::stat::Mode;

pub use regular::{open_regular, read_up_to, reopen};
pub use resolved_name::ResolvedName;

/// Size limit of files that facts are read from; a larger one is an error.
const LARGEST: u64 = 64 << 20;
/// Number of attempts at an open that the kernel says to repeat.
const ATTEMPTS: usize = 32;

/// A directory taken as the root of a file system.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the directory `path`.
    ///
    /// # Errors
    /// The error of open(2), with the path.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = open(path, flags, Mode::empty()).map_err(|e| at(path, e.into()))?;
        Ok(Self { dir, path: path.to_path_buf() })
    }

    /// The path it was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of `inner` as seen from outside, for messages.
    pub fn display(&self, inner: impl AsRef<Path>) -> PathBuf {
        self.path.join(inner.as_ref().strip_prefix("/").unwrap_or(inner.as_ref()))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The error of openat2(2), with the path.
    pub fn file(&self, inner: impl AsRef<Path>) -> io::Result<File> {
        // A FIFO in a foreign tree must not block its reader.
        self.resolve(inner.as_ref(), OFlag::O_RDONLY | OFlag::O_NONBLOCK).map(File::from)
    }

    /// Reads a file of at most 64 MiB.
    ///
    /// # Errors
    /// The error of the kernel, with the path; a larger file is invalid data.
    pub fn read(&self, inner: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        /// Buffer size that fits most files of /proc and /sys; larger ones report their size.
        const SMALL: usize = 4096;
        let inner = inner.as_ref();
        let mut bytes = Vec::with_capacity(SMALL);
        let file = self.file(inner)?;
        let read = |bytes: &mut Vec<u8>| {
            (&file).take(SMALL as u64).read_to_end(bytes)?;
            if bytes.len() == SMALL {
                let size = file.metadata()?.len().min(LARGEST);
                bytes.reserve(usize::try_from(size).unwrap_or(0));
                (&file).take(LARGEST + 1 - SMALL as u64).read_to_end(bytes)?;
            }
            Ok(())
        };
        read(&mut bytes).map_err(|e| at(&self.display(inner), e))?;
        if bytes.len() as u64 > LARGEST {
            let error = io::Error::new(io::ErrorKind::InvalidData, "larger than 64 MiB");
            return Err(at(&self.display(inner), error));
        }
        Ok(bytes)
    }

    /// Reads a file as text; bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn read_to_string(&self, inner: impl AsRef<Path>) -> io::Result<String> {
        // Valid UTF-8 is not copied.
        self.read(inner).map(|bytes| {
            String::from_utf8(bytes)
                .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
        })
    }

    /// The names in a directory, sorted, without `.` and `..`.
    ///
    /// # Errors
    /// The error of the kernel, with the path.
    pub fn read_dir(&self, inner: impl AsRef<Path>) -> io::Result<Vec<String>> {
        self.names(inner.as_ref(), usize::MAX)
    }

    /// As [`Root::read_dir`], of a directory that others may fill: reads at most `most` names.
    ///
    /// # Errors
    /// As [`Root::read_dir`]; invalid data for a directory with more names.
    pub fn read_small_dir(&self, inner: impl AsRef<Path>, most: usize) -> io::Result<Vec<String>> {
        let inner = inner.as_ref();
        let names = self.names(inner, most.saturating_add(1))?;
        if names.len() > most {
            let why = format!("more than {most} files");
            return Err(at(&self.display(inner), io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        Ok(names)
    }

    fn names(&self, inner: &Path, most: usize) -> io::Result<Vec<String>> {
        let fd = self.resolve(inner, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let list = || -> nix::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in Dir::from_fd(fd)?.iter() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." {
                    continue;
                }
                if names.len() == most {
                    break;
                }
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            Ok(names)
        };
        let mut names = list().map_err(|e| at(&self.display(inner), e.into()))?;
        names.sort();
        Ok(names)
    }

    /// Returns the target of a symlink.
    ///
    /// # Errors
    /// The error of the kernel, with the path.
    pub fn read_link(&self, inner: impl AsRef<Path>) -> io::Result<PathBuf> {
        let inner = inner.as_ref();
        let fd = self.resolve(inner, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        let target = readlinkat(&fd, OsStr::from_bytes(b""))
            .map_err(|e| at(&self.display(inner), e.into()))?;
        Ok(PathBuf::from(target))
    }

    /// True if the path exists; a dangling symlink does not.
    ///
    /// # Errors
    /// If that cannot be determined, with the path.
    pub fn exists(&self, inner: impl AsRef<Path>) -> io::Result<bool> {
        Ok(if_there(self.resolve(inner.as_ref(), OFlag::O_PATH))?.is_some())
    }

    fn resolve(&self, inner: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let how =
            OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        repeated(|| openat2(&self.dir, inner, how)).map_err(|e| at(&self.display(inner), e.into()))
    }
}

/// Opens again after EAGAIN: a rename raced with the resolution of `..` (openat2(2)). The limit is for
/// those who rename without end, and for a file with another program's lease, which has the same errno.
fn repeated<T>(mut opened: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    for _ in 1..ATTEMPTS {
        match opened() {
            Err(Errno::EAGAIN) => {}
            answer => return answer,
        }
    }
    opened()
}

/// Reads the file at `path` for a process whose root is `root`, of at most 64 MiB.
///
/// # Errors
/// As [`Root::read`].
pub fn read_below(root: &Path, path: &Path) -> io::Result<Vec<u8>> {
    Root::open(root)?.read(path)
}

/// True if an error means that the file does not exist.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns what was found; None where [`is_absent`] says that it is not there.
///
/// # Errors
/// Any other error.
pub fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(e) if is_absent(&e) => Ok(None),
        found => found.map(Some),
    }
}

/// True if the target of the link at the relative path `link` is below the same tree by its name, and not empty.
pub fn stays_inside(link: &Path, target: &Path) -> bool {
    let mut depth = link.components().count().saturating_sub(1);
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    !target.as_os_str().is_empty()
}

/// The errno inside an error of [`Root`].
pub fn errno_of(error: &io::Error) -> Option<Errno> {
    let inner = error.get_ref()?.downcast_ref::<PathError>()?;
    inner.error.raw_os_error().map(Errno::from_raw)
}

/// An error with the path it happened on.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
struct PathError {
    path: PathBuf,
    error: io::Error,
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), PathError { path: path.to_path_buf(), error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("usr/lib/modules")).unwrap();
        fs::create_dir_all(top.join("etc")).unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        fs::write(top.join("secret"), "inside").unwrap();
        fs::write(top.join("usr/lib/modules/file"), "text").unwrap();
        symlink("/usr/lib", top.join("lib")).unwrap();
        symlink("../../../../../secret", top.join("etc/climb")).unwrap();
        symlink("/nowhere", top.join("etc/dangling")).unwrap();
        symlink("loop", top.join("etc/loop")).unwrap();
        let root = Root::open(&top).unwrap();
        (dir, root)
    }

    #[test]
    fn an_absolute_symlink_stays_inside() {
        let (_dir, root) = tree();
        assert_eq!(root.read_to_string("lib/modules/file").unwrap(), "text");
        assert_eq!(root.read_to_string("/lib/modules/file").unwrap(), "text");
    }

    #[test]
    fn climbing_stays_inside() {
        let (_dir, root) = tree();
        assert_eq!(root.read_to_string("etc/climb").unwrap(), "inside");
        assert_eq!(root.read_to_string("../secret").unwrap(), "inside");
        assert_eq!(read_below(root.path(), Path::new("/etc/climb")).unwrap(), b"inside");
    }

    #[test]
    fn a_link_is_read_and_not_followed() {
        let (_dir, root) = tree();
        assert_eq!(root.read_link("lib").unwrap(), Path::new("/usr/lib"));
        assert!(root.read_link("secret").is_err());
    }

    #[test]
    fn existence_is_told_from_not_being_able_to_tell() {
        let (_dir, root) = tree();
        assert!(root.exists("lib/modules").unwrap());
        assert!(!root.exists("etc/dangling").unwrap());
        assert!(!root.exists("secret/below-a-file").unwrap());
        assert_eq!(errno_of(&root.exists("etc/loop").unwrap_err()), Some(Errno::ELOOP));
    }

    #[test]
    fn names_are_sorted_and_errors_name_the_path() {
        let (_dir, root) = tree();
        assert_eq!(root.read_dir("etc").unwrap(), ["climb", "dangling", "loop"]);
        assert_eq!(root.read_small_dir("etc", 3).unwrap().len(), 3);
        let error = root.read_small_dir("etc", 2).unwrap_err();
        assert!(error.to_string().ends_with("top/etc: more than 2 files"), "{error}");
        let error = root.read_to_string("etc/none").unwrap_err();
        assert!(error.to_string().contains("top/etc/none: "), "{error}");
    }

    #[test]
    fn an_open_is_repeated_so_many_times() {
        for (busy, answer, expected) in
            [(0, Ok(()), 1), (5, Ok(()), 6), (5, Err(Errno::ENOENT), 6), (99, Ok(()), ATTEMPTS)]
        {
            let mut count = 0;
            let opened = repeated(|| {
                count += 1;
                if count > busy { answer } else { Err(Errno::EAGAIN) }
            });
            assert_eq!(count, expected);
            assert_eq!(opened, if busy < ATTEMPTS { answer } else { Err(Errno::EAGAIN) });
        }
    }

    #[test]
    fn a_fifo_does_not_stall() {
        let (_dir, root) = tree();
        nix::unistd::mkfifo(&root.path().join("etc/fifo"), Mode::S_IRUSR).unwrap();
        assert_eq!(root.read("etc/fifo").unwrap(), b"");
    }
}
