//! Files that other programs of the host read by their directory, as container runtimes read specs.
//!
//! Containers with a mount of such a directory write to it as well. The directory is opened once below
//! the host's root, where links of the host lead no further (`RESOLVE_IN_ROOT`); the rest is done
//! [in it](super::shared_dir).

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::verbs::shared_dir::{SharedDir, SharedFile};
use longshore_core::root::{Root, errno_of, if_there};

/// Size limit of a file that is read: a spec has some tens of kilobytes.
const LARGEST: u64 = 4 << 20;
/// Mode of the file: runtimes of other users read it, too.
const MODE: u32 = 0o644;

/// A file of a directory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedFile<'a> {
    /// Root of the host's file system.
    pub root: &'a Path,
    /// Absolute path of the directory below it.
    pub dir: &'a Path,
    /// Name of the file.
    pub name: &'a str,
}

impl PublishedFile<'_> {
    /// Path of the file, for messages: on the host, unless its root is this process's own.
    pub fn shown(&self) -> String {
        self.dir.join(self.name).display().to_string()
    }
}

/// Contents of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The directory is missing.
    NoDirectory,
    /// The directory has no such file.
    Nothing,
    /// A regular file with these bytes.
    File(Vec<u8>),
    /// Another file, with the reason why it is not read.
    Other(String),
}

/// Reads the file.
pub(crate) fn read(root: &Root, place: &PublishedFile<'_>) -> io::Result<Published> {
    let dir = if_there(directory(root, place.dir))?;
    let Some(dir) = dir else { return Ok(Published::NoDirectory) };
    Ok(match SharedDir::new(&dir).read(place.name, LARGEST)? {
        SharedFile::Nothing => Published::Nothing,
        SharedFile::File(bytes) => Published::File(bytes),
        SharedFile::Other(why) => Published::Other(why),
    })
}

/// Makes the directory, mode 0755, in its parent; one that is there stays as it is.
pub(crate) fn make_dir(root: &Root, place: &PublishedFile<'_>) -> io::Result<()> {
    let (parent, name) = parent(root, place)?;
    match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
        Ok(()) => directory(root, place.dir)?.set_permissions(Permissions::from_mode(0o755)),
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the directory, if it is empty.
pub(crate) fn remove_dir(root: &Root, place: &PublishedFile<'_>) -> io::Result<()> {
    let (parent, name) = parent(root, place)?;
    match unlinkat(&parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Writes the file: a reader sees all of it or nothing. What was in its place is replaced.
pub(crate) fn write(root: &Root, place: &PublishedFile<'_>, bytes: &[u8]) -> io::Result<()> {
    let opened = directory(root, place.dir)?;
    let dir = SharedDir::new(&opened);
    dir.sweep(place.name.as_ref());
    let new = dir.create(place.name.as_ref())?;
    new.file().write_all(bytes)?;
    new.file().set_permissions(Permissions::from_mode(MODE))?;
    new.file().sync_all()?;
    new.publish_anyway()?;
    opened.sync_all()
}

/// Removes the file, unless `keeps`, and one that was not renamed.
pub(crate) fn withdraw(root: &Root, place: &PublishedFile<'_>, keeps: bool) -> io::Result<()> {
    let Some(dir) = if_there(directory(root, place.dir))? else { return Ok(()) };
    let dir = SharedDir::new(&dir);
    dir.sweep(place.name.as_ref());
    if keeps { Ok(()) } else { dir.remove(place.name) }
}

fn parent<'a>(root: &Root, place: &PublishedFile<'a>) -> io::Result<(File, &'a std::ffi::OsStr)> {
    let name = place.dir.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let above = place.dir.parent().unwrap_or(Path::new("/"));
    Ok((directory(root, above)?, name))
}

fn directory(root: &Root, path: &Path) -> io::Result<File> {
    let dir = root.file(path)?;
    if dir.metadata()?.is_dir() { Ok(dir) } else { Err(Errno::ENOTDIR.into()) }
}

/// Errno of an error of these functions.
pub(crate) fn errno(error: &io::Error) -> Errno {
    let plain = error.raw_os_error().map(Errno::from_raw);
    plain.or_else(|| errno_of(error)).unwrap_or(Errno::EIO)
}

#[cfg(test)]
mod tests;
