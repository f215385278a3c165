//! Configuration files of the host: read with bounds, replaced as a whole.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};

use longshore_core::disk::Disk;
use longshore_core::root::{ResolvedName, Root, is_absent, reopen};
use longshore_host::verbs::shared_dir::{SharedDir, SharedFile};
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
pub(super) fn read(place: &ResolvedName) -> io::Result<Option<Vec<u8>>> {
    match SharedDir::new(&place.dir).read(&place.name, MOST)? {
        SharedFile::Nothing => Ok(None),
        SharedFile::File(bytes) => Ok(Some(bytes)),
        SharedFile::Other(why) => {
            Err(io::Error::new(ErrorKind::InvalidData, format!("it is {why}")))
        }
    }
}

/// Opens the present file, for its owner and attributes.
fn open(place: &ResolvedName) -> io::Result<Option<File>> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match openat(&place.dir, place.name.as_os_str(), flags, Mode::empty()) {
        Err(Errno::ENOENT) => Ok(None),
        found => reopen(&found?).map(Some),
    }
}

/// Replaces a file durably, with owner, mode and extended attributes of the present one. The new one has
/// a name only once it is complete: containerd reads each file of a directory that it imports.
///
/// # Errors
/// The kernel's error; nothing is changed then, but for a last sync that failed.
pub(super) fn replace(place: &ResolvedName, bytes: &[u8], disk: Disk) -> io::Result<()> {
    clear(place);
    let new = SharedDir::new(&place.dir).create(&place.name)?;
    fill(place, new.file(), bytes, disk)?;
    new.publish()?;
    sync_dir(place, disk)
}

/// Removes the new file of a process that was killed before it was renamed.
pub(super) fn clear(place: &ResolvedName) {
    SharedDir::new(&place.dir).sweep(&place.name);
}

fn fill(place: &ResolvedName, mut file: &File, bytes: &[u8], disk: Disk) -> io::Result<()> {
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
pub(super) fn remove(place: &ResolvedName, disk: Disk) -> io::Result<()> {
    unlinkat(&place.dir, place.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
    sync_dir(place, disk)
}

/// Syncs the directory: that of a place is open for its path alone.
fn sync_dir(place: &ResolvedName, disk: Disk) -> io::Result<()> {
    disk.sync(&SharedDir::new(&place.dir).to_sync()?)
}
