//! The decompressors themselves, in the address space of whoever calls them.

use std::io::{self, BufRead, Read};

use flate2::bufread::{GzDecoder, MultiGzDecoder};
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use super::{Extent, Format};

/// Memory limit of xz: its highest level takes 65 MiB, and a few bytes can ask for 4 GiB. zstd's own limit is a
/// window of 128 MiB (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
pub(super) const XZ_MEMORY: u64 = 256 << 20;

/// Returns a decoder of `reader`. A truncated stream gives an error, never a short result.
///
/// # Errors
/// An error where the decompressor cannot be set up.
pub(super) fn decoder<'a>(
    format: Format,
    extent: Extent,
    reader: impl BufRead + 'a,
) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match (format, extent) {
        (Format::Gzip, Extent::First) => Box::new(GzDecoder::new(reader)),
        (Format::Gzip, Extent::All) => Box::new(MultiGzDecoder::new(reader)),
        (Format::Xz, Extent::First) => Box::new(XzDecoder::new_stream(reader, xz_stream(0)?)),
        (Format::Xz, Extent::All) => {
            Box::new(XzDecoder::new_stream(reader, xz_stream(CONCATENATED)?))
        }
        (Format::Zstd, Extent::First) => Box::new(zstd_decoder(reader)?.single_frame()),
        (Format::Zstd, Extent::All) => Box::new(zstd_decoder(reader)?),
    })
}

/// An xz decoder with a memory limit; `flags` are liblzma's.
fn xz_stream(flags: u32) -> io::Result<Stream> {
    Stream::new_stream_decoder(XZ_MEMORY, flags).map_err(io::Error::other)
}

fn zstd_decoder<'a, R: BufRead>(reader: R) -> io::Result<zstd::stream::read::Decoder<'a, R>> {
    zstd::stream::read::Decoder::with_buffer(reader)
}
