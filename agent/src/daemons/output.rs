//! What a daemon writes goes to the log, line by line, with its name, and bounded.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A longer line is cut in two.
const LONGEST_LINE: usize = 1 << 10;

/// So many lines go to the log in each window.
const LINES: u32 = 100;
const WINDOW: Duration = Duration::from_secs(10);

/// The last a daemon said.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastWords(Arc<Mutex<Option<String>>>);

impl LastWords {
    /// What it was.
    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

/// Passes lines on, and remembers the last.
pub(super) struct Output<F> {
    line: Vec<u8>,
    window: Instant,
    lines: u32,
    last: LastWords,
    log: F,
}

impl<F: FnMut(&str)> Output<F> {
    pub(super) fn new(last: LastWords, log: F) -> Self {
        Self { line: Vec::new(), window: Instant::now(), lines: 0, last, log }
    }

    /// Reads until the other end is closed.
    pub(super) fn copy(mut self, mut from: impl Read) {
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
        self.last.set(text);
    }

    fn say_left_out(&mut self) {
        if let Some(more @ 1..) = self.lines.checked_sub(LINES) {
            (self.log)(&format!("and {more} lines more in {} s, left out", WINDOW.as_secs()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(bytes: &[u8]) -> (Vec<String>, Option<String>) {
        let last = LastWords::default();
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
        assert_eq!(lines[100], "and 900 lines more in 10 s, left out");
        assert_eq!(last.as_deref(), Some("x"));
        let (lines, _) = logged(&[b'y'; 5000]);
        assert!(lines.iter().all(|line| line.len() <= LONGEST_LINE) && lines.len() == 5);
    }
}
