//! The process that decompresses: compressed bytes on its standard input, plain bytes on its standard output.
//!
//! ```text
//! PROGRAM __decompress gzip|xz|zstd first|all
//! ```
//!
//! It ends with 0 once all of the stream is written; with 1 where the data is damaged, and 2 where it could not give
//! up its rights, each with the reason in a line on standard error.

use std::ffi::OsString;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{read, write};

use super::{Extent, Format, codec, confine};

/// First argument of the process.
pub const SUBCOMMAND: &str = "__decompress";

/// Exit status for damaged data.
pub(super) const DAMAGED: u8 = 1;
/// Exit status of a process that could not give up its rights, or was not started as above.
pub(super) const UNCONFINED: u8 = 2;

/// Size of the buffers of compressed and of plain bytes.
const BUFFER: usize = 128 << 10;
/// Length of the longest reason, in bytes.
pub(super) const LONGEST_REASON: usize = 400;

/// Runs the process: gives up all rights, then decompresses. `args` begin with [`SUBCOMMAND`]. To be called before
/// anything else in the process, above all before it has a second thread. Returns the exit status.
pub fn decompress_main(args: impl IntoIterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = args.into_iter().skip(1).collect();
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let Some(job) = words.as_deref().and_then(Job::parse) else {
        return refuse(UNCONFINED, "it was started with other arguments than its own");
    };
    if let Err(reason) = confine::confine() {
        return refuse(UNCONFINED, &reason);
    }
    match job.carry_out() {
        Ok(()) => 0,
        Err(reason) => refuse(DAMAGED, &reason),
    }
}

/// Work of the process.
enum Job {
    Decompress(Format, Extent),
    #[cfg(any(test, feature = "testing"))]
    Forbidden(super::confine::testing::Forbidden),
}

impl Job {
    fn parse(words: &[&str]) -> Option<Self> {
        match words {
            #[cfg(any(test, feature = "testing"))]
            ["forbidden", name] => {
                super::confine::testing::Forbidden::named(name).map(Self::Forbidden)
            }
            [format, extent] => {
                Some(Self::Decompress(named(Format::WORDS, format)?, named(Extent::WORDS, extent)?))
            }
            _ => None,
        }
    }

    fn carry_out(self) -> Result<(), String> {
        match self {
            Self::Decompress(format, extent) => decompress(format, extent),
            #[cfg(any(test, feature = "testing"))]
            Self::Forbidden(forbidden) => forbidden.try_it(),
        }
    }
}

fn named<T, const N: usize>(words: [(&str, T); N], wanted: &str) -> Option<T> {
    words.into_iter().find_map(|(word, value)| (word == wanted).then_some(value))
}

fn decompress(format: Format, extent: Extent) -> Result<(), String> {
    let (input, output) = (io::stdin(), io::stdout());
    let input = BufReader::with_capacity(BUFFER, Pipe(input.as_fd()));
    let mut output = Pipe(output.as_fd());
    let mut plain = codec::decoder(format, extent, input).map_err(|e| e.to_string())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = match plain.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e.to_string()),
        };
        // The reader is gone if this fails, and so is the reader of the reason.
        output.write_all(&buffer[..n]).map_err(|e| e.to_string())?;
    }
}

/// Writes the reason as one line; returns the exit status.
fn refuse(status: u8, reason: &str) -> u8 {
    let mut line: Vec<u8> = reason.bytes().take(LONGEST_REASON).collect();
    line.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
    line.push(b'\n');
    let _ = io::stderr().write_all(&line);
    status
}

/// A standard stream without the buffer and the lock of the standard library.
struct Pipe<'a>(BorrowedFd<'a>);

impl Read for Pipe<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(read(self.0, buffer)?)
    }
}

impl Write for Pipe<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
