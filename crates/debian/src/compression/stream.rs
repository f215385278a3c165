//! A stream that another process decompresses.
//!
//! One thread feeds that process and reads from it, by pipes that do not block: so the source of the compressed bytes
//! may be any reader, and neither side can wait for the other for ever.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use longshore_core::confinement::Confined;
use longshore_core::sanitize;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::child::{DAMAGED, LONGEST_REASON, SUBCOMMAND, UNCONFINED};
use super::{Extent, Format, unavailable};

/// Size of each of the two pipes: fewer changes between the processes than with the kernel's 64 KiB.
const PIPE: i32 = 512 << 10;
/// Time limit for the process to take or to give a byte; only one that was taken over needs it.
const STALLED: Duration = Duration::from_secs(600);

/// Reader of the bytes that a process decompresses from `source`.
///
/// It stays on the thread that made it: the process is killed when that thread ends (PR_SET_PDEATHSIG in prctl(2)).
pub(super) struct ChildStream<R> {
    source: R,
    /// None after the end of the source, or of the process's interest in it.
    input: Option<ChildStdin>,
    output: ChildStdout,
    reasons: ChildStderr,
    state: State,
    /// Dropped after its pipes, by whose end it ends where it cannot be killed.
    process: Confined,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// The process has ended, and everything was read.
    Complete,
    Failed,
}

impl<R: BufRead> ChildStream<R> {
    /// Starts the process: `program` with [`SUBCOMMAND`], and without environment.
    ///
    /// # Errors
    /// An error of the host where it cannot be started.
    pub(super) fn start(
        program: &Path,
        format: Format,
        extent: Extent,
        source: R,
    ) -> io::Result<Self> {
        let failed =
            |e: io::Error| unavailable(format!("starting a process that decompresses: {e}"));
        let mut command = Command::new(program);
        command
            .arg0("longshore")
            .arg(SUBCOMMAND)
            .args([word(Format::WORDS, format), word(Extent::WORDS, extent)]);
        // Signals typed at a terminal are meant for the agent alone.
        command.env_clear().process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Confined(command.spawn().map_err(failed)?);
        let ends = (process.0.stdin.take(), process.0.stdout.take(), process.0.stderr.take());
        let (Some(input), Some(output), Some(reasons)) = ends else {
            return Err(failed(ErrorKind::BrokenPipe.into()));
        };
        for end in [input.as_fd(), output.as_fd()] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            // Refused where the user has many pipes (fs.pipe-user-pages-soft).
            let _ = fcntl(end, FcntlArg::F_SETPIPE_SZ(PIPE));
        }
        let state = State::Running;
        Ok(Self { source, input: Some(input), output, reasons, state, process })
    }

    fn next(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.feed()?;
            match self.output.read(buffer) {
                Ok(0) => return self.end().map(|()| 0),
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.wait()?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes to the process what its pipe takes.
    fn feed(&mut self) -> io::Result<()> {
        while let Some(input) = &mut self.input {
            let bytes = match self.source.fill_buf() {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            if bytes.is_empty() {
                self.input = None;
                return Ok(());
            }
            match input.write(bytes) {
                Ok(n) => self.source.consume(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // The process has ended; its exit status says whether it has read enough.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => self.input = None,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits until the process gives or takes bytes.
    fn wait(&self) -> io::Result<()> {
        let mut ends = vec![PollFd::new(&self.output, PollFlags::IN)];
        ends.extend(self.input.as_ref().map(|input| PollFd::new(input, PollFlags::OUT)));
        let most = Timespec::try_from(STALLED).ok();
        match poll(&mut ends, most.as_ref()) {
            Ok(0) => {
                let what = format!("its decompression stood still for {} s", STALLED.as_secs());
                Err(io::Error::new(ErrorKind::TimedOut, what))
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the exit status once standard output has ended, which it does with the process.
    fn end(&mut self) -> io::Result<()> {
        self.input = None;
        let mut reason = Vec::new();
        let most = LONGEST_REASON as u64 + 1;
        (&mut self.reasons).take(most).read_to_end(&mut reason)?;
        let status = self.process.0.wait()?;
        judge(status, &reason)
    }
}

impl<R: BufRead> Read for ChildStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.state {
            _ if buffer.is_empty() => return Ok(0),
            State::Running => {}
            State::Complete => return Ok(0),
            State::Failed => return Err(io::Error::other("its decompression has failed")),
        }
        let read = self.next(buffer);
        self.state = match read {
            Ok(0) => State::Complete,
            Ok(_) => State::Running,
            Err(_) => State::Failed,
        };
        read
    }
}

/// Returns the result of a process with this exit status, which gave this reason.
fn judge(status: ExitStatus, reason: &[u8]) -> io::Result<()> {
    let reason = String::from_utf8_lossy(reason);
    // The process may have been taken over: it may write anything.
    let reason = sanitize::in_line(reason.trim_end());
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) if code == i32::from(DAMAGED) => {
            Err(io::Error::new(ErrorKind::InvalidData, reason.into_owned()))
        }
        (Some(code), _) if code == i32::from(UNCONFINED) => Err(unavailable(format!(
            "a process that decompresses could not give up its rights: {reason}"
        ))),
        // Signal of the kernel where memory is short: the end of a process that longshore kills is not judged.
        (_, Some(signal @ libc::SIGKILL)) => Err(io::Error::new(
            ErrorKind::OutOfMemory,
            format!("signal {signal} ended the process that decompresses"),
        )),
        (_, Some(signal)) => {
            Err(io::Error::other(format!("signal {signal} ended the process that decompresses it")))
        }
        _ => Err(io::Error::other(format!("the process that decompresses it ended with {status}"))),
    }
}

fn word<T: PartialEq, const N: usize>(words: [(&'static str, T); N], of: T) -> &'static str {
    words.into_iter().find_map(|(word, value)| (value == of).then_some(word)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const WHY: &[u8] = b"xz \x1b[2J data\n";

    #[rstest]
    #[case::damaged(1 << 8, ErrorKind::InvalidData, "xz \\u{1b}[2J data")]
    #[case::unconfined(2 << 8, ErrorKind::Unsupported, "could not give up its rights: xz")]
    #[case::killed(9, ErrorKind::OutOfMemory, "signal 9 ended the process")]
    #[case::killed_by_its_filter(31, ErrorKind::Other, "signal 31 ended the process")]
    #[case::panicked(101 << 8, ErrorKind::Other, "exit status: 101")]
    fn an_end_other_than_0_is_an_error(
        #[case] status: i32,
        #[case] kind: ErrorKind,
        #[case] text: &str,
    ) {
        let error = judge(ExitStatus::from_raw(status), WHY).expect_err("an error");
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(text), "{error}");
        assert!(judge(ExitStatus::from_raw(0), WHY).is_ok());
    }

    #[test]
    fn the_page_about_deadlines_has_the_wait() {
        longshore_core::testing::assert_in_page("[process that decompresses]", STALLED);
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_error_of_the_host() {
        let program = Path::new("/nonexistent");
        let started = ChildStream::start(program, Format::Xz, Extent::All, io::empty());
        let error = started.err().expect("no such program");
        assert!(super::super::host_failure(&error).is_some(), "{error}");
    }
}
