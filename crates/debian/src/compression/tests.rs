//! Decompression in this process. tests/tests/decompression.rs has the same by the process without rights.

use std::io::Write;

use super::*;
use rstest::rstest;

const PLAIN: &[u8] = b"text, and text, and text";

fn packed(format: Format) -> Vec<u8> {
    match format {
        Format::Gzip => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            writer.write_all(PLAIN).expect("packed");
            writer.finish().expect("packed")
        }
        Format::Xz => {
            let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 1);
            writer.write_all(PLAIN).expect("packed");
            writer.finish().expect("packed")
        }
        Format::Zstd => zstd::encode_all(PLAIN, 1).expect("packed"),
    }
}

fn read(format: Format, extent: Extent, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    decompressed_as(format, extent, bytes)?.read_to_end(&mut plain)?;
    Ok(plain)
}

#[rstest]
fn the_first_stream_or_all_are_read(
    #[values(Format::Gzip, Format::Xz, Format::Zstd)] format: Format,
) {
    let one = packed(format);
    let two = [&one[..], &one].concat();
    assert_eq!(Format::from_magic(&one), Some(format));
    assert_eq!(read(format, Extent::First, &two).expect("read"), PLAIN);
    assert_eq!(read(format, Extent::All, &two).expect("read"), PLAIN.repeat(2));
    let beside = [&one[..], b"more"].concat();
    assert_eq!(read(format, Extent::First, &beside).expect("read"), PLAIN);
    for extent in [Extent::First, Extent::All] {
        read(format, extent, &one[..one.len() - 3]).expect_err("cut off");
    }
}

#[rstest]
#[case("data.tar.xz", Some(Format::Xz))]
#[case("a.txz", Some(Format::Xz))]
#[case("Packages.gz", Some(Format::Gzip))]
#[case("a.tgz", Some(Format::Gzip))]
#[case("nvidia.ko.zst", Some(Format::Zstd))]
#[case("data.tar", None)]
#[case("xz", None)]
fn formats_by_extension(#[case] name: &str, #[case] format: Option<Format>) {
    assert_eq!(Format::from_name(name), format);
}

#[test]
fn an_error_of_the_data_is_none_of_the_host() {
    let error = read(Format::Xz, Extent::All, b"no xz at all").expect_err("refused");
    assert!(host_failure(&error).is_none(), "{error}");
    let failure = host_failure(&unavailable("no seccomp".into())).expect("a failure");
    assert_eq!(failure.kind(), FailureKind::HostUnsupported);
    let failure = host_failure(&ErrorKind::OutOfMemory.into()).expect("a failure");
    assert_eq!(failure.kind(), FailureKind::Preflight);
    assert!(failure.report().contains("more memory"), "{}", failure.report());
}
