//! A directory that somebody else's file system is written into, and nothing outside of it.
//!
//! The parent of each path is opened as the file system that is written would see it (openat2(2),
//! `RESOLVE_IN_ROOT`), and the entry itself is made, linked or removed by its name in that directory. So links
//! that an image holds lead inside, however they are built.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

/// Number of links without a target that are followed to make a directory.
const MOST_LINKS: usize = 40;
/// Flags of a directory in which entries are made.
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The directory, and the parent that was used last: an image's entries come directory by directory.
#[derive(Debug)]
pub(super) struct Target {
    top: OwnedFd,
    last: Option<(PathBuf, OwnedFd)>,
    /// Number of directories that were made because an entry lies in them, and its maximum.
    implied: Cell<u64>,
    most_implied: u64,
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetEntry {
    Directory,
    /// A file or link, with its identity.
    Leaf(u64, u64),
}

impl Target {
    /// Opens a directory that only this process writes to, for at most so many directories that no entry names.
    pub(super) fn open(dir: &Path, most_implied: u64) -> io::Result<Self> {
        Ok(Self {
            top: open(dir, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?,
            last: None,
            implied: Cell::new(0),
            most_implied,
        })
    }

    /// Makes a directory, in the place of anything else that has its name.
    pub(super) fn make_dir(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        if found(dir, name)? != Some(TargetEntry::Directory) {
            self.remove(path)?;
            let (dir, name) = self.parent(path)?;
            mkdirat(dir, name, Mode::from_bits_truncate(0o700))?;
        }
        let (dir, name) = self.parent(path)?;
        // A directory, so that no link is followed.
        let mode = Mode::from_bits_truncate(mode & 0o777 | 0o700);
        Ok(fchmodat(dir, name, mode, FchmodatFlags::FollowSymlink)?)
    }

    /// Makes an empty file that only root can read, in the place of anything that has its name.
    pub(super) fn make_file(&mut self, path: &Path) -> io::Result<File> {
        self.remove(path)?;
        let (dir, name) = self.parent(path)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let mode = Mode::from_bits_truncate(0o600);
        Ok(openat(dir, name, flags | OFlag::O_CLOEXEC, mode)?.into())
    }

    /// Makes a link with any target, in the place of anything that has its name.
    pub(super) fn make_link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        self.remove(path)?;
        let (dir, name) = self.parent(path)?;
        Ok(symlinkat(target, dir, name)?)
    }

    /// Makes another name of the file `of`, in the place of anything else that has the name.
    pub(super) fn make_name(&mut self, path: &Path, of: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(of)?;
        let (source, source_name) = (dir.try_clone()?, name.to_owned());
        let wanted = match found(&source, &source_name)? {
            Some(leaf @ TargetEntry::Leaf(..)) => leaf,
            Some(TargetEntry::Directory) => return Err(Errno::EISDIR.into()),
            None => return Err(Errno::ENOENT.into()),
        };
        let (dir, name) = self.parent(path)?;
        if found(dir, name)? == Some(wanted) {
            return Ok(());
        }
        self.remove(path)?;
        let (dir, name) = self.parent(path)?;
        // Without AT_SYMLINK_FOLLOW, so a link gets the name and not the file it leads to.
        Ok(linkat(&source, source_name.as_os_str(), dir, name, AtFlags::empty())?)
    }

    /// Removes an entry with everything below it, if it exists.
    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let Some((dir, name)) = self.existing(path)? else { return Ok(()) };
        self.last = None;
        remove(&dir, &name)
    }

    /// Removes an entry with everything below it, if it exists at just this path: nothing below a link.
    pub(super) fn remove_literal(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = split(path)?;
        let Some(dir) = self.literal(parent)? else { return Ok(()) };
        self.last = None;
        remove(&dir, name)
    }

    /// Removes an entry that is no directory, if it exists at just this path.
    pub(super) fn remove_literal_leaf(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = split(path)?;
        let Some(dir) = self.literal(parent)? else { return Ok(()) };
        if found(&dir, name)? == Some(TargetEntry::Directory) {
            return Ok(());
        }
        self.last = None;
        remove(&dir, name)
    }

    /// Removes everything below a directory, if it exists at just this path: nothing below a link.
    pub(super) fn clear(&mut self, path: &Path) -> io::Result<()> {
        let Some(dir) = self.literal(path)? else { return Ok(()) };
        self.last = None;
        for name in names(&dir)? {
            remove(&dir, &name)?;
        }
        Ok(())
    }

    /// Sets the permissions of the directory itself.
    pub(super) fn finish(&self) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", self.top.as_raw_fd());
        fs::set_permissions(path, Permissions::from_mode(0o755))
    }

    /// Returns parent and name of an entry that may exist; None where its parent does not.
    fn existing(&self, path: &Path) -> io::Result<Option<(OwnedFd, OsString)>> {
        let (parent, name) = split(path)?;
        match self.look_up(parent) {
            Ok(dir) => Ok(Some((dir, name.to_owned()))),
            // A file has nothing below it.
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns parent and name of an entry; the parent is made if it is missing.
    fn parent<'p>(&mut self, path: &'p Path) -> io::Result<(&OwnedFd, &'p OsStr)> {
        let (parent, name) = split(path)?;
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            let dir = self.dir(parent, MOST_LINKS)?;
            self.last = Some((parent.to_path_buf(), dir));
        }
        let dir = self.last.as_ref().map_or(&self.top, |(_, dir)| dir);
        Ok((dir, name))
    }

    /// Opens a directory, and makes it and those above it where they are missing.
    fn dir(&self, path: &Path, links: usize) -> io::Result<OwnedFd> {
        match self.look_up(path) {
            Err(Errno::ENOENT) => {}
            opened => return Ok(opened?),
        }
        let (parent, name) = split(path)?;
        let dir = self.dir(parent, links)?;
        self.count_implied()?;
        match mkdirat(&dir, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) => {
                let mode = Mode::from_bits_truncate(0o755);
                fchmodat(&dir, name, mode, FchmodatFlags::FollowSymlink)?;
            }
            // A link to a directory that does not exist yet.
            Err(Errno::EEXIST) if links > 0 => {
                let target = parent.join(readlinkat(&dir, name)?);
                return self.dir(target.strip_prefix("/").unwrap_or(&target), links - 1);
            }
            Err(Errno::EEXIST) => return Err(Errno::ELOOP.into()),
            Err(errno) => return Err(errno.into()),
        }
        Ok(self.look_up(path)?)
    }

    /// Counts a directory that no entry names: a few bytes of a path can ask for a hundred of them.
    fn count_implied(&self) -> io::Result<()> {
        self.implied.set(self.implied.get() + 1);
        if self.implied.get() <= self.most_implied {
            return Ok(());
        }
        let most = self.most_implied;
        let cause = format!("more than {most} directories have no entry of their own");
        Err(io::Error::new(io::ErrorKind::InvalidData, cause))
    }

    /// Opens a directory without following a link; None where its path leads to none.
    fn literal(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match self.open_dir(path, ResolveFlag::RESOLVE_NO_SYMLINKS) {
            Ok(dir) => Ok(Some(dir)),
            // ELOOP is a link on the way; a file has nothing below it.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn look_up(&self, path: &Path) -> nix::Result<OwnedFd> {
        self.open_dir(path, ResolveFlag::RESOLVE_NO_MAGICLINKS)
    }

    fn open_dir(&self, path: &Path, links: ResolveFlag) -> nix::Result<OwnedFd> {
        let how = OpenHow::new().flags(DIRECTORY).resolve(ResolveFlag::RESOLVE_IN_ROOT | links);
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        loop {
            match openat2(&self.top, path, how) {
                // A rename elsewhere raced with `..` (openat2(2)).
                Err(Errno::EAGAIN) => {}
                opened => return opened,
            }
        }
    }
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let named = path.parent().zip(path.file_name());
    named.ok_or_else(|| Errno::EISDIR.into())
}

fn found(dir: &OwnedFd, name: &OsStr) -> io::Result<Option<TargetEntry>> {
    match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) if is_dir(&stat) => Ok(Some(TargetEntry::Directory)),
        Ok(stat) => Ok(Some(TargetEntry::Leaf(stat.st_dev, stat.st_ino))),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn is_dir(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
}

fn remove(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match found(dir, name)? {
        None => Ok(()),
        Some(TargetEntry::Leaf(..)) => Ok(unlinkat(dir, name, UnlinkatFlags::NoRemoveDir)?),
        // It opens the last part of the path, and all below, without following a link.
        Some(TargetEntry::Directory) => {
            let open = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            fs::remove_dir_all(open.join(name))
        }
    }
}

fn names(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut list = Dir::from_fd(openat(dir, ".", flags, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in list.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
