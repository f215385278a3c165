//! Runs a command inside a hermetic root: in its own mount, PID, network, IPC and UTS namespaces.
//!
//! Two stages of this same program, so that no code runs between fork and exec:
//!
//! ```text
//! agent --spawns--> PROGRAM __sandbox SPEC       leaves the namespaces, starts the next as PID 1
//!                     `-> PROGRAM __sandbox-init SPEC   mounts, moves into the root, reaps
//!                           `-> the command             as an unprivileged user
//! ```
//!
//! Everything inside ends when PID 1 ends, and PID 1 ends when the agent closes its standard input
//! (the lifeline), which the kernel does too if the agent is killed. The mounts are private to the
//! namespace and go with it. So a cancelled or crashed build leaves no process and no mount.
//!
//! The command runs with no_new_privs, under a seccomp filter of the system calls that compilers make, and with
//! resource limits.

mod filter;
pub mod inside;
mod limits;
mod written;

use std::any::Any;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use longshore_core::failure::{Failure, FailureKind, OrFail};

pub(super) use inside::INIT_NAME;
pub use inside::sandbox_main;
pub use written::Bound;

/// First argument of the first stage.
pub const SUBCOMMAND: &str = "__sandbox";
/// First argument of the second stage, process 1 of the new PID namespace.
pub const INIT_SUBCOMMAND: &str = "__sandbox-init";

/// Maximum length of a line: longer ones are split, so that no output can fill the memory.
const MAX_LINE: usize = 64 << 10;

/// Time limit for SIGKILL to end everything inside; only a process stuck in the kernel needs it.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The sandbox and the command to run in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The root, mounted read-only. It has the directories `proc` and `dev`, and every bind's
    /// target.
    pub root: PathBuf,
    /// Bind mounts beside the root.
    pub binds: Vec<Bind>,
    /// Program (absolute, inside) and arguments.
    pub command: Vec<String>,
    /// The command's environment.
    pub environment: Vec<(String, String)>,
    /// Names of variables that the command inherits from the agent: secrets, which must not be
    /// among a process's arguments.
    #[serde(default)]
    pub handed_on: Vec<String>,
    /// Working directory, inside.
    pub directory: PathBuf,
    /// User and group to run the command as; None keeps the agent's user, with no capability but
    /// the one to access other users' files (CAP_DAC_OVERRIDE).
    pub user: Option<u32>,
    /// Bound of what lies in the writable binds.
    pub bound: Bound,
    /// File outside that receives the command's [`Outcome`]; it must not exist.
    pub outcome: PathBuf,
    /// Kept alive until everything inside has ended.
    #[serde(skip)]
    pub held: Held,
}

/// A resource that must outlive a sandbox: the directory that is written to inside.
pub type Held = Option<Arc<dyn Any + Send + Sync>>;

/// A directory or file outside, bound to a target that exists in the root.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bind {
    /// Absolute path outside.
    pub source: PathBuf,
    /// Absolute path inside.
    pub target: PathBuf,
    /// True if it is read-only inside.
    #[serde(default)]
    pub read_only: bool,
}

impl Bind {
    /// Returns a bind that is writable inside.
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self { source: source.into(), target: target.into(), read_only: false }
    }

    /// Returns a bind that is read-only and noexec inside.
    pub fn read_only(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self { read_only: true, ..Self::new(source, target) }
    }
}

/// Result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Ended with this exit status.
    Exited(i32),
    /// Killed by this signal.
    Signalled(i32),
    /// Killed at the deadline.
    TimedOut,
    /// Killed because more lay in the writable directories than the bound.
    Outgrown,
    /// Killed because the file system of a writable directory was full.
    NoSpace,
    /// Killed with all that it started, which was more than this number of processes at once.
    TooManyProcesses(usize),
}

/// Runs `spec` with `program` as helper (a program whose main function hands `__sandbox` and
/// `__sandbox-init` to [`sandbox_main`]; `/proc/self/exe` for longshore itself). `output` receives the
/// command's output line by line, without newlines, both streams in the order they were written.
///
/// Dropping the future kills the command and everything it started.
///
/// # Errors
/// Exit code 10 where the namespaces or mounts cannot be made; 70 where the helper cannot be run.
pub async fn run(
    program: &Path,
    spec: &Spec,
    limit: Duration,
    output: &mut (dyn FnMut(&str) + Send),
) -> Result<Outcome, Failure> {
    let what = || format!("running {} in {}", spec.command.join(" "), spec.root.display());
    let (mut running, reader) = Running::start(program, spec)
        .or_fail(FailureKind::Bug, || format!("starting {}", program.display()))?;
    let mut tail = Tail { output, last: String::new() };
    let ended = tokio::select! {
        copied = tokio::time::timeout(limit, copy_lines(reader, &mut tail)) => copied.map_err(|_| Outcome::TimedOut),
        outcome = written::over(spec) => Err(outcome),
    };
    running.end().await;
    match ended {
        Err(outcome) => return Ok(outcome),
        Ok(copied) => copied.or_fail(FailureKind::Bug, what)?,
    }
    let last = tail.last;
    let outcome = fs::read(&spec.outcome).unwrap_or_default();
    if outcome.is_empty() {
        return Err(Failure::new(FailureKind::HostUnsupported, what()).with_source(last).remedy(
            "the build sandbox needs CAP_SYS_ADMIN, the mount, PID and network namespaces, and seccomp(2): \
             run the container privileged, or build elsewhere and use a prebuilt set",
        ));
    }
    serde_json::from_slice(&outcome).or_fail(FailureKind::Bug, what)
}

/// Passes lines on and keeps the last: it holds the error of a sandbox that could not be made.
struct Tail<'a> {
    output: &'a mut (dyn FnMut(&str) + Send),
    last: String,
}

impl Tail<'_> {
    fn take(&mut self, bytes: &[u8]) {
        let line = String::from_utf8_lossy(bytes);
        (self.output)(&line);
        if !line.trim().is_empty() {
            line.trim().clone_into(&mut self.last);
        }
    }
}

async fn copy_lines(mut reader: pipe::Receiver, tail: &mut Tail<'_>) -> std::io::Result<()> {
    let mut pending = Vec::new();
    let mut chunk = vec![0; 16 << 10];
    loop {
        let n = reader.read(&mut chunk).await?;
        if n == 0 {
            break;
        }
        for &byte in &chunk[..n] {
            if byte == b'\n' || pending.len() == MAX_LINE {
                tail.take(&pending);
                pending.clear();
            }
            if byte != b'\n' {
                pending.push(byte);
            }
        }
    }
    if !pending.is_empty() {
        tail.take(&pending);
    }
    Ok(())
}

/// The first stage and the lifeline of the second.
///
/// Dropping it closes the lifeline, which ends both stages, and waits for them on a thread that may
/// block; mostly that takes milliseconds. The directories they write to can be removed only then,
/// and are kept until then ([`Spec::held`]). That is why this Drop has an effect.
struct Running {
    ending: Option<Ending>,
}

/// The processes and resources of a sandbox that is ending.
struct Ending {
    child: Child,
    lifeline: Option<ChildStdin>,
    held: Held,
}

impl Running {
    fn start(program: &Path, spec: &Spec) -> std::io::Result<(Self, pipe::Receiver)> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let reader = pipe::Receiver::from_owned_fd(read)?;
        let mut child = Command::new(program)
            .arg(SUBCOMMAND)
            .arg(serde_json::to_string(spec)?)
            .env_clear()
            .envs(spec.handed_on.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(write.try_clone()?)
            .stderr(write)
            // Ctrl-C in a terminal is for the agent, which then ends this process group itself.
            .process_group(0)
            .spawn()?;
        let (lifeline, held) = (child.stdin.take(), spec.held.clone());
        Ok((Self { ending: Some(Ending { child, lifeline, held }) }, reader))
    }

    /// Ends everything inside, and returns when it is gone.
    async fn end(&mut self) {
        if let Some(waited_for) = self.ending.take().and_then(Ending::begin) {
            // The task does not panic; if the runtime ends, there is no waiter.
            let _ = waited_for.await;
        }
    }
}

impl Ending {
    /// Closes the lifeline, and waits for the end on a thread that may block; None if it waited
    /// already, for want of a runtime.
    fn begin(mut self) -> Option<tokio::task::JoinHandle<()>> {
        drop(self.lifeline.take());
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => Some(runtime.spawn_blocking(move || self.wait())),
            Err(_) => {
                self.wait();
                None
            }
        }
    }

    /// Waits until everything inside is gone: the first stage ends after process 1, and process 1
    /// after all others. The result is in the outcome file, never in the wait status: if the
    /// agent's process 1 is another program, that may have reaped it.
    fn wait(mut self) {
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                tracing::warn!("the build sandbox does not end; killing its first stage");
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.held);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.ending.take().map(Ending::begin));
    }
}

/// A log file of every line, up to `MOST_LOGGED` bytes; a full disk ends the logging, not the
/// build.
#[derive(Debug)]
pub struct Log {
    file: File,
    left: usize,
    failed: bool,
}

/// Maximum size of a log: a driver's compile writes less than 1 MiB, and endless output must not
/// fill the store's disk.
pub(crate) const MOST_LOGGED: usize = 32 << 20;

impl Log {
    /// Starts a new log at `path`.
    ///
    /// # Errors
    /// Exit code 15 where it cannot be written.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file =
            File::create(path).map_err(|e| longshore_core::durable::write_failure(path, e))?;
        Ok(Self { file, left: MOST_LOGGED, failed: false })
    }

    /// Appends one line.
    pub fn line(&mut self, line: &str) {
        if self.failed {
            return;
        }
        let written = match self.left.checked_sub(line.len() + 1) {
            Some(left) => {
                self.left = left;
                writeln!(self.file, "{line}")
            }
            None => {
                self.failed = true;
                writeln!(self.file, "(the log ends here: it may have {MOST_LOGGED} bytes)")
            }
        };
        if let Err(error) = written {
            tracing::warn!("the build's log ends here: {error}");
            self.failed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_does_not_grow_without_end() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("log");
        let mut log = Log::create(&path).expect("created");
        let line = "x".repeat(MAX_LINE);
        (0..2 * MOST_LOGGED / MAX_LINE).for_each(|_| log.line(&line));
        let text = fs::read_to_string(&path).expect("read");
        assert!(text.len() < MOST_LOGGED + 100, "{}", text.len());
        assert!(text.ends_with("(the log ends here: it may have 33554432 bytes)\n"));
    }
}
