//! Owners and modes of files that become kernel code, or that configure what does.
//!
//! A writer of such a file, or of a directory on the way to it, decides what the kernel runs. So each of
//! them belongs to root and is writable by no group or others. A process that is not root has its own files as well.
//! An access list shows in the mode: its mask is the group's part (acl(5)).
//!
//! Paths are walked by open directories, from one that is trusted to the next; so nobody else can exchange a part
//! between its check and its use.

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{getegid, geteuid};

use crate::failure::{Failure, FailureKind};

/// Write permission of group and others.
const WRITTEN_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Number of links that are followed, as the kernel does.
const MOST_LINKS: usize = 40;
/// Depth of a tree; those of headers and driver packages have 20 levels.
const DEEPEST: usize = 128;

/// A file or directory that others than root may write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untrusted {
    path: PathBuf,
    owner: Owner,
}

impl Untrusted {
    /// Commands that put it right, for somebody who has seen that its contents are theirs.
    pub fn remedy(&self) -> String {
        let path = self.path.display();
        let chown = format!("chown root:root {path}");
        let chmod = format!("chmod go-w {path}");
        let both = format!("{chown} && {chmod}");
        let done = match (self.owner.is_foreign(Me::now()), self.owner.is_written(Me::now())) {
            (true, true) => both,
            (true, false) => chown,
            (false, _) => chmod,
        };
        format!("look at who put it there, then `{done}`, or name a place that is root's alone")
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, Owner { uid, gid, mode, .. }) = (self.path.display(), self.owner);
        let what = match self.owner.is_foreign(Me::now()) {
            true => "belongs to another user than root",
            false => "can be written to by others",
        };
        write!(f, "{path} {what} (uid {uid}, gid {gid}, mode {:04o})", mode & 0o7777)
    }
}

impl Error for Untrusted {}

impl From<Untrusted> for io::Error {
    fn from(untrusted: Untrusted) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, untrusted)
    }
}

/// Returns the untrusted file of an error of this module, if that is its cause.
pub fn untrusted(error: &io::Error) -> Option<&Untrusted> {
    error.get_ref()?.downcast_ref()
}

/// Returns the failure of a check: of `kind`, about `what`, with the remedy for an untrusted file, or else `remedy`.
pub fn failure(
    kind: FailureKind,
    what: impl Into<String>,
    error: io::Error,
    remedy: &str,
) -> Failure {
    let remedy = untrusted(&error).map_or_else(|| remedy.to_owned(), Untrusted::remedy);
    Failure::new(kind, what).with_source(error).remedy(remedy)
}

/// Owner and mode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    uid: u32,
    gid: u32,
    /// Kind and permissions.
    mode: u32,
}

impl From<&FileStat> for Owner {
    fn from(stat: &FileStat) -> Self {
        Self { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode }
    }
}

/// Ids of this process.
#[derive(Debug, Clone, Copy)]
struct Me {
    uid: u32,
    gid: u32,
}

impl Me {
    fn now() -> Self {
        Self { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }
}

impl Owner {
    /// Checks the file at `path`, which is used for the error alone.
    ///
    /// # Errors
    /// The file, where others than root, or this process's user, may write to it.
    pub fn check(self, path: &Path) -> Result<(), Untrusted> {
        match self.is_trusted(Me::now()) {
            true => Ok(()),
            false => Err(Untrusted { path: path.to_path_buf(), owner: self }),
        }
    }

    fn is_trusted(self, me: Me) -> bool {
        !self.is_foreign(me) && !self.is_written(me)
    }

    fn is_foreign(self, me: Me) -> bool {
        self.uid != 0 && self.uid != me.uid
    }

    /// True if others may write to it. A link has no mode of its own. The own group of a user counts as the user:
    /// with an umask of 002 all of its files are the group's, too.
    fn is_written(self, me: Me) -> bool {
        let own_group = me.uid != 0 && self.uid == me.uid && self.gid == me.gid;
        let others = if own_group { 0o002 } else { WRITTEN_BY_OTHERS };
        self.kind() != SFlag::S_IFLNK && self.mode & others != 0
    }

    /// True for a directory in which others may make files, and replace none of another user: /tmp.
    fn is_sticky(self) -> bool {
        self.kind() == SFlag::S_IFDIR && self.mode & STICKY != 0
    }

    fn kind(self) -> SFlag {
        SFlag::from_bits_truncate(self.mode) & SFlag::S_IFMT
    }
}

/// Checks the file `path` and all directories and links on the way to it. Links lead where they lead in a system
/// whose root is `root`, which is not left, and whose own place is not checked. Returns it, open with `O_PATH`.
///
/// A directory on the way may be sticky, or the root of a read-only mount: such is the volume of a ConfigMap or a
/// Secret, which kubelet makes with the mode 0777 below a directory of its own (pkg/volume/util/atomic_writer.go).
///
/// # Errors
/// Permission denied with [`Untrusted`] for one that others may write to; else the kernel's error, with the path.
pub fn way(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    Walk::along(root, path)?.end()
}

/// Checks a file that a setting names, as [`way`] in this system. A relative path begins in the working directory; a
/// pipe or device is what the caller opened, and reading tells of one that is not there.
///
/// # Errors
/// As [`way`].
pub fn file(path: &Path) -> io::Result<()> {
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    way(Path::new("/"), &std::path::absolute(path)?).map(drop)
}

/// Checks the directory `path` as one on the way to files that are checked each: it may be sticky, or the root of a
/// read-only mount.
///
/// # Errors
/// As [`way`].
pub fn directory(root: &Path, path: &Path) -> io::Result<()> {
    Walk::along(root, path)?.check_on_way()
}

/// Checks as [`way`], and everything below the directory `path`: at most `most` files.
///
/// # Errors
/// As [`way`]; invalid data for more files, or deeper ones than any tree of headers or drivers has.
pub fn tree(root: &Path, path: &Path, most: usize) -> io::Result<()> {
    let dir = way(root, path)?;
    let shown = root.join(path.strip_prefix("/").unwrap_or(path));
    below(&dir, &shown, &mut most.clone(), DEEPEST)
}

/// Checks everything below an open directory that was checked.
fn below(dir: &OwnedFd, path: &Path, left: &mut usize, deepest: usize) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let too_much = || {
        let cause = format!("{}: far more than a tree of headers or of a driver", path.display());
        io::Error::new(io::ErrorKind::InvalidData, cause)
    };
    let mut list = Dir::openat(dir, ".", flags, Mode::empty()).map_err(|errno| at(path, errno))?;
    for entry in list.iter() {
        let entry = entry.map_err(|errno| at(path, errno))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        *left = left.checked_sub(1).ok_or_else(too_much)?;
        let path = path.join(name);
        let stat = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|e| at(&path, e))?;
        let owner = Owner::from(&stat);
        owner.check(&path)?;
        if owner.kind() == SFlag::S_IFDIR {
            let deepest = deepest.checked_sub(1).ok_or_else(too_much)?;
            let inner = openat(dir, name, flags, Mode::empty()).map_err(|e| at(&path, e))?;
            below(&inner, &path, left, deepest)?;
        }
    }
    Ok(())
}

/// A walk by open directories.
struct Walk {
    /// Those from the root to the present one, each with its path; never empty.
    dirs: Vec<(PathBuf, OwnedFd)>,
    links: usize,
}

impl Walk {
    fn from(root: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let top = open(root, flags, Mode::empty()).map_err(|errno| at(root, errno))?;
        Ok(Self { dirs: vec![(root.to_path_buf(), top)], links: 0 })
    }

    /// Walks from the root to `path`, and checks all on the way.
    fn along(root: &Path, path: &Path) -> io::Result<Self> {
        let mut walk = Self::from(root)?;
        let mut left: VecDeque<OsString> = parts(path).collect();
        while let Some(name) = left.pop_front() {
            if let Some(target) = walk.enter(&name)? {
                parts(&target).rev().for_each(|part| left.push_front(part));
            }
        }
        Ok(walk)
    }

    fn last(&self) -> &(PathBuf, OwnedFd) {
        self.dirs.last().unwrap_or(&self.dirs[0])
    }

    /// Opens the next part, after the present directory was checked as one on the way; returns the target of a link.
    fn enter(&mut self, name: &OsStr) -> io::Result<Option<PathBuf>> {
        if name == ".." {
            self.dirs.truncate((self.dirs.len() - 1).max(1));
            return Ok(None);
        }
        self.check_on_way()?;
        let (dir_path, dir) = self.last();
        let path = dir_path.join(name);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = openat(dir, name, flags, Mode::empty()).map_err(|errno| at(&path, errno))?;
        let owner = owner_of(&found, &path)?;
        if owner.kind() != SFlag::S_IFLNK {
            self.dirs.push((path, found));
            return Ok(None);
        }
        owner.check(&path)?;
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(at(&path, Errno::ELOOP));
        }
        let target = PathBuf::from(readlinkat(&found, "").map_err(|errno| at(&path, errno))?);
        if target.is_absolute() {
            self.dirs.truncate(1);
        }
        Ok(Some(target))
    }

    fn check_on_way(&self) -> io::Result<()> {
        let (path, dir) = self.last();
        let owner = owner_of(dir, path)?;
        let above = self.dirs.len().checked_sub(2).map(|at| &self.dirs[at].1);
        if owner.is_trusted(Me::now())
            || (!owner.is_foreign(Me::now())
                && (owner.is_sticky() || is_read_only_mount(dir, above)?))
        {
            return Ok(());
        }
        Ok(owner.check(path)?)
    }

    /// Checks the last file, in which nobody else may write, and returns it.
    fn end(mut self) -> io::Result<OwnedFd> {
        let (path, last) = self.dirs.swap_remove(self.dirs.len() - 1);
        owner_of(&last, &path)?.check(&path)?;
        Ok(last)
    }
}

/// True if a directory is the root of a mount that is read-only; `above` is the one that it lies in.
fn is_read_only_mount(dir: &OwnedFd, above: Option<&OwnedFd>) -> io::Result<bool> {
    let Some(above) = above else { return Ok(false) };
    let is_read_only = fstatvfs(dir).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY));
    Ok(is_read_only && mount_id(dir)? != mount_id(above)?)
}

/// Number of the mount that an open file is on: `mnt_id` of proc_pid_fdinfo(5), since Linux 3.15.
fn mount_id(file: &impl AsFd) -> io::Result<String> {
    let path = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
    let text = fs::read_to_string(&path)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned()).ok_or_else(|| io::Error::other(format!("{path}: no mnt_id")))
}

fn owner_of(file: &OwnedFd, path: &Path) -> io::Result<Owner> {
    fstat(file).map(|stat| Owner::from(&stat)).map_err(|errno| at(path, errno))
}

/// Parts of a path, without the root.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn at(path: &Path, errno: Errno) -> io::Error {
    let error = io::Error::from(errno);
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
