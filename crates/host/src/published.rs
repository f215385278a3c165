//! Files that other programs of the host read by their directory, as container runtimes read specs.
//!
//! Containers with a mount of such a directory write to it as well. The directory is opened once below
//! the host's root, where links of the host lead no further (`RESOLVE_IN_ROOT`); all else is done by
//! names in it, none of which is followed.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use longshore_core::root::{Root, errno_of, is_absent};

/// Size limit of a file that is read: a spec has some tens of kilobytes.
const LARGEST: u64 = 4 << 20;
/// Mode of the file: runtimes of other users read it, too.
const MODE: u32 = 0o644;

/// A file of a directory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// Root of the host's file system.
    pub root: &'a Path,
    /// Absolute path of the directory below it.
    pub dir: &'a Path,
    /// Name of the file.
    pub name: &'a str,
}

impl Place<'_> {
    /// Name under which the file is written before it is renamed: no reader takes its ending.
    pub fn temporary(&self) -> String {
        format!(".{}.tmp", self.name)
    }

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
pub(crate) fn read(root: &Root, place: &Place<'_>) -> io::Result<Published> {
    let dir = match open_dir(root, place) {
        Err(e) if is_absent(&e) => return Ok(Published::NoDirectory),
        dir => dir?,
    };
    // A pipe must not block its reader.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = match openat(&dir, place.name, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(Published::Nothing),
        Err(Errno::ELOOP) => return Ok(Published::Other("a symbolic link".to_owned())),
        Err(Errno::ENXIO) => return Ok(Published::Other("no regular file".to_owned())),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Ok(Published::Other("no regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Ok(Published::Other(format!("larger than {} MiB", LARGEST >> 20)));
    }
    Ok(Published::File(bytes))
}

/// Makes the directory, mode 0755, in its parent; one that is there stays as it is.
pub(crate) fn make_dir(root: &Root, place: &Place<'_>) -> io::Result<()> {
    let (parent, name) = parent(root, place)?;
    match mkdirat(&parent, name, Mode::from_bits_truncate(0o755)) {
        Ok(()) => open_dir(root, place)?.set_permissions(Permissions::from_mode(0o755)),
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the directory, if it is empty.
pub(crate) fn remove_dir(root: &Root, place: &Place<'_>) -> io::Result<()> {
    let (parent, name) = parent(root, place)?;
    match unlinkat(&parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Writes the file under its temporary name and renames it: a reader sees all of it or nothing. `between`
/// is called before the rename.
pub(crate) fn write(
    root: &Root,
    place: &Place<'_>,
    bytes: &[u8],
    between: impl FnOnce(),
) -> io::Result<()> {
    let (dir, temporary) = (open_dir(root, place)?, place.temporary());
    remove(&dir, &temporary)?;
    let written = write_new(&dir, &temporary, bytes).and_then(|()| {
        between();
        Ok(renameat(&dir, temporary.as_str(), &dir, place.name)?)
    });
    if let Err(error) = written {
        // The first error counts.
        drop(remove(&dir, &temporary));
        return Err(error);
    }
    dir.sync_all()
}

fn write_new(dir: &File, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(dir, name, flags, Mode::from_bits_truncate(0o600))?);
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.sync_all()
}

/// Removes the file, unless `keeps`, and one that was not renamed.
pub(crate) fn withdraw(root: &Root, place: &Place<'_>, keeps: bool) -> io::Result<()> {
    let dir = match open_dir(root, place) {
        Err(e) if is_absent(&e) => return Ok(()),
        dir => dir?,
    };
    if !keeps {
        remove(&dir, place.name)?;
    }
    let temporary = place.temporary();
    if fstatat(&dir, temporary.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
        && let Err(error) = remove(&dir, &temporary)
    {
        // No reader takes it: a directory of another program's making keeps no driver loaded.
        tracing::warn!("{} stays: {error}", place.dir.join(&temporary).display());
    }
    Ok(())
}

fn remove(dir: &File, name: &str) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn open_dir(root: &Root, place: &Place<'_>) -> io::Result<File> {
    directory(root, place.dir)
}

fn parent<'a>(root: &Root, place: &Place<'a>) -> io::Result<(File, &'a std::ffi::OsStr)> {
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
