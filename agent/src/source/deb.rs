//! Debian packages: an ar archive of `debian-binary`, `control.tar.*` and `data.tar.*` (deb(5)).

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// What was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpackedEntry {
    /// Relative to the directory it was unpacked into.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits, without setuid, setgid and sticky.
    pub mode: u32,
}

/// The kinds of entries that are unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A file of so many bytes.
    File(u64),
    /// A symbolic link with its target as it is written there.
    Symlink(PathBuf),
    /// Another name of a file unpacked before; the path is relative to the same directory.
    HardLink(PathBuf),
}

/// For [`unpack`]: everything, where the package has it.
pub fn everything(path: &Path) -> Option<PathBuf> {
    Some(path.to_path_buf())
}

/// Unpacks a package's data below the directory `into`, and never writes anywhere else.
///
/// `place` is given each path in the package (relative, without `./`) and says where it goes
/// (relative to `into`), or None to leave it out; directories that lead to a file are made.
/// Device nodes, sockets and setuid bits are left out. Nothing is written through a symbolic link,
/// but for usrmerge's `bin`, `sbin`, `lib` and `lib64`, where `into` has them (see
/// [`make_usrmerge_links`]).
///
/// # Errors
/// Exit code 13 naming `package` for a package that is cut off or damaged or wants to write
/// outside; 15 where `into` cannot be written.
pub fn unpack(
    _package: &str,
    _reader: impl Read,
    _into: &Path,
    _place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
) -> Result<Vec<UnpackedEntry>, Failure> {
    Ok(Vec::new())
}

/// Makes usr/bin, usr/sbin, usr/lib and usr/lib64 below `into`, and the links to them.
///
/// # Errors
/// Exit code 15 where `into` cannot be written.
pub fn make_usrmerge_links(_into: &Path) -> Result<(), Failure> {
    Ok(())
}

/// One file of a package's data, whole; None where the package has no such file.
///
/// # Errors
/// As [`unpack`].
pub fn read_file(
    _package: &str,
    _reader: impl Read,
    _path: &Path,
) -> Result<Option<Vec<u8>>, Failure> {
    Ok(None)
}

/// Gives one file of a package's data to `read` as a stream; None where there is no such file.
///
/// # Errors
/// As [`unpack`], and what `read` fails with.
pub fn with_file<T>(
    _package: &str,
    _reader: impl Read,
    _path: &Path,
    _read: impl FnOnce(&mut dyn Read) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    Ok(None)
}
