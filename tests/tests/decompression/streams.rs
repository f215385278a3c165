//! Streams that the process decompresses, whole, damaged and dropped.

use std::io::{self, BufReader, ErrorKind, Read};

use longshore_debian::bounds::Bounded;
use longshore_debian::compression::{Extent, Format, decompressed_as, host_failure};
use longshore_tests::archive::noise;

use crate::packed::{FORMATS, packed, xz_with_dictionary, zeros, zstd_with_window};
use crate::process::Counted;

/// More than both pipes hold, in bytes that do not compress.
const LARGE: usize = 3 << 20;

fn read(format: Format, extent: Extent, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    let mut reader = decompressed_as(format, extent, bytes)?;
    let result = reader.read_to_end(&mut plain);
    if result.is_err() {
        // An error is no end.
        reader.read_to_end(&mut plain).expect_err("still an error");
    }
    result.map(|_| plain)
}

#[test]
fn every_format_is_read_whole() {
    let counted = Counted::begin();
    for plain in [Vec::new(), b"text".to_vec(), noise(LARGE), vec![7; 40 << 20]] {
        for format in FORMATS {
            let one = packed(format, &plain);
            assert!(read(format, Extent::All, &one).expect("read") == plain, "{format:?}");
            counted.assert_nothing_left();
        }
    }
}

#[test]
fn the_first_stream_or_all_are_read() {
    let counted = Counted::begin();
    for format in FORMATS {
        let one = packed(format, b"one");
        let two = [&one[..], &one].concat();
        assert_eq!(read(format, Extent::All, &two).expect("read"), b"oneone", "{format:?}");
        // More than the pipe takes, which the process does not read.
        let beside = [&one[..], &noise(LARGE)].concat();
        assert_eq!(read(format, Extent::First, &beside).expect("read"), b"one", "{format:?}");
        counted.assert_nothing_left();
    }
}

#[test]
fn what_is_cut_off_or_damaged_is_an_error_of_the_data() {
    let counted = Counted::begin();
    let plain = noise(LARGE);
    for format in FORMATS {
        let whole = packed(format, &plain);
        let mut changed = whole.clone();
        changed[LARGE / 2] ^= 0xff;
        let half = &whole[..whole.len() / 2];
        for bytes in [half, &whole[..whole.len() - 1], &whole[..3], &changed, b"no stream at all"] {
            let read = read(format, Extent::All, bytes).map(|plain| plain.len());
            let error = read.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{format:?}: {error}");
            assert!(host_failure(&error).is_none(), "{error}");
            counted.assert_nothing_left();
        }
    }
}

#[test]
fn what_grows_without_end_is_bounded() {
    let counted = Counted::begin();
    let bomb = zeros(256 << 20);
    let reader = decompressed_as(Format::Zstd, Extent::All, &bomb[..]).expect("started");
    let mut read = Vec::new();
    let error = Bounded::new(reader, 1 << 20).read_to_end(&mut read).expect_err("bounded");
    assert!(error.to_string().contains("more than 1 MiB"), "{error}");
    counted.assert_nothing_left();
}

#[test]
fn large_windows_are_read_and_larger_ones_refused() {
    let counted = Counted::begin();
    let xz = |number| read(Format::Xz, Extent::All, &xz_with_dictionary(b"text", number));
    assert_eq!(xz(31).expect("192 MiB"), b"text");
    let error = xz(40).expect_err("4 GiB");
    assert!(error.to_string().contains("emory"), "{error}");
    let zstd = |log| read(Format::Zstd, Extent::All, &zstd_with_window(b"text", log));
    assert_eq!(zstd(27).expect("128 MiB"), b"text");
    let error = zstd(28).expect_err("256 MiB");
    assert!(error.to_string().contains("memory"), "{error}");
    counted.assert_nothing_left();
}

#[test]
fn a_reader_that_is_dropped_leaves_no_process() {
    let counted = Counted::begin();
    let bomb = zeros(256 << 20);
    drop(decompressed_as(Format::Zstd, Extent::All, &bomb[..]).expect("started"));
    counted.assert_nothing_left();
    let mut reader = decompressed_as(Format::Zstd, Extent::All, &bomb[..]).expect("started");
    reader.read_exact(&mut [0; 100]).expect("its beginning");
    drop(reader);
    counted.assert_nothing_left();
}

#[test]
fn an_error_of_the_source_is_returned_as_it_is() {
    /// Fails at its end.
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(ErrorKind::TimedOut, "the disk does not answer"))
        }
    }
    let counted = Counted::begin();
    let whole = packed(Format::Xz, &noise(LARGE));
    let source = BufReader::new(whole[..LARGE / 2].chain(Failing));
    let mut reader = decompressed_as(Format::Xz, Extent::All, source).expect("started");
    let error = reader.read_to_end(&mut Vec::new()).expect_err("failed");
    assert_eq!(
        (error.kind(), &*error.to_string()),
        (ErrorKind::TimedOut, "the disk does not answer")
    );
    drop(reader);
    counted.assert_nothing_left();
}

#[test]
fn streams_within_streams_are_read_on_one_thread() {
    let counted = Counted::begin();
    let plain = noise(LARGE);
    let outer = packed(Format::Zstd, &packed(Format::Xz, &plain));
    let middle = decompressed_as(Format::Zstd, Extent::All, &outer[..]).expect("started");
    let inner = decompressed_as(Format::Xz, Extent::All, BufReader::new(middle));
    let mut read = Vec::new();
    inner.expect("started").read_to_end(&mut read).expect("read");
    assert!(read == plain);
    counted.assert_nothing_left();
}
