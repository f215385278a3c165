//! Compressed streams: gzip, xz, zstd, by a file name's extension.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

/// Memory limit of xz: its highest level takes 65 MiB, and a few bytes can ask for 4 GiB.
const XZ_MEMORY: u64 = 256 << 20;

/// Decompresses `reader` by the extension of `name`: `.gz`, `.xz`, `.zst`; any other passes
/// unchanged. A truncated stream gives an error, never a short result.
///
/// # Errors
/// An error where the decompressor cannot be set up.
pub fn decompressed<'a>(name: &str, reader: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("gz" | "tgz") => Box::new(MultiGzDecoder::new(reader)),
        Some("xz" | "txz") => Box::new(XzDecoder::new_stream(reader, xz_stream(CONCATENATED)?)),
        Some("zst") => Box::new(zstd::stream::read::Decoder::with_buffer(reader)?),
        _ => Box::new(reader),
    })
}

/// An xz decoder with a memory limit; `flags` are liblzma's.
///
/// # Errors
/// An error where the decompressor cannot be set up.
pub fn xz_stream(flags: u32) -> io::Result<Stream> {
    Stream::new_stream_decoder(XZ_MEMORY, flags).map_err(io::Error::other)
}
