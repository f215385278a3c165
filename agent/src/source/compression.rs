//! Compressed streams: gzip, xz, zstd, by the end of a file's name.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;

/// Decompresses `reader` by the end of `name`: `.gz`, `.xz`, `.zst`; anything else passes as it is.
/// A stream that is cut off gives an error, never a short result.
///
/// # Errors
/// Where the decompressor cannot be set up.
pub fn decompressed<'a>(name: &str, reader: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("gz" | "tgz") => Box::new(MultiGzDecoder::new(reader)),
        Some("xz" | "txz") => Box::new(XzDecoder::new_multi_decoder(reader)),
        Some("zst") => Box::new(zstd::stream::read::Decoder::with_buffer(reader)?),
        _ => Box::new(reader),
    })
}
