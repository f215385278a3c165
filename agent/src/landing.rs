//! The one way in which a file gets its name, and what is said where that fails.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::unistd::geteuid;
use tempfile::NamedTempFile;

use crate::disk;
use crate::failure::{ExitCode, Failure};

/// Gives a finished file its name: first what is in it is on the disk, then the name, and then that
/// is on the disk as well. Whoever reads, whenever the power is cut, finds the file that was there
/// before or this one whole.
///
/// # Errors
/// What the kernel says; where only the last step failed, the file has its name.
pub(crate) fn land(file: NamedTempFile, path: &Path) -> io::Result<()> {
    disk::sync(file.as_file())?;
    file.persist(path)?;
    sync_parent(path)
}

/// Writes a file under a temporary name beside `path`, for everybody to read, and gives it its name
/// (see [`land`]).
///
/// # Errors
/// What the kernel says.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    // Temporary files are their owner's alone; what lands is for everybody to read.
    let everybody = fs::Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().permissions(everybody).tempfile_in(parent)?;
    file.write_all(bytes)?;
    land(file, path)
}

/// What was renamed to `path` keeps that name when the power is cut.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    disk::sync(&File::open(path.parent().unwrap_or(Path::new("/")))?)
}

/// The failure for a write to the store; says what to do about a full or read-only disk.
pub(crate) fn write_failure(path: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--store")
        .unwrap_or_else(|| "check the store's file system".to_owned());
    Failure::new(ExitCode::Preflight, format!("writing {}", path.display()))
        .because(error)
        .remedy(remedy)
}

/// What to do about a write that failed, where `flag` sets another place to write to; None where
/// the error says nothing that one could act on.
pub(crate) fn write_remedy(error: &io::Error, flag: &str) -> Option<String> {
    // By kind: the error of a temporary file has no number.
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Some(format!("free space on its file system, or set {flag} to another one"))
        }
        ErrorKind::TimedOut => Some(format!(
            "see the kernel's log (dmesg) for the disk, which does not answer; set {flag} to another \
             one, or reboot this host when the disk is well"
        )),
        ErrorKind::PermissionDenied if !geteuid().is_root() => Some(format!(
            "this process has user id {}: run it as root (the container privileged), or set {flag} \
             to a directory that it may write",
            geteuid()
        )),
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            Some(format!("set {flag} to a directory that this process may write"))
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            Some(format!("a file is in the way: remove it, or set {flag} to a directory"))
        }
        _ => None,
    }
}
