//! Compressed streams: gzip, xz, zstd.
//!
//! liblzma and zstd are C, and what they read comes from elsewhere. A program that has registered itself
//! ([`decompress_by`]) decompresses each stream in a process of its own, which has no rights
//! (docs/internals/decisions/decompression.md): itself once more, with [`SUBCOMMAND`] as its first argument. Others
//! decompress in their own address space: unit tests, fuzz targets, the kernel matrix.

mod child;
mod codec;
mod confine;
mod filter;
mod stream;

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::PathBuf;
use std::sync::OnceLock;

use longshore_core::failure::{Failure, FailureKind};

pub use child::{SUBCOMMAND, decompress_main};

/// Size of the buffer of decompressed bytes: headers of a tar are read in pieces of 512 bytes.
const BUFFER: usize = 128 << 10;

/// Program that decompresses.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Format of a compressed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// gzip (RFC 1952).
    Gzip,
    /// The .xz format.
    Xz,
    /// Zstandard (RFC 8878).
    Zstd,
}

/// Part of the input that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// One stream; bytes after its end are not looked at.
    First,
    /// One stream after the other, until the input ends.
    All,
}

impl Format {
    /// Formats with the word by which the process is asked for them.
    const WORDS: [(&'static str, Self); 3] =
        [("gzip", Self::Gzip), ("xz", Self::Xz), ("zstd", Self::Zstd)];

    /// Returns the format that the first bytes of a stream identify; None for any other.
    pub fn from_magic(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the format of a file by the extension of its name; None for any other.
    fn from_name(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1 {
            "gz" | "tgz" => Some(Self::Gzip),
            "xz" | "txz" => Some(Self::Xz),
            "zst" => Some(Self::Zstd),
            _ => None,
        }
    }
}

impl Extent {
    /// Extents with the word by which the process is asked for them.
    const WORDS: [(&'static str, Self); 2] = [("first", Self::First), ("all", Self::All)];
}

/// Registers the program that decompresses for this process: one whose main function hands [`SUBCOMMAND`] to
/// [`decompress_main`], `/proc/self/exe` for longshore itself. The first call counts.
pub fn decompress_by(program: impl Into<PathBuf>) {
    let _ = PROGRAM.set(program.into());
}

/// Decompresses `reader` by the extension of `name`: `.gz`, `.xz`, `.zst`; any other passes
/// unchanged. A truncated stream gives an error, never a short result.
///
/// # Errors
/// An error where the decompressor cannot be set up.
pub fn decompressed<'a>(name: &str, reader: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    match Format::from_name(name) {
        Some(format) => decompressed_as(format, Extent::All, reader),
        None => Ok(Box::new(reader)),
    }
}

/// Decompresses `reader`. A truncated stream gives an error, never a short result; after an error or the end of the
/// process, reading fails.
///
/// # Errors
/// An error where the decompressor cannot be set up ([`host_failure`] has its remedy).
pub fn decompressed_as<'a>(
    format: Format,
    extent: Extent,
    reader: impl BufRead + 'a,
) -> io::Result<Box<dyn Read + 'a>> {
    match PROGRAM.get() {
        Some(program) => {
            let stream = stream::ChildStream::start(program, format, extent, reader)?;
            Ok(Box::new(BufReader::with_capacity(BUFFER, stream)))
        }
        None => codec::decoder(format, extent, reader),
    }
}

/// Returns the failure of a host on which nothing can be decompressed, or whose memory does not suffice; None for an
/// error of the data.
pub fn host_failure(error: &io::Error) -> Option<Failure> {
    let (kind, remedy) = match error.kind() {
        ErrorKind::Unsupported => (
            FailureKind::HostUnsupported,
            "longshore decompresses in a process without rights: allow it seccomp(2), prctl(2) and a process more",
        ),
        ErrorKind::OutOfMemory => (
            FailureKind::Preflight,
            "give the container more memory: the kernel's log names a process that it killed for lack of it",
        ),
        _ => return None,
    };
    Some(Failure::new(kind, error.to_string()).remedy(remedy))
}

/// Makes an error of the kind by which [`host_failure`] recognizes a host without the means to decompress.
fn unavailable(what: String) -> io::Error {
    io::Error::new(ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests;
