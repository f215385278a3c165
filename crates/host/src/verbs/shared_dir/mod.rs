//! Small files in a directory that other programs write to, or read by a pattern of names.
//!
//! The directory is open, and all else is done by names in it, none of which is followed. A new file has
//! no name until it is complete (`O_TMPFILE`, open(2)), so that neither a reader of the directory nor a
//! process that is started after a kill finds half of it. It then gets a name that is not known
//! beforehand, and is renamed: readers that watch the directory notice a rename, and not all of them a link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, openat, renameat, renameat2};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use longshore_core::root::{read_up_to, reopen};

/// Flags of the open of a file of unknown kind, which neither follows a link nor reaches a driver.
const FLAGS: OFlag = OFlag::O_CLOEXEC.union(OFlag::O_NOFOLLOW).union(OFlag::O_PATH);
/// Ending of a name until the rename: no reader of specs takes it.
const ENDING: &str = ".tmp";
/// Number of random digits in it.
const DIGITS: usize = 16;
/// Limits of a sweep: names that are read, and files that are removed.
const MOST_NAMES: usize = 4096;
const MOST_SWEPT: usize = 64;
/// Number of directories that are moved aside for one file.
const ASIDE: usize = 4;

/// A directory that others may write to.
#[derive(Debug, Clone, Copy)]
pub struct SharedDir<'a>(BorrowedFd<'a>);

/// Contents of a name in such a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedFile {
    /// Nothing.
    Nothing,
    /// A regular file with these bytes.
    File(Vec<u8>),
    /// Another file, with the reason why it is not read.
    Other(String),
}

impl<'a> SharedDir<'a> {
    /// Takes an open directory; `O_PATH` suffices.
    pub fn new(dir: &'a impl AsFd) -> Self {
        Self(dir.as_fd())
    }

    /// Reads a file of at most `most` bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(self, name: impl AsRef<OsStr>, most: u64) -> io::Result<SharedFile> {
        let found = match openat(self.0, name.as_ref(), FLAGS, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(SharedFile::Nothing),
            opened => File::from(opened?),
        };
        let kind = found.metadata()?.file_type();
        if kind.is_symlink() {
            return Ok(SharedFile::Other("a symbolic link".to_owned()));
        }
        if !kind.is_file() {
            return Ok(SharedFile::Other("no regular file".to_owned()));
        }
        let file = match reopen(&found) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(SharedFile::Other("under another program's lease".to_owned()));
            }
            opened => opened?,
        };
        let large = || SharedFile::Other(format!("larger than {}", size(most)));
        Ok(read_up_to(file, most)?.map_or_else(large, SharedFile::File))
    }

    /// Makes a new file, mode 0600, that gets the name once it is complete.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(self, name: &'a OsStr) -> io::Result<NewFile<'a>> {
        let temporary = temporary(name)?;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let (file, is_named) = match openat(self.0, ".", flags | OFlag::O_TMPFILE, mode) {
            // Not every file system has such files: overlayfs only since Linux 6.1.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR) => {
                let flags = flags | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
                (openat(self.0, temporary.as_os_str(), flags, mode)?, true)
            }
            opened => (opened?, false),
        };
        Ok(NewFile { dir: self, name, temporary, is_named, file: file.into() })
    }

    /// Removes a file, link, pipe or socket; nothing there is no error.
    ///
    /// # Errors
    /// The kernel's error: for a directory, EISDIR.
    pub fn remove(self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match unlinkat(self.0, name.as_ref(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes the new files of processes that were killed just before the rename. One that cannot be
    /// removed does no harm: no other new file takes its name.
    pub fn sweep(self, name: &OsStr) {
        for found in self.names().iter().filter(|found| is_temporary(found, name)).take(MOST_SWEPT)
        {
            self.remove_if_possible(found);
        }
    }

    /// As [`SharedDir::remove`]; logs the error.
    fn remove_if_possible(self, name: &OsStr) {
        if let Err(error) = self.remove(name) {
            tracing::debug!("{} stays: {error}", name.display());
        }
    }

    /// Returns names in the directory; those that cannot be read are left out.
    fn names(self) -> Vec<OsString> {
        let dir = self.open().and_then(Dir::from_fd);
        let Ok(mut dir) = dir else { return Vec::new() };
        let entries = dir.iter().take(MOST_NAMES).flatten();
        entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()).collect()
    }

    fn open(self) -> nix::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(self.0, ".", flags, Mode::empty())
    }

    /// Opens the directory for its sync.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn to_sync(self) -> io::Result<File> {
        Ok(self.open()?.into())
    }

    /// Makes way for a file where a directory has its name: an empty one is removed, another renamed,
    /// with all that it has.
    fn clear(self, name: &OsStr) -> nix::Result<()> {
        match unlinkat(self.0, name, UnlinkatFlags::RemoveDir) {
            // Another program removed or replaced it.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        for number in 1..=ASIDE {
            let aside = dotted(name, &format!(".in-the-way-{number}"));
            // One that was moved there before may be empty by now.
            let _ = unlinkat(self.0, aside.as_os_str(), UnlinkatFlags::RemoveDir);
            let flags = RenameFlags::RENAME_NOREPLACE;
            match renameat2(self.0, name, self.0, aside.as_os_str(), flags) {
                Err(Errno::EEXIST) => {}
                moved => {
                    let (name, aside) = (name.display(), aside.display());
                    return moved.inspect(|()| {
                        tracing::warn!("{name} was a directory, which is {aside} now");
                    });
                }
            }
        }
        Err(Errno::EISDIR)
    }
}

/// A file without its name. Dropped before [`NewFile::publish`], it leaves nothing.
#[derive(Debug)]
pub struct NewFile<'a> {
    dir: SharedDir<'a>,
    name: &'a OsStr,
    temporary: OsString,
    /// True while it has the temporary name.
    is_named: bool,
    file: File,
}

impl NewFile<'_> {
    /// Returns the file, to be filled.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, for readers of all names in the directory: another name is seen for an
    /// instant, of a complete file, only where its own is taken. Replaces a file, link, pipe or socket.
    /// Readers that [watch the directory](NewFile::publish_anyway) may not notice it.
    ///
    /// # Errors
    /// The kernel's error: for a directory, EISDIR.
    pub fn publish(mut self) -> io::Result<()> {
        if !self.is_named {
            match self.link(self.name) {
                Err(Errno::EEXIST) => {}
                linked => return Ok(linked?),
            }
        }
        Ok(self.rename()?)
    }

    /// Renames the file to its name, for readers that watch the directory: the CDI library of docker and
    /// containerd reads specs again after a rename (pkg/cdi/cache.go), and not after a link. A directory in
    /// its place is removed if it is empty, and else renamed; all else is replaced.
    ///
    /// # Errors
    /// The kernel's error: for a mount point, EBUSY; EISDIR where too many directories were renamed.
    pub fn publish_anyway(mut self) -> io::Result<()> {
        match self.rename() {
            Err(Errno::EISDIR) => self.dir.clear(self.name)?,
            renamed => return Ok(renamed?),
        }
        Ok(self.rename()?)
    }

    fn rename(&mut self) -> nix::Result<()> {
        if !self.is_named {
            self.link(&self.temporary)?;
            self.is_named = true;
        }
        renameat(self.dir.0, self.temporary.as_os_str(), self.dir.0, self.name)?;
        self.is_named = false;
        Ok(())
    }

    /// Links the file, which needs no capability by this path (open(2), `O_TMPFILE`).
    fn link(&self, name: &OsStr) -> nix::Result<()> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(AT_FDCWD, path.as_str(), self.dir.0, name, AtFlags::AT_SYMLINK_FOLLOW)
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if self.is_named {
            // The error that led here counts.
            let _ = self.dir.remove(&self.temporary);
        }
    }
}

fn temporary(name: &OsStr) -> io::Result<OsString> {
    Ok(dotted(name, &format!(".{:0DIGITS$x}{ENDING}", getrandom::u64()?)))
}

fn dotted(name: &OsStr, ending: &str) -> OsString {
    let mut dotted = OsString::from(".");
    dotted.push(name);
    dotted.push(ending);
    dotted
}

fn is_temporary(found: &OsStr, name: &OsStr) -> bool {
    let digits = found
        .as_bytes()
        .strip_prefix(b".")
        .and_then(|rest| rest.strip_prefix(name.as_bytes()))
        .and_then(|rest| rest.strip_prefix(b"."))
        .and_then(|rest| rest.strip_suffix(ENDING.as_bytes()));
    digits.is_some_and(|digits| {
        digits.len() == DIGITS && digits.iter().all(|digit| digit.is_ascii_hexdigit())
    })
}

fn size(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    }
}

#[cfg(test)]
mod tests;
