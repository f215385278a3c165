//! A daemon's output: copied to the log, line by line, with its name, and rate-limited.

use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A longer line is split.
const LONGEST_LINE: usize = 1 << 10;

/// Maximum number of lines logged in each window.
const LINES: u32 = 100;
const WINDOW: Duration = Duration::from_secs(10);

/// Last line that a daemon wrote, and its exit status where it failed. Two threads learn of them, in
/// either order.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastLine(Arc<Mutex<Last>>);

#[derive(Debug, Default)]
struct Last {
    line: Option<String>,
    status: Option<String>,
}

impl LastLine {
    /// `LINE; STATUS`, or the one of them that is known.
    pub(crate) fn get(&self) -> Option<String> {
        let last = self.lock();
        let known: Vec<&str> =
            [&last.line, &last.status].into_iter().flatten().map(String::as_str).collect();
        (!known.is_empty()).then(|| known.join("; "))
    }

    /// Keeps the last line that it wrote.
    fn set_line(&self, line: String) {
        self.lock().line = Some(line);
    }

    /// Keeps the status that it ended with.
    pub(crate) fn set_status(&self, status: String) {
        self.lock().status = Some(status);
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes lines to the log, and keeps the last.
pub(crate) struct Output<F> {
    line: Vec<u8>,
    window: Instant,
    lines: u32,
    last: LastLine,
    log: F,
}

impl<F: FnMut(&str)> Output<F> {
    pub(crate) fn new(last: LastLine, log: F) -> Self {
        Self { line: Vec::new(), window: Instant::now(), lines: 0, last, log }
    }

    /// Reads until the other end is closed.
    pub(crate) fn copy(mut self, mut from: impl Read) {
        let mut chunk = [0; 1 << 10];
        loop {
            match from.read(&mut chunk) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(n) => self.take(&chunk[..n]),
            }
        }
        self.end_line();
        self.say_left_out();
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' || self.line.len() == LONGEST_LINE {
                self.end_line();
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
    }

    fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim().to_owned();
        if text.is_empty() {
            return;
        }
        if self.window.elapsed() >= WINDOW {
            self.say_left_out();
            (self.window, self.lines) = (Instant::now(), 0);
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines <= LINES {
            (self.log)(&text);
        }
        self.last.set_line(text);
    }

    fn say_left_out(&mut self) {
        if let Some(more @ 1..) = self.lines.checked_sub(LINES) {
            (self.log)(&format!("and {more} more lines in {} s, left out", WINDOW.as_secs()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_and_status_are_kept_in_whichever_order_they_come() {
        let texts = ["no licence", "exit status: 2"].map(str::to_owned);
        for line_first in [true, false] {
            let last = LastLine::default();
            assert_eq!(last.get(), None);
            let [line, status] = texts.clone();
            if line_first {
                last.set_line(line);
                last.set_status(status);
            } else {
                last.set_status(status);
                last.set_line(line);
            }
            assert_eq!(last.get().as_deref(), Some("no licence; exit status: 2"));
        }
    }

    fn logged(bytes: &[u8]) -> (Vec<String>, Option<String>) {
        let last = LastLine::default();
        let mut lines = Vec::new();
        Output::new(last.clone(), |line: &str| lines.push(line.to_owned())).copy(bytes);
        (lines, last.get())
    }

    #[test]
    fn lines_are_passed_on_and_the_last_is_remembered() {
        let (lines, last) = logged(b"one\n\n two \xff\nthree");
        assert_eq!(lines, ["one", "two \u{fffd}", "three"]);
        assert_eq!(last.as_deref(), Some("three"));
    }

    #[test]
    fn a_flood_and_an_endless_line_are_bounded() {
        let (lines, last) = logged("x\n".repeat(1000).as_bytes());
        assert_eq!(lines.len(), 101);
        assert_eq!(lines[100], "and 900 more lines in 10 s, left out");
        assert_eq!(last.as_deref(), Some("x"));
        let (lines, _) = logged(&[b'y'; 5000]);
        assert!(lines.iter().all(|line| line.len() <= LONGEST_LINE) && lines.len() == 5);
    }
}
