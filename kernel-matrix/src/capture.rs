//! Programs whose output is kept within bounds.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{At, Error};
use crate::process::{end, like};

/// A program that ended, or was killed at its time limit.
#[derive(Debug)]
pub struct Captured {
    /// Exit code; None where a signal ended it.
    pub code: Option<i32>,
    /// True if it was killed at the time limit.
    pub is_overdue: bool,
    /// Standard output.
    pub out: Kept,
    /// Standard error.
    pub err: Kept,
}

/// Beginning and end of an output.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Kept {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Size of all of it.
    bytes: u64,
}

impl Kept {
    /// Reads to the end, and keeps at most `most` bytes: the first half and the last.
    fn of(mut from: impl Read, most: usize) -> io::Result<Self> {
        let mut kept = Self::default();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(kept),
                Ok(read) => kept.add(&buffer[..read], most / 2),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn add(&mut self, bytes: &[u8], half: usize) {
        self.bytes += bytes.len() as u64;
        let (head, tail) = bytes.split_at(bytes.len().min(half - self.head.len()));
        self.head.extend(head);
        self.tail.extend(tail);
        let surplus = self.tail.len().saturating_sub(half);
        self.tail.drain(..surplus);
    }

    /// Returns the text, with the number of bytes that were left out in a line of its own.
    pub fn text(&self) -> String {
        let mut bytes = self.head.clone();
        let missing = self.missing();
        if missing > 0 {
            bytes.extend(format!("\n[{missing} bytes were left out]\n").bytes());
        }
        bytes.extend(&self.tail);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the number of bytes that were not kept.
    pub fn missing(&self) -> u64 {
        self.bytes - (self.head.len() + self.tail.len()) as u64
    }
}

/// Runs a program to its end, or kills it after `limit`, and keeps at most `most` bytes of each of its
/// outputs.
///
/// # Errors
/// It cannot be started, or its output cannot be read.
pub fn capture(command: &Command, limit: Duration, most: usize) -> Result<Captured, Error> {
    let deadline = Instant::now() + limit;
    let program = Path::new(command.get_program()).to_path_buf();
    let mut child = like(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .at("start", &program)?;
    let (tell, told) = mpsc::channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
        child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
    ];
    for (index, stream) in streams.into_iter().enumerate() {
        let tell = tell.clone();
        thread::spawn(move || {
            let kept = stream.map_or(Ok(Kept::default()), |stream| Kept::of(stream, most));
            // Fails only where nobody waits any more.
            let _ = tell.send((index, kept));
        });
    }
    drop(tell);
    let mut kept = [Kept::default(), Kept::default()];
    let mut is_overdue = false;
    loop {
        let left = match is_overdue {
            false => deadline.saturating_duration_since(Instant::now()),
            // A killed program's outputs end at once.
            true => Duration::from_secs(10),
        };
        match told.recv_timeout(left) {
            Ok((index, read)) => kept[index] = read.at("read the output of", &program)?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if is_overdue => break,
            Err(RecvTimeoutError::Timeout) => {
                is_overdue = true;
                end(child.id());
            }
        }
    }
    let code = child.wait().at("wait for", &program)?.code();
    let [out, err] = kept;
    Ok(Captured { code: code.filter(|_| !is_overdue), is_overdue, out, err })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: u64, most: usize) -> Captured {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        capture(&command, Duration::from_secs(limit), most).unwrap()
    }

    #[test]
    fn outputs_are_kept_apart_with_the_exit_code() {
        let captured = sh("echo out; echo err >&2; exit 14", 60, 100);
        let texts = (captured.out.text(), captured.err.text());
        assert_eq!(texts, ("out\n".to_owned(), "err\n".to_owned()));
        assert_eq!((captured.code, captured.out.missing()), (Some(14), 0));
    }

    #[test]
    fn of_a_long_output_beginning_and_end_are_kept() {
        let captured = sh("echo begin; head -c 50000000 /dev/zero; echo end", 60, 64);
        let text = captured.out.text();
        assert!(text.starts_with("begin\n") && text.ends_with("end\n"), "{text:?}");
        assert_eq!(captured.out.missing(), 50_000_010 - 64);
        assert!(text.contains("[49999946 bytes were left out]"), "{text:?}");
    }

    #[test]
    fn a_program_past_its_limit_is_killed_with_its_output_kept() {
        let captured = sh("echo begun; sleep 600; echo ended", 2, 100);
        assert!(captured.is_overdue && captured.code.is_none());
        assert_eq!(captured.out.text(), "begun\n");
    }
}
