//! Compressed streams: gzip, xz, zstd, by the end of a file's name.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

/// What xz may take of memory: its highest level takes 65 MiB, and a few bytes can ask for 4 GiB.
const XZ_MEMORY: u64 = 256 << 20;

/// Decompresses `reader` by the end of `name`: `.gz`, `.xz`, `.zst`; anything else passes as it is.
/// A stream that is cut off gives an error, never a short result.
///
/// # Errors
/// Where the decompressor cannot be set up.
pub fn decompressed<'a>(name: &str, reader: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("gz" | "tgz") => Box::new(MultiGzDecoder::new(reader)),
        Some("xz" | "txz") => Box::new(XzDecoder::new_stream(reader, xz_stream(CONCATENATED)?)),
        Some("zst") => Box::new(zstd::stream::read::Decoder::with_buffer(reader)?),
        _ => Box::new(reader),
    })
}

/// A decoder of xz that takes a bounded amount of memory; `flags` are liblzma's.
///
/// # Errors
/// Where the decompressor cannot be set up.
pub(crate) fn xz_stream(flags: u32) -> io::Result<Stream> {
    Stream::new_stream_decoder(XZ_MEMORY, flags).map_err(io::Error::other)
}
