//! Tars of drivers: the payload of a .run file, a tree of sources; compressed in the format that their first bytes
//! identify, and unpacked within limits.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use longshore_core::failure::Failure;
use longshore_debian::bounds::{Bounded, Budget, MOST_BETWEEN};
use longshore_debian::compression::{Extent, Format, decompressed_as};
use longshore_debian::faults::{bad, damaged};
use longshore_debian::tree::Tree;

/// Entry of a tar in any compression.
pub(crate) type TarballEntry<'a, 'b> = tar::Entry<'a, &'b mut dyn Read>;

/// Limits of what a tar unpacks to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes, with headers.
    pub(crate) bytes: u64,
    /// Entries.
    pub(crate) files: usize,
}

/// Unpacks a tar below `into`, to its end: `check` refuses an entry before anything of it is made, `place` maps its path
/// to the one below `into`, or leaves it out.
///
/// # Errors
/// Exit code 13 naming `name` for a tar that is cut off, damaged, beyond the limits, or refused; 15 where `into` cannot
/// be written.
pub(crate) fn unpack(
    name: &str,
    from: impl BufRead,
    into: &Path,
    limits: Limits,
    check: &mut dyn FnMut(&TarballEntry<'_, '_>) -> Result<(), Failure>,
    place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
) -> Result<(), Failure> {
    let fail = |e| damaged(name, e);
    let mut payload = Bounded::new(open(from).map_err(fail)?, limits.bytes);
    let budget = Budget::default();
    let mut payload = budget.limit(&mut payload);
    let payload: &mut dyn Read = &mut payload;
    let mut tar = tar::Archive::new(payload);
    let mut tree = Tree::open(into)?;
    let mut entries = tar.entries().map_err(fail)?;
    for number in 0.. {
        budget.set(MOST_BETWEEN);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(fail)?;
        budget.lift();
        if number >= limits.files {
            return Err(bad(name, &format!("it holds more than {} files", limits.files)));
        }
        // Written by git archive: it has no file, though the library gives it a path.
        if entry.header().entry_type().is_pax_global_extensions() {
            continue;
        }
        check(&entry)?;
        tree.add(name, &mut entry, place)?;
        // Skipped bytes would otherwise count against the limit between files.
        io::copy(&mut entry, &mut io::sink()).map_err(fail)?;
    }
    budget.lift();
    io::copy(tar.into_inner(), &mut io::sink()).map_err(fail)?;
    Ok(())
}

/// Offset of `magic` in a tar's first header (POSIX ustar).
const USTAR: std::ops::Range<usize> = 257..262;
const BLOCK: usize = 512;

/// Decompresses a tar. A truncated stream gives an error, never a short result; bytes after the
/// stream's end are not read.
///
/// # Errors
/// An error where the first bytes are not those of a payload.
fn open<'a>(mut reader: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::with_capacity(BLOCK);
    Read::take(&mut reader, BLOCK as u64).read_to_end(&mut head)?;
    let format = format(&head)?;
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(reader));
    match format {
        Some(format) => decompressed_as(format, Extent::First, whole),
        None => Ok(Box::new(whole)),
    }
}

/// Returns the format of a payload; None for a plain tar.
fn format(head: &[u8]) -> io::Result<Option<Format>> {
    match head {
        _ if Format::from_magic(head).is_some() => Ok(Format::from_magic(head)),
        _ if head.get(USTAR) == Some(b"ustar") => Ok(None),
        [] => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has no payload")),
        [b'B', b'Z', b'h', ..] => Err(unknown("bzip2, which NVIDIA's files are not")),
        _ => Err(unknown("neither xz, zstd, gzip nor tar begins where its header says")),
    }
}

fn unknown(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its payload is unknown: {what}"))
}
