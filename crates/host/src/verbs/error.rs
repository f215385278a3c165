//! Failure of a verb.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

/// A verb that failed: the verb, its subject, and the kernel's errno.
#[derive(Debug, derive_more::Display)]
#[display("{verb} {subject}: {}", self.answer())]
pub struct VerbError {
    /// The system call or operation, for example `init_module`.
    pub verb: &'static str,
    /// The module, path or device it was applied to.
    pub subject: String,
    /// The kernel's errno; ETIMEDOUT if it did not answer.
    pub errno: Errno,
    /// Time waited for an answer that did not come: the call is still in the kernel.
    pub unanswered: Option<Duration>,
    /// Kernel log messages from the time of the call, if the log was read.
    pub kernel_log: Vec<String>,
}

impl VerbError {
    /// A failed verb for which the kernel log was not read.
    pub fn new(verb: &'static str, subject: impl Into<String>, errno: Errno) -> Self {
        Self { verb, subject: subject.into(), errno, unanswered: None, kernel_log: Vec::new() }
    }

    /// A call that did not return from the kernel within `waited`. It may still take effect.
    pub fn unanswered(verb: &'static str, subject: impl Into<String>, waited: Duration) -> Self {
        Self { unanswered: Some(waited), ..Self::new(verb, subject, Errno::ETIMEDOUT) }
    }

    /// A failed verb on a path. An I/O error without an errno becomes EIO.
    pub fn on_path(verb: &'static str, path: &Path, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Self::new(verb, path.display().to_string(), errno)
    }

    fn answer(&self) -> String {
        match self.unanswered {
            Some(waited) => format!("no answer from the kernel within {waited:.0?}"),
            None => self.errno.to_string(),
        }
    }
}

impl std::error::Error for VerbError {}
