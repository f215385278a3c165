//! Compressed bytes for tests.

use std::io::{Read, Write, copy, repeat};

use longshore_debian::compression::Format;
use longshore_tests::archive::gzip;

pub(crate) const FORMATS: [Format; 3] = [Format::Gzip, Format::Xz, Format::Zstd];

/// Compresses `plain`.
pub(crate) fn packed(format: Format, plain: &[u8]) -> Vec<u8> {
    match format {
        Format::Gzip => gzip(plain),
        Format::Xz => {
            let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 1);
            writer.write_all(plain).expect("packed");
            writer.finish().expect("packed")
        }
        Format::Zstd => {
            let mut writer = zstd::Encoder::new(Vec::new(), 1).expect("encoder");
            writer.include_checksum(true).expect("a checksum");
            writer.write_all(plain).expect("packed");
            writer.finish().expect("packed")
        }
    }
}

/// Compresses so many zeros.
pub(crate) fn zeros(size: u64) -> Vec<u8> {
    let mut writer = zstd::Encoder::new(Vec::new(), 1).expect("encoder");
    copy(&mut repeat(0).take(size), &mut writer).expect("packed");
    writer.finish().expect("packed")
}

/// An xz stream of `plain` whose block header asks for the dictionary with this number: 31 is 192 MiB, 40 is 4 GiB
/// (xz-file-format, 5.3.1).
pub(crate) fn xz_with_dictionary(plain: &[u8], number: u8) -> Vec<u8> {
    let mut bytes = packed(Format::Xz, plain);
    let header = 12..12 + (usize::from(bytes[12]) + 1) * 4;
    let at = header.start + 4;
    assert_eq!(bytes[at - 2..at], [0x21, 1], "LZMA2 with one byte of properties");
    bytes[at] = number;
    let sum = header.end - 4;
    let mut crc = flate2::Crc::new();
    crc.update(&bytes[header.start..sum]);
    bytes[sum..header.end].copy_from_slice(&crc.sum().to_le_bytes());
    bytes
}

/// A zstd frame of `plain` with a window of 2^`log` bytes.
pub(crate) fn zstd_with_window(plain: &[u8], log: u32) -> Vec<u8> {
    let mut writer = zstd::Encoder::new(Vec::new(), 1).expect("encoder");
    writer.window_log(log).expect("a window");
    writer.write_all(plain).expect("packed");
    // Without it the frame ends small, and needs no window.
    writer.flush().expect("packed");
    writer.finish().expect("packed")
}
