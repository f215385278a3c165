//! Payload of a .run file: a tar, compressed in the format that its first bytes identify.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;

use longshore_debian::compression::xz_stream;

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
    let kind = Kind::of(&head)?;
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(reader));
    Ok(match kind {
        Kind::Tar => Box::new(whole),
        Kind::Gzip => Box::new(GzDecoder::new(whole)),
        Kind::Xz => Box::new(XzDecoder::new_stream(whole, xz_stream(0)?)),
        Kind::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?.single_frame()),
    })
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Tar,
    Gzip,
    Xz,
    Zstd,
}

impl Kind {
    fn of(head: &[u8]) -> io::Result<Self> {
        Ok(match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ if head.get(USTAR) == Some(b"ustar") => Self::Tar,
            [] => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has no payload")),
            [b'B', b'Z', b'h', ..] => return Err(unknown("bzip2, which NVIDIA's files are not")),
            _ => {
                return Err(unknown("neither xz, zstd, gzip nor tar begins where its header says"));
            }
        })
    }
}

fn unknown(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its payload is unknown: {what}"))
}
