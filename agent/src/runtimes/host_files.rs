//! Configuration files of the host: read with bounds, replaced as a whole.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};

use longshore_core::disk::Disk;
use longshore_core::root::{Place, Root, is_absent};
use longshore_runtimes::Files;

/// Size limit of a configuration.
const MOST: u64 = 1 << 20;
/// Size limit of the names, and of each value, of a file's extended attributes (linux/limits.h).
const ATTRIBUTES: usize = 1 << 16;
/// Mode of a file that was absent.
const MODE: u32 = 0o644;

/// Files of the host whose file system begins at a root.
#[derive(Debug)]
pub(super) struct HostFiles<'a>(pub(super) &'a Root);

impl Files for HostFiles<'_> {
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match self.0.place(path) {
            Err(e) if is_absent(&e) => Ok(None),
            place => read(&place?),
        }
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        match self.0.read_dir(dir) {
            Err(e) if is_absent(&e) => Ok(Vec::new()),
            names => names,
        }
    }
}

/// Reads a file; None where it is absent. Refuses links, pipes and devices.
pub(super) fn read(place: &Place) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open(place)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(io::Error::new(ErrorKind::InvalidData, "larger than 1 MiB"));
    }
    Ok(Some(bytes))
}

fn open(place: &Place) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = match openat(&place.dir, place.name.as_os_str(), flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(None),
        opened => File::from(opened?),
    };
    match file.metadata()?.is_file() {
        true => Ok(Some(file)),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Replaces a file durably, with owner, mode and extended attributes of the present one. The new one has
/// its name only once it is complete.
///
/// # Errors
/// The kernel's error; nothing is changed then, but for a last sync that failed.
pub(super) fn replace(place: &Place, bytes: &[u8], disk: Disk) -> io::Result<()> {
    clear(place)?;
    let next = unfinished(place);
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    let file = File::from(openat(&place.dir, next.as_str(), flags, mode)?);
    let written = fill(place, &file, bytes, disk).and_then(|()| {
        Ok(renameat(place.dir.as_fd(), next.as_str(), place.dir.as_fd(), place.name.as_os_str())?)
    });
    if let Err(error) = written {
        let _ = unlink(place, &next);
        return Err(error);
    }
    sync_dir(place, disk)
}

/// Name of a file until it is complete.
fn unfinished(place: &Place) -> String {
    format!(".{}.longshore-new", place.name.to_string_lossy())
}

/// Removes the unfinished file of a process that was killed.
///
/// # Errors
/// The kernel's error.
pub(super) fn clear(place: &Place) -> io::Result<()> {
    unlink(place, &unfinished(place))
}

fn fill(place: &Place, mut file: &File, bytes: &[u8], disk: Disk) -> io::Result<()> {
    file.write_all(bytes)?;
    match open(place)? {
        None => file.set_permissions(Permissions::from_mode(MODE))?,
        Some(present) => {
            let found = present.metadata()?;
            fchown(file, Some(found.uid()), Some(found.gid()))?;
            file.set_permissions(Permissions::from_mode(found.mode() & 0o7777))?;
            copy_attributes(&present, file);
        }
    }
    disk.sync(file)
}

/// Copies the extended attributes, SELinux's label among them. One that cannot be set is a warning: the
/// configuration is right without it.
fn copy_attributes(from: &File, to: &File) {
    let mut names = vec![0; ATTRIBUTES];
    let Ok(size) = flistxattr(from, &mut names[..]) else { return };
    let mut value = vec![0; ATTRIBUTES];
    for name in names[..size].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let copied = fgetxattr(from, name, &mut value[..])
            .and_then(|size| fsetxattr(to, name, &value[..size], XattrFlags::empty()));
        if let Err(error) = copied {
            let name = String::from_utf8_lossy(name);
            tracing::warn!("the extended attribute {name} could not be kept: {error}");
        }
    }
}

/// Removes a file durably.
pub(super) fn remove(place: &Place, disk: Disk) -> io::Result<()> {
    unlinkat(&place.dir, place.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
    sync_dir(place, disk)
}

fn unlink(place: &Place, name: &str) -> io::Result<()> {
    match unlinkat(&place.dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Syncs the directory: that of a place is open for its path alone.
fn sync_dir(place: &Place, disk: Disk) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    disk.sync(&File::from(openat(&place.dir, ".", flags, Mode::empty())?))
}
