//! Layers of an image, unpacked one over the other into a directory.
//!
//! After the OCI image specification 1.1, "image layer filesystem changeset": a file of a layer replaces what is
//! below it, `.wh.NAME` removes NAME of the layers below, `.wh..wh..opq` all of a directory. Since both are about
//! the layers below alone, a layer is read twice: first for what it removes, then for what it adds.
//!
//! Everything belongs to root here, without setuid bits and extended attributes; devices, FIFOs and sockets are left
//! out. Nothing is written outside of the directory ([`super::target`]), and all of it is bounded.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use tar::EntryType;

use super::bounds::{Count, LIMITS, Limits, clean};
use super::target::Target;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::ownership::{self, Untrusted};
use longshore_debian::bounds::{Bounded, Budget, MOST_BETWEEN};
use longshore_debian::compression::{Extent, Format, decompressed_as, host_failure};

/// Prefix of a whiteout's name, and of the names that other tools use beside them.
const WHITEOUT: &[u8] = b".wh.";
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Room for headers and padding of a tar beside the files' bytes.
const MOST_OVERHEAD: u64 = 1 << 30;

/// Error of a layer, or of the disk.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The contents are forbidden.
    Bad(String),
    /// Others than root may write to a file.
    Untrusted(Untrusted),
    /// The layer cannot be read.
    Read(io::Error),
    /// The disk cannot be written.
    Write(PathBuf, io::Error),
}

impl Refusal {
    /// Returns the failure of the build root in `place`.
    pub(super) fn failure(self, place: &str) -> Failure {
        let kind = FailureKind::Verification;
        match self {
            Self::Bad(what) => {
                Failure::new(kind, format!("the build root {place} cannot be used: {what}"))
                    .remedy("make the build root again, or name another one")
            }
            Self::Untrusted(untrusted) => {
                let cause = format!("the build root {place} cannot be used");
                ownership::failure(kind, cause, untrusted.into(), "")
            }
            Self::Read(error) => host_failure(&error).unwrap_or_else(|| {
                Failure::new(kind, format!("the build root {place} is cut off or damaged"))
                    .with_source(error)
                    .remedy(
                        "make the build root again; a file in the store is fetched anew once it is removed",
                    )
            }),
            Self::Write(path, error) => write_failure(&path, error),
        }
    }
}

/// Unpacks layers of a small image into an empty directory, as those of a build root are.
///
/// # Errors
/// As those of a build root, with smaller limits: 2,000 entries, 8 MiB, 500 directories that no entry names.
#[cfg(any(test, feature = "testing"))]
pub fn unpack_layers(into: &Path, layers: &[&[u8]]) -> Result<(), Failure> {
    let limits = Limits { entries: 2_000, bytes: 8 << 20, implied: 500 };
    let mut unpacking = Unpacking::within(into, limits).map_err(|e| e.failure("layers"))?;
    for layer in layers {
        unpacking.layer(|| Ok(*layer)).map_err(|e| e.failure("layers"))?;
    }
    Ok(())
}

type Outcome<T> = Result<T, Refusal>;
type TarEntry<'a, 'b> = tar::Entry<'a, &'b mut dyn Read>;

/// A directory that layers are unpacked into.
#[derive(Debug)]
pub(super) struct Unpacking {
    into: PathBuf,
    pub(super) target: Target,
    count: Count,
    /// Most unpacked bytes of all layers, and those read so far: what is skipped takes time too.
    most: u64,
    read: u64,
    is_empty: bool,
}

impl Unpacking {
    /// Opens an empty directory that only this process writes to.
    pub(super) fn into(dir: &Path) -> Outcome<Self> {
        Self::within(dir, LIMITS)
    }

    pub(super) fn within(dir: &Path, limits: Limits) -> Outcome<Self> {
        let target = Target::open(dir, limits.implied);
        let target = target.map_err(|e| Refusal::Write(dir.to_path_buf(), e))?;
        Ok(Self {
            into: dir.to_path_buf(),
            target,
            count: Count::new(limits),
            most: limits.bytes.saturating_add(MOST_OVERHEAD),
            read: 0,
            is_empty: true,
        })
    }

    /// Number of unpacked bytes of files so far, of those that were replaced too.
    pub(super) fn bytes(&self) -> u64 {
        self.count.bytes()
    }

    /// Removes everything that was unpacked. It counts on: what comes next is of the same origin.
    pub(super) fn start_over(&mut self) -> Outcome<()> {
        let cleared = self.target.clear(Path::new(""));
        self.is_empty = true;
        cleared.map_err(|e| Refusal::Write(self.into.clone(), e))
    }

    /// Unpacks a layer over those before it; `open` opens it, a tar file in any compression.
    pub(super) fn layer<R: Read>(&mut self, open: impl Fn() -> io::Result<R>) -> Outcome<()> {
        if !std::mem::take(&mut self.is_empty) {
            let layer = open().map_err(Refusal::Read)?;
            each_entry(self.bounded(layer)?, |path, entry| self.take_away(path, entry))?;
        }
        let layer = open().map_err(Refusal::Read)?;
        self.read = each_entry(self.bounded(layer)?, |path, entry| self.add(path, entry))?;
        Ok(())
    }

    fn bounded<'a>(&self, layer: impl Read + 'a) -> Outcome<Bounded<Box<dyn Read + 'a>>> {
        Ok(Bounded::after(self.read, unpacked(layer)?, self.most))
    }

    /// Removes what a whiteout names, and what the layer's directories replace: entries of a directory may come
    /// before its own. A path counts as it is written, and names nothing behind a link, which the layer may
    /// replace as well.
    fn take_away(&mut self, path: &Path, entry: &TarEntry<'_, '_>) -> Outcome<()> {
        let Some(name) = whiteout(path) else {
            let is_dir = entry.header().entry_type().is_dir() && !path.as_os_str().is_empty();
            let removed = if is_dir { self.target.remove_literal_leaf(path) } else { Ok(()) };
            return removed.map_err(|e| self.refusal(path, e));
        };
        let dir = path.parent().unwrap_or(Path::new(""));
        let removed = match name {
            OPAQUE => self.target.clear(dir),
            _ if name.starts_with(RESERVED) => Ok(()),
            _ => {
                check_whiteout(path)?;
                self.target.remove_literal(&dir.join(OsStr::from_bytes(&name[WHITEOUT.len()..])))
            }
        };
        removed.map_err(|e| self.refusal(path, e))
    }

    fn add(&mut self, path: &Path, entry: &mut TarEntry<'_, '_>) -> Outcome<()> {
        let kind = entry.header().entry_type();
        if kind.is_gnu_sparse() {
            // A few bytes of it can declare any number of zeros.
            return Err(Refusal::Bad(format!("{} is a sparse file", path.display())));
        }
        // Of every kind: a link or directory can have contents too, which are skipped.
        self.count.add(entry.size()).map_err(Refusal::Bad)?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        if whiteout(path).is_some() {
            // In the lowest layer it removes nothing, and must still name an entry.
            return if kind.is_dir() { Ok(()) } else { check_whiteout(path) };
        }
        let mode = entry.header().mode().map_err(Refusal::Read)?;
        let made = match kind {
            EntryType::Directory => self.target.make_dir(path, mode),
            EntryType::Regular | EntryType::Continuous => return self.add_file(path, mode, entry),
            EntryType::Symlink => self.target.make_link(path, &link_target(path, entry)?),
            EntryType::Link => {
                let of = clean(&link_target(path, entry)?).map_err(Refusal::Bad)?;
                return self.add_name(path, &of);
            }
            // A device, FIFO or socket: it replaces a file, and is not made.
            EntryType::Block | EntryType::Char | EntryType::Fifo => self.target.remove(path),
            _ => Ok(()),
        };
        made.map_err(|e| self.refusal(path, e))
    }

    fn add_file(&mut self, path: &Path, mode: u32, entry: &mut TarEntry<'_, '_>) -> Outcome<()> {
        let modified = entry.header().mtime().map_err(Refusal::Read)?;
        let time = UNIX_EPOCH.checked_add(Duration::from_secs(modified));
        let size = entry.size();
        let written = self.write_file(path, mode, time, entry)?;
        if written == size {
            return Ok(());
        }
        Err(Refusal::Read(ErrorKind::UnexpectedEof.into()))
    }

    fn add_name(&mut self, path: &Path, of: &Path) -> Outcome<()> {
        self.target.make_name(path, of).map_err(|error| match of_path(&error) {
            true => {
                let (path, of) = (path.display(), of.display());
                Refusal::Bad(format!("{path} is another name of {of}, which is no file in it"))
            }
            false => self.refusal(path, error),
        })
    }

    /// Writes a file; returns its size.
    pub(super) fn write_file(
        &mut self,
        path: &Path,
        mode: u32,
        modified: Option<SystemTime>,
        from: &mut dyn Read,
    ) -> Outcome<u64> {
        let mut file = self.target.make_file(path).map_err(|e| self.refusal(path, e))?;
        let size = copy(from, &mut file, |e| self.refusal(path, e))?;
        let finish = || {
            file.set_permissions(Permissions::from_mode(mode & 0o777))?;
            // make(1) compares times.
            modified.map_or(Ok(()), |time| file.set_modified(time))
        };
        finish().map_err(|e| self.refusal(path, e))?;
        Ok(size)
    }

    /// Tells an entry that cannot be made in the tree there is from a disk that cannot be written.
    pub(super) fn refusal(&self, path: &Path, error: io::Error) -> Refusal {
        match of_path(&error) {
            true => Refusal::Bad(format!("{} cannot be made there: {error}", path.display())),
            false => Refusal::Write(self.into.join(path), error),
        }
    }
}

/// True for errors that a path has, and no disk.
fn of_path(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    error.kind() == ErrorKind::InvalidData
        || matches!(
            errno,
            Some(
                Errno::ELOOP
                    | Errno::ENOTDIR
                    | Errno::EISDIR
                    | Errno::ENOENT
                    | Errno::ENAMETOOLONG
                    | Errno::EINVAL
                    | Errno::EMLINK
            )
        )
}

fn check_whiteout(path: &Path) -> Outcome<()> {
    match whiteout(path).map(|name| &name[WHITEOUT.len()..]) {
        Some(b"" | b"." | b"..") => {
            Err(Refusal::Bad(format!("its whiteout {} names no entry", path.display())))
        }
        _ => Ok(()),
    }
}

/// Returns the name of a whiteout; None for every other entry.
fn whiteout(path: &Path) -> Option<&[u8]> {
    path.file_name().map(OsStr::as_bytes).filter(|name| name.starts_with(WHITEOUT))
}

fn link_target(path: &Path, entry: &TarEntry<'_, '_>) -> Outcome<PathBuf> {
    let name = entry.link_name().map_err(Refusal::Read)?;
    let target = name.filter(|name| !name.as_os_str().is_empty()).map(std::borrow::Cow::into_owned);
    target.ok_or_else(|| Refusal::Bad(format!("the link {} has no target", path.display())))
}

/// Visits the entries of a tar file, reads it to its end, and returns the number of bytes read so far.
fn each_entry(
    mut layer: Bounded<impl Read>,
    visit: impl FnMut(&Path, &mut TarEntry<'_, '_>) -> Outcome<()>,
) -> Outcome<u64> {
    visit_entries(&mut layer, visit)?;
    Ok(layer.read_so_far())
}

fn visit_entries(
    layer: impl Read,
    mut visit: impl FnMut(&Path, &mut TarEntry<'_, '_>) -> Outcome<()>,
) -> Outcome<()> {
    let budget = Budget::default();
    let mut data = budget.limit(layer);
    let data: &mut dyn Read = &mut data;
    let mut tar = tar::Archive::new(data);
    let mut entries = tar.entries().map_err(Refusal::Read)?;
    loop {
        budget.set(MOST_BETWEEN);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(Refusal::Read)?;
        budget.lift();
        let path = entry.path().map_err(Refusal::Read)?.into_owned();
        visit(&clean(&path).map_err(Refusal::Bad)?, &mut entry)?;
        // Bytes that were not read would otherwise count as names and records of the next entry.
        io::copy(&mut entry, &mut io::sink()).map_err(Refusal::Read)?;
    }
    budget.lift();
    io::copy(tar.into_inner(), &mut io::sink()).map_err(Refusal::Read)?;
    Ok(())
}

/// Decompresses by the first bytes: media types and file names may name another compression.
fn unpacked<'a>(layer: impl Read + 'a) -> Outcome<Box<dyn Read + 'a>> {
    let mut layer = BufReader::with_capacity(1 << 16, layer);
    match Format::from_magic(layer.fill_buf().map_err(Refusal::Read)?) {
        Some(format) => decompressed_as(format, Extent::All, layer).map_err(Refusal::Read),
        None => Ok(Box::new(layer)),
    }
}

/// True for a tar file that is compressed.
pub(super) fn is_compressed(from: impl Read) -> io::Result<bool> {
    let mut from = BufReader::with_capacity(1 << 9, from);
    Ok(Format::from_magic(from.fill_buf()?).is_some())
}

/// Copies everything; returns its size.
pub(super) fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    unwritten: impl Fn(io::Error) -> Refusal,
) -> Outcome<u64> {
    let mut buffer = [0; 1 << 16];
    let mut size = 0;
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(size),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(Refusal::Read(e)),
        };
        to.write_all(&buffer[..n]).map_err(&unwritten)?;
        size += n as u64;
    }
}

#[cfg(test)]
mod tests;
