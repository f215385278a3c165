//! Debian packages: an ar archive of `debian-binary`, `control.tar.*` and `data.tar.*` (deb(5)).

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::bounds::{Bounded, Budget, MOST_BETWEEN};
use super::compression::decompressed;
use super::faults::{bad, damaged};
use super::tree::{self, TarEntry, Tree, entry_path};
use longshore_core::failure::Failure;
use longshore_core::read_ahead::read_ahead;

pub use super::tree::{EntryKind, UnpackedEntry, make_usrmerge_links};

/// Maximum unpacked size of a package; a larger one is damaged or hostile.
const MOST_UNPACKED: u64 = 32 << 30;
/// Maximum size of a file read into memory: headers' configuration has some hundred kB.
const MOST_READ: u64 = 64 << 20;
/// Beginning of the name of the member with a package's files, and of that with its maintainer scripts.
const DATA: &str = "data.tar";
const CONTROL: &str = "control.tar";

/// Selects everything, for [`unpack`].
pub fn everything(path: &Path) -> Option<PathBuf> {
    Some(path.to_path_buf())
}

/// Unpacks a package's data below the directory `into`, and never writes anywhere else.
///
/// `place` maps each path in the package (relative, without `./`) to its target (relative to
/// `into`), or to None to leave it out; parent directories are created. Device nodes, sockets and
/// setuid bits are left out. Nothing is written through a symbolic link, except usrmerge's `bin`,
/// `sbin`, `lib` and `lib64`, if `into` has them (see [`make_usrmerge_links`]). Files are not
/// synced to disk one by one.
///
/// # Errors
/// Exit code 13 naming `package` for a package that is cut off or damaged or wants to write
/// outside; 15 where `into` cannot be written.
pub fn unpack(
    package: &str,
    reader: impl Read,
    into: &Path,
    place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
) -> Result<Vec<UnpackedEntry>, Failure> {
    let mut unpacking = Unpacking::into(into)?;
    each_entry(package, reader, |entry| unpacking.add(package, entry, place))?;
    Ok(unpacking.entries)
}

/// Unpacks a tar from a package, compressed according to the extension of `name`, below the
/// directory `into`; completely, in the manner of [`unpack`].
///
/// # Errors
/// As [`unpack`].
pub fn unpack_tar(
    package: &str,
    name: &str,
    reader: impl BufRead + Send,
    into: &Path,
) -> Result<Vec<UnpackedEntry>, Failure> {
    let mut unpacking = Unpacking::into(into)?;
    read_ahead(
        || decompressed(name, reader),
        |data| each_of_tar(package, data, |e| unpacking.add(package, e, &mut everything)),
    )?;
    Ok(unpacking.entries)
}

/// A directory that entries are unpacked into, and the unpacked entries.
struct Unpacking<'a> {
    tree: Tree<'a>,
    entries: Vec<UnpackedEntry>,
}

impl<'a> Unpacking<'a> {
    fn into(dir: &'a Path) -> Result<Self, Failure> {
        Ok(Self { tree: Tree::open(dir)?, entries: Vec::new() })
    }

    fn add(
        &mut self,
        package: &str,
        entry: &mut TarEntry<'_, '_>,
        place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
    ) -> Result<Go, Failure> {
        self.entries.extend(self.tree.add(package, entry, place)?);
        Ok(Go::On)
    }
}

/// Reads one regular file of a package's data, of at most 64 MiB; None where the package has no
/// such file.
///
/// # Errors
/// As [`unpack`].
pub fn read_file(
    package: &str,
    reader: impl Read,
    path: &Path,
) -> Result<Option<Vec<u8>>, Failure> {
    file_in(DATA, package, reader, path)
}

fn read_whole(package: &str, path: &Path, file: &mut dyn Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    file.take(MOST_READ + 1).read_to_end(&mut bytes).map_err(|e| damaged(package, e))?;
    if bytes.len() as u64 > MOST_READ {
        let what = format!("{} has more than {} MiB", path.display(), MOST_READ >> 20);
        return Err(bad(package, &what));
    }
    Ok(bytes)
}

/// Reads one regular file of a package's control archive, such as `postinst`, of at most 64 MiB; None
/// where the package has no such file. The file is never run.
///
/// # Errors
/// As [`unpack`].
pub fn control_file(
    package: &str,
    reader: impl Read,
    name: &str,
) -> Result<Option<Vec<u8>>, Failure> {
    file_in(CONTROL, package, reader, Path::new(name))
}

/// Reads one regular file of the tar in the member whose name begins with `tar`.
fn file_in(
    tar: &str,
    package: &str,
    reader: impl Read,
    path: &Path,
) -> Result<Option<Vec<u8>>, Failure> {
    let mut found = None;
    each_entry_of(tar, package, reader, |entry| {
        let is_it = tree::clean(&entry_path(package, entry)?).is_ok_and(|inside| inside == path);
        if !is_it || !entry.header().entry_type().is_file() {
            return Ok(Go::On);
        }
        found = Some(read_whole(package, path, entry)?);
        Ok(Go::Stop)
    })?;
    Ok(found)
}

/// Passes each file of a package's data that `wanted` selects (by its relative path) to `take`, as a
/// stream; directories are passed over. A package whose entries have more than `most` bytes together is refused before they are
/// read.
///
/// # Errors
/// As [`unpack`]; 13 where a selected entry is no regular file; and the errors of `take`.
pub fn each_file(
    package: &str,
    reader: impl Read,
    most: u64,
    wanted: &dyn Fn(&Path) -> bool,
    take: &mut dyn FnMut(&Path, &mut dyn Read) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut left = most;
    each_entry(package, reader, |entry| {
        left = left.checked_sub(entry.size()).ok_or_else(|| {
            bad(package, &format!("its files have more than {} MiB together", most >> 20))
        })?;
        let path = tree::clean(&entry_path(package, entry)?).map_err(|e| bad(package, &e))?;
        if entry.header().entry_type().is_dir() || !wanted(&path) {
            return Ok(Go::On);
        }
        if !entry.header().entry_type().is_file() {
            return Err(bad(package, &format!("{} is no regular file", path.display())));
        }
        take(&path, entry).map(|()| Go::On)
    })
}

/// Lists the paths in a package's data, relative and without `./`.
///
/// # Errors
/// As [`unpack`].
pub fn list(package: &str, reader: impl Read) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    each_entry(package, reader, |entry| {
        let path = entry_path(package, entry)?;
        paths.push(tree::clean(&path).map_err(|e| bad(package, &e))?);
        Ok(Go::On)
    })?;
    Ok(paths)
}

enum Go {
    On,
    Stop,
}

/// Visits the entries of the data tar; unless stopped, reads the package to its end, so that a
/// truncated one fails.
fn each_entry(
    package: &str,
    reader: impl Read,
    visit: impl FnMut(&mut TarEntry<'_, '_>) -> Result<Go, Failure>,
) -> Result<(), Failure> {
    each_entry_of(DATA, package, reader, visit)
}

/// Visits the entries of the tar in the member whose name begins with `tar`.
fn each_entry_of(
    tar: &str,
    package: &str,
    reader: impl Read,
    visit: impl FnMut(&mut TarEntry<'_, '_>) -> Result<Go, Failure>,
) -> Result<(), Failure> {
    let fail = |e| damaged(package, e);
    let mut ar = Ar::new(BufReader::with_capacity(1 << 16, reader)).map_err(fail)?;
    let name = loop {
        match ar.next_member().map_err(fail)? {
            Some(name) if name.starts_with(tar) => break name,
            Some(_) => continue,
            None => return Err(bad(package, &format!("it has no {tar}"))),
        }
    };
    let member = BufReader::with_capacity(1 << 16, &mut ar);
    each_of_tar(package, decompressed(&name, member).map_err(fail)?, visit)
}

fn each_of_tar(
    package: &str,
    data: impl Read,
    mut visit: impl FnMut(&mut TarEntry<'_, '_>) -> Result<Go, Failure>,
) -> Result<(), Failure> {
    let fail = |e| damaged(package, e);
    let mut data = Bounded::new(data, MOST_UNPACKED);
    let budget = Budget::default();
    let mut data = budget.limit(&mut data);
    let data: &mut dyn Read = &mut data;
    let mut tar = tar::Archive::new(data);
    let mut entries = tar.entries().map_err(fail)?;
    loop {
        budget.set(MOST_BETWEEN);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(fail)?;
        budget.lift();
        // A sparse entry of a few bytes can declare any number of zeros to write; dpkg refuses
        // them, too.
        if entry.header().entry_type().is_gnu_sparse() {
            return Err(bad(package, "it holds a sparse file"));
        }
        if let Go::Stop = visit(&mut entry)? {
            return Ok(());
        }
        // Skipped bytes would otherwise count against the limit between files.
        io::copy(&mut entry, &mut io::sink()).map_err(fail)?;
    }
    budget.lift();
    io::copy(tar.into_inner(), &mut io::sink()).map_err(fail)?;
    Ok(())
}

/// A reader of ar archives that reads the current member's bytes.
struct Ar<R> {
    inner: R,
    /// Bytes left of the current member.
    left: u64,
    /// True if a padding byte follows it.
    padded: bool,
}

impl<R: Read> Ar<R> {
    fn new(mut inner: R) -> io::Result<Self> {
        let mut magic = [0; 8];
        inner.read_exact(&mut magic)?;
        if &magic != b"!<arch>\n" {
            return Err(invalid("it is not an ar archive"));
        }
        Ok(Self { inner, left: 0, padded: false })
    }

    /// Skips to the next member and returns its name; None at the end.
    fn next_member(&mut self) -> io::Result<Option<String>> {
        io::copy(self, &mut io::sink())?;
        if self.padded {
            self.inner.read_exact(&mut [0])?;
            self.padded = false;
        }
        let mut header = [0; 60];
        if !read_all_or_nothing(&mut self.inner, &mut header)? {
            return Ok(None);
        }
        if &header[58..] != b"`\n" {
            return Err(invalid("an ar header is damaged"));
        }
        let size = std::str::from_utf8(&header[48..58]).unwrap_or_default().trim_end();
        self.left = size.parse().map_err(|_| invalid("an ar header has no size"))?;
        self.padded = self.left % 2 == 1;
        let name = String::from_utf8_lossy(&header[..16]);
        Ok(Some(name.trim_end().trim_end_matches('/').to_owned()))
    }
}

impl<R: Read> Read for Ar<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.inner.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{} bytes are missing at its end", self.left),
            ));
        }
        self.left -= n as u64;
        Ok(n)
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// True if the buffer could be filled, false at the end of the input; an error where the input ends
/// within it.
fn read_all_or_nothing(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut first = [0; 1];
    if reader.read(&mut first)? == 0 {
        return Ok(false);
    }
    buffer[0] = first[0];
    reader.read_exact(&mut buffer[1..])?;
    Ok(true)
}

#[cfg(test)]
mod tests;
