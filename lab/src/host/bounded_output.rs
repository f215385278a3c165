//! Bounds on the output of guests and child programs: length of a line, and lines kept of a stream.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

/// Longest line that is read, in bytes; the rest of a longer one is dropped.
pub const LONGEST_LINE: usize = 64 << 10;
/// Most memory for the kept lines of one stream, in bytes.
pub const MOST_KEPT: usize = 32 << 20;
/// Lines that wait in a channel. A full channel stops its reader, and so the program that writes.
pub const QUEUED_LINES: usize = 256;
/// Room for the line that says how much was left out, in bytes.
const NOTE: usize = 128;

/// Lines of a stream without their ends. Bytes that are no UTF-8 are replaced. A longer line than
/// [`LONGEST_LINE`] ends with the number of bytes that were dropped.
#[derive(Debug)]
pub struct Lines<R>(BufReader<R>);

impl<R: Read> Lines<R> {
    /// Reads `from`.
    pub fn new(from: R) -> Self {
        Self(BufReader::new(from))
    }
}

impl<R: Read> Iterator for Lines<R> {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<io::Result<String>> {
        let mut line = Part::default();
        loop {
            let bytes = match self.0.fill_buf() {
                Ok([]) => return (!line.kept.is_empty()).then(|| Ok(line.text())),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Some(Err(error)),
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(bytes.len(), |at| at + 1);
            line.add(&bytes[..end.unwrap_or(used)]);
            self.0.consume(used);
            if end.is_some() {
                return Some(Ok(line.text()));
            }
        }
    }
}

/// A line as far as it was read.
#[derive(Default)]
struct Part {
    kept: Vec<u8>,
    left_out: u64,
}

impl Part {
    fn add(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE - self.kept.len();
        let (kept, rest) = bytes.split_at(bytes.len().min(room));
        self.kept.extend(kept);
        self.left_out += rest.len() as u64;
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.kept);
        match self.left_out {
            0 => text.trim_end_matches('\r').to_owned(),
            left_out => format!("{text} [{left_out} more bytes were left out]"),
        }
    }
}

/// Selects the first and the last lines of a stream, half of the bound each.
#[derive(Debug)]
pub struct HeadTail {
    half: usize,
    /// Bytes of the head; None once a line was too much for it.
    head: Option<usize>,
    tail: VecDeque<String>,
    tail_bytes: usize,
    lines_left_out: u64,
    bytes_left_out: u64,
}

impl HeadTail {
    /// Keeps at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self {
            half: most.saturating_sub(NOTE) / 2,
            head: Some(0),
            tail: VecDeque::new(),
            tail_bytes: 0,
            lines_left_out: 0,
            bytes_left_out: 0,
        }
    }

    /// Takes the next line: returns it where it belongs to the head, and keeps it for the tail
    /// otherwise.
    pub fn take(&mut self, line: String) -> Option<String> {
        let bytes = size(&line);
        self.head = self.head.map(|head| head + bytes).filter(|head| *head <= self.half);
        if self.head.is_some() {
            return Some(line);
        }
        self.tail_bytes += bytes;
        self.tail.push_back(line);
        while self.tail_bytes > self.half {
            let Some(oldest) = self.tail.pop_front() else { break };
            self.tail_bytes -= size(&oldest);
            self.lines_left_out += 1;
            self.bytes_left_out += oldest.len() as u64 + 1;
        }
        None
    }

    /// Returns the bytes of the lines that were left out so far.
    pub fn left_out(&self) -> u64 {
        self.bytes_left_out
    }

    /// Returns the tail, after a line that says how much is missing before it.
    pub fn rest(self) -> impl Iterator<Item = String> {
        let Self { lines_left_out: lines, bytes_left_out: bytes, tail, .. } = self;
        let note = (lines > 0).then(|| format!("[{lines} lines, {bytes} bytes, were left out]"));
        note.into_iter().chain(tail)
    }
}

/// Returns the memory that a kept line needs, which is at least its length with its end.
pub fn size(line: &str) -> usize {
    size_of::<String>() + line.len()
}

/// Returns the next message before `deadline`. Unlike `recv_timeout` alone, it does not return one
/// that waits already when the deadline has passed: a stream without an end has its deadline too.
///
/// # Errors
/// As `recv_timeout`.
pub fn receive<T>(from: &Receiver<T>, deadline: Instant) -> Result<T, RecvTimeoutError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(RecvTimeoutError::Timeout);
    }
    from.recv_timeout(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn lines(from: impl Read) -> Vec<String> {
        Lines::new(from).map(Result::unwrap).collect()
    }

    #[rstest]
    #[case(b"", &[])]
    #[case(b"one\r\nt\xffwo\n\nrest", &["one", "t\u{fffd}wo", "", "rest"])]
    #[case(b"\n", &[""])]
    #[case(b"a\rb\r\r\n", &["a\rb"])]
    fn lines_are_whole_without_their_ends_and_survive_bad_text(
        #[case] from: &[u8],
        #[case] expected: &[&str],
    ) {
        assert_eq!(lines(from), expected);
    }

    #[rstest]
    #[case(LONGEST_LINE as u64, "")]
    #[case(LONGEST_LINE as u64 + 1, " [1 more bytes were left out]")]
    #[case(32 << 20, " [33488896 more bytes were left out]")]
    fn a_long_line_is_cut_and_the_next_one_is_whole(#[case] length: u64, #[case] end: &str) {
        let from = io::repeat(b'a').take(length).chain(&b"\nnext\n"[..]);
        let expected = [format!("{}{end}", "a".repeat(LONGEST_LINE)), "next".to_owned()];
        assert!(lines(from) == expected, "length {length}");
    }

    #[test]
    fn a_stream_that_fails_ends_with_its_error() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("gone"))
            }
        }
        let mut lines = Lines::new((&b"one\n"[..]).chain(Broken));
        assert_eq!(lines.next().unwrap().unwrap(), "one");
        assert!(lines.next().unwrap().is_err());
    }

    /// Returns all that is kept of `count` lines of seven bytes.
    fn kept(count: usize, most: usize) -> Vec<String> {
        let mut kept = HeadTail::new(most);
        let lines = (0..count).map(|n| format!("{n:06}"));
        let mut all: Vec<String> = lines.filter_map(|line| kept.take(line)).collect();
        all.extend(kept.rest());
        all
    }

    #[rstest]
    #[case(4, &["000000", "000001", "000002", "000003"])]
    #[case(5, &["000000", "000001", "[1 lines, 7 bytes, were left out]", "000003", "000004"])]
    #[case(100_000, &["000000", "000001", "[99996 lines, 699972 bytes, were left out]", "099998", "099999"])]
    fn first_and_last_lines_are_kept(#[case] count: usize, #[case] expected: &[&str]) {
        assert_eq!(kept(count, 4 * size("000000") + NOTE), expected);
    }

    #[test]
    fn a_message_that_waits_does_not_move_the_deadline() {
        let (say, heard) = std::sync::mpsc::channel();
        say.send(1).unwrap();
        let now = Instant::now();
        assert_eq!(receive(&heard, now), Err(RecvTimeoutError::Timeout));
        assert_eq!(receive(&heard, now + std::time::Duration::from_secs(60)), Ok(1));
    }
}
