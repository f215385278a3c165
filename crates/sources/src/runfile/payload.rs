//! Payload of a .run file: a tar, compressed in the format that its first bytes identify.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use longshore_debian::compression::{Extent, Format, decompressed_as};

/// Offset of `magic` in a tar's first header (POSIX ustar).
const USTAR: std::ops::Range<usize> = 257..262;
const BLOCK: usize = 512;

/// Decompresses a payload. A truncated stream gives an error, never a short result; bytes after the
/// stream's end are not read.
///
/// # Errors
/// An error where the first bytes are not those of a payload.
pub(super) fn open<'a>(mut reader: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
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
