//! Calls into the kernel that may never come back.
//!
//! A module whose init or exit function hangs sleeps where no signal reaches it, and so does a mount
//! of a file system whose server or disk is gone. A process with such a thread does not end, not
//! even by SIGKILL: whoever waits for it, as a container runtime does, waits until the host is
//! rebooted. So such calls are made by a child, this program once
//! more, and are given up after a while: this process then says what hangs, and ends. The child
//! holds the lock of the state directory until it comes back, so nobody else begins meanwhile
//! (docs/decisions/wedged-modules.md).
//!
//! One child makes one call after the other, until it is told that there are no more: its standard
//! input ends. A call is a line of words, and for init_module(2) the module after it:
//!
//! ```text
//! finit_module PARAMETERS FILE        its parent's open file, below /proc
//! init_module PARAMETERS SIZE         then so many bytes
//! delete_module NAME
//! umount2 TARGET FLAGS
//! bind SOURCE TARGET                 with all that is mounted below
//! bind-ro SOURCE TARGET              the same, read-only in every copy of the mount
//! tmpfs TARGET DATA
//! mknod PATH DEVICE MODE UID GID ... character devices, each with exactly this mode and owner
//! chnod PATH DEVICE MODE UID GID     mode and owner of the device that is there
//! ```
//!
//! Its answer is a line with the errno, or 0. In a word, `%XX` stands for any byte that is not a
//! letter, a digit or one of `_-./=,:+`. A line has at most 64 KiB; a longer one is not sent, and is
//! answered with E2BIG.

mod calls;
mod read_only;

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

use super::verbs::Image;

/// The argument that makes this program such a child.
pub const ARGUMENT: &str = "__kernel-call";

/// The longest answer: an errno and a newline.
const LONGEST_ANSWER: usize = 16;

/// How often a call that does not come back is spoken of: a person then knows what hangs, and since
/// when.
const SAID_EVERY: Duration = Duration::from_secs(15);
/// What the thread that reaps the child needs.
const STACK: usize = 64 << 10;

/// How calls are made.
#[derive(Debug, Clone)]
pub struct KernelCalls {
    /// This program; None makes every call in this process, without a deadline.
    program: Option<PathBuf>,
    /// What keeps other agents away while a call is in the kernel.
    lock: Option<Arc<File>>,
    /// How long a module may take to load, and a mount or a node to be made.
    load: Duration,
    /// How long a module or mount may take to be taken off.
    unload: Duration,
    /// The child that waits for the next call.
    waiting: Arc<Mutex<Option<Caller>>>,
}

/// A child that makes calls.
#[derive(Debug)]
struct Caller {
    calls: ChildStdin,
    answers: ChildStdout,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The kernel answered.
    Came(Result<(), Errno>),
    /// It did not within this time, and may still.
    NoneWithin(Duration),
    /// The child ended before it could tell: somebody killed it.
    Lost,
}

impl KernelCalls {
    /// Calls made in this process.
    pub fn direct() -> Self {
        let (load, unload) = (Duration::MAX, Duration::MAX);
        Self { program: None, lock: None, load, unload, waiting: Arc::default() }
    }

    /// Calls made by a child, which holds `lock` meanwhile.
    pub fn by_child(lock: Option<File>, load: Duration, unload: Duration) -> Self {
        let (program, lock) = (Some(PathBuf::from("/proc/self/exe")), lock.map(Arc::new));
        Self { program, lock, load, unload, waiting: Arc::default() }
    }

    /// The same calls and the same child, with other deadlines.
    #[must_use]
    pub(super) fn within(self, load: Duration, unload: Duration) -> Self {
        Self { load, unload, ..self }
    }

    /// Starts the child, so that the first call need not wait for it.
    pub(super) fn prepare(&self) {
        let mut waiting = self.waiting();
        if let (Some(program), None) = (&self.program, &*waiting) {
            // A call that finds none tries once more, and says why.
            *waiting = self.start(program).ok();
        }
    }

    /// There are no more calls for now: the child ends.
    pub(super) fn rest(&self) {
        self.waiting().take();
    }

    /// Makes a call about `subject`.
    pub(super) fn make(&self, subject: &str, call: Call<'_>) -> Answer {
        let Some(program) = &self.program else { return Answer::Came(call.carry_out()) };
        if call.line().len() as u64 > LONGEST_CALL {
            return Answer::Came(Err(Errno::E2BIG));
        }
        let mut waiting = self.waiting();
        let within = match call {
            Call::Unload { .. } | Call::Unmount { .. } => self.unload,
            _ => self.load,
        };
        let since = Instant::now();
        // One that was killed meanwhile, or that does not read, takes no call: nothing was begun then.
        let ready = waiting.take().and_then(|mut caller| {
            let begun = caller.begin(call, within);
            begun.is_ok().then_some(caller)
        });
        let mut caller = match ready.map_or_else(|| self.start_with(program, call, within), Ok) {
            Ok(caller) => caller,
            // No room for one more process is no reason to leave a driver on the host.
            Err(error) => {
                let verb = call.verb();
                tracing::warn!(
                    "{verb} {subject}: without a child, for none can be started: {error}"
                );
                return Answer::Came(call.carry_out());
            }
        };
        let said = || {
            let (s, verb) = (since.elapsed().as_secs(), call.verb());
            tracing::warn!("{verb} {subject}: the kernel has not come back from it for {s} s");
        };
        let answer = caller.answer(within.saturating_sub(since.elapsed()), within, said);
        if matches!(answer, Answer::Came(_)) {
            *waiting = Some(caller);
        }
        answer
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Caller>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new child that was given `call`.
    fn start_with(&self, program: &Path, call: Call<'_>, within: Duration) -> io::Result<Caller> {
        let mut caller = self.start(program)?;
        // Where it died meanwhile, or does not read, it gives no answer, and that counts.
        let _ = caller.begin(call, within);
        Ok(caller)
    }

    fn start(&self, program: &Path) -> io::Result<Caller> {
        let lock = self.lock.as_ref().map(|lock| lock.try_clone()).transpose()?;
        let mut command = Command::new(program);
        command.arg0("longshore").arg(ARGUMENT).env_clear();
        // What is typed at a terminal is meant for the agent alone.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // It writes nothing there: this is how it comes to hold the lock, and no other child does.
        command.stderr(lock.map_or_else(Stdio::null, Stdio::from));
        let mut child = command.spawn()?;
        let (Some(calls), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        // Whoever does not read keeps nobody waiting.
        fcntl(&calls, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let reaper = thread::Builder::new().name("kernel-call".into()).stack_size(STACK);
        // However it ends: its answers are all that counts.
        reaper.spawn(move || drop(child.wait()))?;
        Ok(Caller { calls, answers })
    }
}

/// Waits until the other end of a pipe lets it go on; whether it does within this time.
fn ready(end: impl AsFd, flags: PollFlags, within: Duration) -> io::Result<bool> {
    // None waits for ever: more than this can count is as long.
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

    /// Waits for the answer so long, and calls `waiting` now and then; `within` is what the whole
    /// call was given.
    fn answer(&mut self, left: Duration, within: Duration, waiting: impl Fn()) -> Answer {
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
                Ok(false) => return Answer::NoneWithin(within),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Answer::Lost,
            }
            let mut bytes = [0; LONGEST_ANSWER];
            match self.answers.read(&mut bytes) {
                Ok(n) if n > 0 => said.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // It has ended.
                Ok(_) | Err(_) => return Answer::Lost,
            }
            if said.ends_with(b"\n") || said.len() >= LONGEST_ANSWER {
                return answered(&said);
            }
        }
    }
}

/// What the line that a child gave says.
fn answered(line: &[u8]) -> Answer {
    match std::str::from_utf8(line).ok().and_then(|text| text.trim().parse().ok()) {
        Some(0) => Answer::Came(Ok(())),
        Some(errno) => Answer::Came(Err(Errno::from_raw(errno))),
        None => Answer::Lost,
    }
}

#[cfg(test)]
mod tests;
