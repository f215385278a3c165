//! The payload of a .run file: a tar, compressed with what its first bytes say.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::Stream;

/// What xz may take of memory: its highest level takes 65 MiB.
const XZ_MEMORY: u64 = 256 << 20;
/// Where a tar's first header says that it is one (POSIX ustar, offset of `magic`).
const USTAR: std::ops::Range<usize> = 257..262;
const BLOCK: usize = 512;

/// Decompresses a payload. A stream that is cut off gives an error, never a short result; what
/// follows a stream's end is not read.
///
/// # Errors
/// Where the first bytes are those of no payload.
pub(super) fn open<'a>(mut reader: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::with_capacity(BLOCK);
    Read::take(&mut reader, BLOCK as u64).read_to_end(&mut head)?;
    let kind = Kind::of(&head)?;
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(reader));
    Ok(match kind {
        Kind::Tar => Box::new(whole),
        Kind::Gzip => Box::new(GzDecoder::new(whole)),
        Kind::Xz => {
            let stream = Stream::new_stream_decoder(XZ_MEMORY, 0).map_err(io::Error::other)?;
            Box::new(XzDecoder::new_stream(whole, stream))
        }
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

/// Gives at most so many bytes, and an error beyond.
pub(super) struct Bounded<R> {
    inner: R,
    left: u64,
    most: u64,
}

impl<R: Read> Bounded<R> {
    pub(super) fn new(inner: R, most: u64) -> Self {
        Self { inner, left: most, most }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(n as u64).ok_or_else(|| {
            let what = format!("it unpacks to more than {} MiB", self.most >> 20);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        Ok(n)
    }
}

/// What may be read next, until that is said anew.
pub(super) struct Budget {
    left: Cell<u64>,
    most: Cell<u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Cell::new(u64::MAX), most: Cell::new(u64::MAX) }
    }
}

impl Budget {
    pub(super) fn set(&self, most: u64) {
        self.left.set(most);
        self.most.set(most);
    }

    pub(super) fn lift(&self) {
        self.set(u64::MAX);
    }

    /// Gives what `inner` gives, and an error beyond the budget.
    pub(super) fn limit<'a, R: Read + 'a>(&'a self, inner: R) -> impl Read + use<'a, R> {
        Limited { inner, budget: self }
    }
}

struct Limited<'a, R> {
    inner: R,
    budget: &'a Budget,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        let left = self.budget.left.get().checked_sub(n as u64).ok_or_else(|| {
            let most = self.budget.most.get() >> 20;
            let what = format!("names and records of one file in it take more than {most} MiB");
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        self.budget.left.set(left);
        Ok(n)
    }
}
