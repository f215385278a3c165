//! Durable atomic writes (temporary file, fsync, rename, fsync of the directory) and their errors.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::unistd::geteuid;
use tempfile::NamedTempFile;

use crate::disk::Disk;
use crate::failure::{Failure, FailureKind};

impl Disk {
    /// Renames a finished file to `path` durably: syncs its content, renames it, and syncs the
    /// directory. After a power cut a reader finds either the previous file or this one, complete.
    ///
    /// # Errors
    /// The kernel's error; if only the last step failed, the file has its name.
    pub fn land(self, file: NamedTempFile, path: &Path) -> io::Result<()> {
        self.sync(file.as_file())?;
        file.persist(path)?;
        self.sync_parent(path)
    }

    /// Writes a file under a temporary name beside `path`, readable by all, and renames it (see
    /// [`Disk::land`]).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write_atomically(self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let parent = directory_of(path);
        // Temporary files are private to their owner; the renamed file is readable by all.
        let everybody = fs::Permissions::from_mode(0o644);
        let mut file = tempfile::Builder::new().permissions(everybody).tempfile_in(parent)?;
        file.write_all(bytes)?;
        self.land(file, path)
    }

    /// Syncs the directory of `path`, so that a rename there survives a power cut.
    pub(crate) fn sync_parent(self, path: &Path) -> io::Result<()> {
        self.sync(&File::open(directory_of(path))?)
    }
}

/// Returns the directory of a file: the current one for a bare name, whose parent is the empty path.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// The failure for a write to the store, with the remedy for a full or read-only disk.
pub fn write_failure(path: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--store")
        .unwrap_or_else(|| "check the store's file system".to_owned());
    Failure::new(FailureKind::Disk, format!("writing {}", path.display()))
        .with_source(error)
        .remedy(remedy)
}

/// The failure for a local file that cannot be read: of the disk, unless there is no such file.
pub fn read_failure(path: &Path, error: io::Error) -> Failure {
    Failure::new(read_kind(&error), format!("reading {}", path.display())).with_source(error)
}

/// Kind of a failure to read a local file. One that is absent may be in another source.
pub fn read_kind(error: &io::Error) -> FailureKind {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => FailureKind::Download,
        _ => FailureKind::Disk,
    }
}

/// Remedy for a failed write, if `flag` sets another directory to write to; None if the error
/// suggests no remedy.
pub fn write_remedy(error: &io::Error, flag: &str) -> Option<String> {
    // Matched by kind: the error of a temporary file has no errno.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ExitCode;

    #[test]
    fn a_bare_name_is_in_the_current_directory() {
        for (path, directory) in [("a", "."), ("a/b", "a"), ("/a", "/"), ("/", "/")] {
            assert_eq!(directory_of(Path::new(path)), Path::new(directory), "{path}");
        }
    }

    /// A missing file may be elsewhere; one that cannot be read is a fault of this host's disk.
    #[test]
    fn a_file_that_is_absent_is_told_from_one_that_cannot_be_read() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "").expect("written");
        std::os::unix::fs::symlink(&link, &link).expect("a link to itself");
        for (path, kind, code) in [
            (dir.path().join("absent"), FailureKind::Download, ExitCode::Download),
            (file.join("below"), FailureKind::Download, ExitCode::Download),
            (dir.path().to_path_buf(), FailureKind::Disk, ExitCode::Preflight),
            (link, FailureKind::Disk, ExitCode::Preflight),
        ] {
            let failure = read_failure(&path, fs::read(&path).expect_err("unreadable"));
            assert_eq!((failure.kind(), failure.code()), (kind, code), "{}", failure.report());
            assert!(failure.to_string().ends_with(&path.display().to_string()), "{failure}");
        }
    }
}
