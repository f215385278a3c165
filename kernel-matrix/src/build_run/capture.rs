//! Programs whose two outputs are kept apart, within bounds.

use std::process::Command;
use std::time::Duration;

use longshore_lab::host::bounded_output::HeadTail;
use longshore_lab::host::error::Error;
use longshore_lab::host::process::{Ended, Stream, follow};

/// A program that ended, or was killed at its time limit.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Exit code; None where a signal ended it.
    pub code: Option<i32>,
    /// True if it was killed at the time limit.
    pub is_overdue: bool,
    /// Standard output.
    pub out: Kept,
    /// Standard error.
    pub err: Kept,
}

/// First and last lines of an output.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    lines: Vec<String>,
    missing: u64,
}

impl Kept {
    fn new(mut head: Vec<String>, tail: HeadTail) -> Self {
        let missing = tail.left_out();
        head.extend(tail.rest());
        Self { lines: head, missing }
    }

    /// Returns the text, with a line of its own that says how much was left out.
    pub(crate) fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }

    /// Returns the number of bytes of the lines that were left out.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }
}

/// Runs a program to its end, or kills it after `limit`, and keeps at most `most` bytes of each of its
/// outputs.
///
/// # Errors
/// It cannot be started, or waited for.
pub(crate) fn capture(command: &Command, limit: Duration, most: usize) -> Result<Captured, Error> {
    let kept = || (Vec::new(), HeadTail::new(most));
    let (mut out, mut err) = (kept(), kept());
    let Ended { code, is_overdue } = follow(command, limit, |stream, line| {
        let (head, tail) = match stream {
            Stream::Out => &mut out,
            Stream::Err => &mut err,
        };
        head.extend(tail.take(line));
    })?;
    let of = |(head, tail)| Kept::new(head, tail);
    Ok(Captured { code, is_overdue, out: of(out), err: of(err) })
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
        let captured = sh("echo out; echo err >&2; exit 14", 60, 1 << 10);
        let texts = (captured.out.text(), captured.err.text());
        assert_eq!(texts, ("out\n".to_owned(), "err\n".to_owned()));
        assert_eq!((captured.code, captured.out.missing()), (Some(14), 0));
    }

    #[test]
    fn of_a_long_output_beginning_and_end_are_kept() {
        let captured = sh("echo begin; yes | head -n 1000000; echo end", 60, 1 << 10);
        let text = captured.out.text();
        assert!(text.starts_with("begin\ny\n") && text.ends_with("y\nend\n"), "{text:?}");
        let kept = text.matches("y\n").count() as u64;
        assert_eq!(captured.out.missing(), 2 * (1_000_000 - kept));
        assert!(text.len() <= 1 << 10 && text.contains(" bytes, were left out]"), "{text:?}");
    }

    #[test]
    fn a_program_past_its_limit_is_killed_with_its_output_kept() {
        let captured = sh("echo begun; sleep 600; echo ended", 2, 1 << 10);
        assert!(captured.is_overdue && captured.code.is_none());
        assert_eq!(captured.out.text(), "begun\n");
    }
}
