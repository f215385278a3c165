//! Calls into the kernel that may never return, made by a child process with a deadline.
//!
//! A module whose init or exit function hangs sleeps uninterruptibly, and so does a mount of a file
//! system whose server or disk is gone. A process with such a thread does not end, not even by
//! SIGKILL: its parent, for example a container runtime, waits for it until the host is rebooted.
//! So such calls are made by a child process, which runs this program again, and are abandoned at a
//! deadline: this process then reports which call hangs, and exits. The child holds the lock of the
//! state directory until the call returns, so that no other agent starts meanwhile
//! (docs/internals/decisions/wedged-modules.md).
//!
//! One child makes one call after the other, until its standard input ends. A call is a line of
//! words, and for init_module(2) the module after it:
//!
//! ```text
//! finit_module PARAMETERS FILE        its parent's open file, below /proc
//! init_module PARAMETERS SIZE         then so many bytes
//! delete_module NAME
//! umount2 TARGET FLAGS
//! bind SOURCE TARGET                 with all that is mounted below
//! bind-ro SOURCE TARGET              the same, read-only in every copy of the mount
//! from-host SOURCE NAMESPACE TARGET  its parent's open directory of another mount namespace
//! try-from-host SOURCE NAMESPACE     the same in a namespace that ends with the call
//! root TARGET DATA DIRECTORY...      a tmpfs with these directories, read-only in every copy
//! sysfs TARGET                       read-only
//! tmpfs TARGET DATA
//! mknod PATH DEVICE MODE UID GID ... character devices, each with exactly this mode and owner
//! chnod PATH DEVICE MODE UID GID     mode and owner of the device that is there
//! write PATH VALUE                   to an attribute of sysfs
//! ```
//!
//! Its answer is a line with the errno, or 0. In a word, `%XX` stands for any byte that is not a
//! letter, a digit or one of `_-./=,:+`. A line has at most 64 KiB; a longer one is not sent, but
//! answered with E2BIG.

pub mod calls;
mod from_host;
mod read_only;
mod root;

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(super) use calls::Call;
use calls::LONGEST_CALL;
pub use calls::kernel_call_main;

use crate::verbs::Image;

/// Argument that makes this program run as the child.
pub const ARGUMENT: &str = "__kernel-call";

/// Length of the longest answer: an errno and a newline.
const LONGEST_ANSWER: usize = 16;

/// Interval of the warnings about a call that does not return: they name the call and its duration.
const SAID_EVERY: Duration = Duration::from_secs(15);
/// Stack size of the thread that reaps the child.
const STACK: usize = 64 << 10;

/// Makes the calls, and holds their deadlines.
#[derive(Debug, Clone)]
pub struct KernelCalls {
    /// Path of this program; None makes every call in this process, without a deadline.
    program: Option<PathBuf>,
    /// Lock that keeps other agents out while a call is in the kernel.
    lock: Option<Arc<File>>,
    /// Time limit for loading a module, and for making a mount or a node.
    load: Duration,
    /// Time limit for unloading a module or unmounting.
    unload: Duration,
    /// The child that waits for the next call.
    waiting: Arc<Mutex<Option<Caller>>>,
}

/// A child process that makes calls.
#[derive(Debug)]
struct Caller {
    calls: ChildStdin,
    answers: ChildStdout,
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The kernel answered.
    Came(Result<(), Errno>),
    /// The kernel did not answer within this time; the call may still take effect.
    NoneWithin(Duration),
    /// The child was killed before it answered.
    Lost,
}

impl KernelCalls {
    /// Makes calls in this process.
    pub fn direct() -> Self {
        let (load, unload) = (Duration::MAX, Duration::MAX);
        Self { program: None, lock: None, load, unload, waiting: Arc::default() }
    }

    /// Makes calls in a child, which holds `lock` meanwhile.
    pub fn by_child(lock: Option<File>, load: Duration, unload: Duration) -> Self {
        let (program, lock) = (Some(PathBuf::from("/proc/self/exe")), lock.map(Arc::new));
        Self { program, lock, load, unload, waiting: Arc::default() }
    }

    /// The same calls and the same child, with other deadlines.
    #[must_use]
    pub(super) fn within(self, load: Duration, unload: Duration) -> Self {
        Self { load, unload, ..self }
    }

    /// Starts the child in advance, so that the first call need not wait for it.
    pub(super) fn prepare(&self) {
        let mut waiting = self.waiting();
        if let (Some(program), None) = (&self.program, &*waiting) {
            // If this fails, the call tries again and reports the reason.
            *waiting = self.start(program).ok();
        }
    }

    /// Ends the child: no calls are expected for now.
    pub(super) fn release_idle(&self) {
        self.waiting().take();
    }

    /// Makes a call about `subject`.
    pub(super) fn make(&self, subject: &str, call: Call<'_>) -> CallOutcome {
        let Some(program) = &self.program else { return CallOutcome::Came(call.carry_out()) };
        if call.line().len() as u64 > LONGEST_CALL {
            return CallOutcome::Came(Err(Errno::E2BIG));
        }
        let mut waiting = self.waiting();
        let within = match call {
            Call::Unload { .. } | Call::Unmount { .. } => self.unload,
            _ => self.load,
        };
        let since = Instant::now();
        // A child that was killed meanwhile, or that does not read, gets no call: nothing was begun
        // then.
        let ready = waiting.take().and_then(|mut caller| {
            let begun = caller.begin(call, within);
            begun.is_ok().then_some(caller)
        });
        let mut caller = match ready.map_or_else(|| self.start_with(program, call, within), Ok) {
            Ok(caller) => caller,
            // A failed fork, for example for want of memory, is no reason to leave a driver on the
            // host.
            Err(error) => {
                let verb = call.verb();
                tracing::warn!(
                    "{verb} {subject}: no helper process ({error}), calling without deadline"
                );
                return CallOutcome::Came(call.carry_out());
            }
        };
        let said = || {
            let (s, verb) = (since.elapsed().as_secs(), call.verb());
            tracing::warn!("{verb} {subject}: no answer from the kernel for {s} s, waiting");
        };
        let answer = caller.answer(within.saturating_sub(since.elapsed()), within, said);
        if matches!(answer, CallOutcome::Came(_)) {
            *waiting = Some(caller);
        }
        answer
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Caller>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a new child and sends it `call`.
    fn start_with(&self, program: &Path, call: Call<'_>, within: Duration) -> io::Result<Caller> {
        let mut caller = self.start(program)?;
        // If the child died meanwhile, or does not read, no answer comes, and that is the outcome.
        let _ = caller.begin(call, within);
        Ok(caller)
    }

    fn start(&self, program: &Path) -> io::Result<Caller> {
        let lock = self.lock.as_ref().map(|lock| lock.try_clone()).transpose()?;
        let mut command = Command::new(program);
        command.arg0("longshore").arg(ARGUMENT).env_clear();
        // Signals typed at a terminal are meant for the agent alone.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // The child writes nothing to its stderr: the descriptor hands it the lock, which no other
        // child gets.
        command.stderr(lock.map_or_else(Stdio::null, Stdio::from));
        let mut child = command.spawn()?;
        let (Some(calls), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        // A child that does not read must not block the agent.
        fcntl(&calls, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let reaper = thread::Builder::new().name("kernel-call".into()).stack_size(STACK);
        // Its exit status does not matter: only its answers count.
        reaper.spawn(move || drop(child.wait()))?;
        Ok(Caller { calls, answers })
    }
}

/// Waits until the other end of a pipe is ready; false if it is not within this time.
fn ready(end: impl AsFd, flags: PollFlags, within: Duration) -> io::Result<bool> {
    // A duration too long for a timespec counts as no limit.
    let most = Timespec::try_from(within).ok();
    match poll(&mut [PollFd::new(&end, flags)], most.as_ref()) {
        Ok(ends) => Ok(ends > 0),
        Err(error) => Err(error.into()),
    }
}

impl Caller {
    fn begin(&mut self, call: Call<'_>, within: Duration) -> io::Result<()> {
        let since = Instant::now();
        let left = || within.saturating_sub(since.elapsed());
        self.write(call.line().as_bytes(), left)?;
        match call {
            Call::Load { image: Image::Bytes(image), .. } => self.write(image, left),
            _ => Ok(()),
        }
    }

    fn write(&mut self, mut bytes: &[u8], left: impl Fn() -> Duration) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.calls.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    match ready(&self.calls, PollFlags::OUT, left()) {
                        Ok(true) => {}
                        Ok(false) => return Err(ErrorKind::TimedOut.into()),
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) => return Err(e),
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits at most `left` for the answer, and calls `waiting` at intervals; `within` is the time
    /// limit of the whole call.
    fn answer(&mut self, left: Duration, within: Duration, waiting: impl Fn()) -> CallOutcome {
        let since = Instant::now();
        let mut said = Vec::new();
        loop {
            let left = left.saturating_sub(since.elapsed());
            match ready(&self.answers, PollFlags::IN, left.min(SAID_EVERY)) {
                Ok(true) => {}
                Ok(false) if left > SAID_EVERY => {
                    waiting();
                    continue;
                }
                Ok(false) => return CallOutcome::NoneWithin(within),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return CallOutcome::Lost,
            }
            let mut bytes = [0; LONGEST_ANSWER];
            match self.answers.read(&mut bytes) {
                Ok(n) if n > 0 => said.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // The child has ended.
                Ok(_) | Err(_) => return CallOutcome::Lost,
            }
            if said.ends_with(b"\n") || said.len() >= LONGEST_ANSWER {
                return answered(&said);
            }
        }
    }
}

/// Parses a child's answer.
fn answered(line: &[u8]) -> CallOutcome {
    match std::str::from_utf8(line).ok().and_then(|text| text.trim().parse().ok()) {
        Some(0) => CallOutcome::Came(Ok(())),
        Some(errno) => CallOutcome::Came(Err(Errno::from_raw(errno))),
        None => CallOutcome::Lost,
    }
}

#[cfg(test)]
mod tests;
