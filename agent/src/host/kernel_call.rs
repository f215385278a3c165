//! Calls into the kernel that may never come back.
//!
//! A module whose init or exit function hangs sleeps where no signal reaches it. A process with
//! such a thread does not end, not even by SIGKILL: whoever waits for it, as a container runtime
//! does, waits until the host is rebooted. So such calls are made by a child, this program once
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
//! ```
//!
//! Its answer is a line with the errno, or 0. In a word, `%XX` stands for any byte that is not a
//! letter, a digit or one of `_-./=,:+`.

use std::ffi::{CString, OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module, init_module};
use nix::mount::{MntFlags, umount2};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::verbs::Image;

/// The argument that makes this program such a child.
pub const ARGUMENT: &str = "__kernel-call";

/// The longest answer: an errno and a newline.
const LONGEST_ANSWER: u64 = 16;
/// The longest call: two paths' worth of words.
const LONGEST_CALL: u64 = 64 << 10;

/// How calls are made.
#[derive(Debug, Clone)]
pub struct KernelCalls {
    /// This program; None makes every call in this process, without a deadline.
    program: Option<PathBuf>,
    /// What keeps other agents away while a call is in the kernel.
    lock: Option<Arc<File>>,
    /// How long a module may take to load.
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
    answers: mpsc::Receiver<String>,
}

/// A call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call<'a> {
    /// init_module(2) or finit_module(2).
    Load { image: Image<'a>, parameters: &'a OsStr },
    /// delete_module(2); it does not wait for users.
    Unload { name: &'a OsStr },
    /// umount2(2).
    Unmount { target: &'a Path, flags: MntFlags },
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

    pub(super) fn make(&self, call: Call<'_>) -> Answer {
        let Some(program) = &self.program else { return Answer::Came(call.carry_out()) };
        let mut waiting = self.waiting();
        let within = match call {
            Call::Load { .. } => self.load,
            Call::Unload { .. } | Call::Unmount { .. } => self.unload,
        };
        let since = Instant::now();
        // One that was killed meanwhile, or that does not read, takes no call: nothing was begun then.
        let ready = waiting.take().and_then(|mut caller| {
            let begun = caller.begin(call, within);
            begun.is_ok().then_some(caller)
        });
        let caller = match ready.map_or_else(|| self.start_with(program, call, within), Ok) {
            Ok(caller) => caller,
            // No room for one more process is no reason to leave a driver on the host.
            Err(error) => {
                tracing::warn!("{call}: without a child, for none can be started: {error}");
                return Answer::Came(call.carry_out());
            }
        };
        let answer = caller.answer(within.saturating_sub(since.elapsed()), within);
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
        let calls = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // Whoever does not read keeps nobody waiting.
        fcntl(&calls, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (tell, answers) = mpsc::channel();
        thread::Builder::new().name("kernel-call".into()).spawn(move || listen(child, &tell))?;
        Ok(Caller { calls, answers })
    }
}

/// Hands on what the child answers, and reaps it whenever it ends.
fn listen(mut child: Child, tell: &mpsc::Sender<String>) {
    let mut answers = child.stdout.take().map(BufReader::new);
    while let Some(answers) = &mut answers {
        let mut line = String::new();
        let read = answers.take(LONGEST_ANSWER).read_line(&mut line);
        if !matches!(read, Ok(1..)) || tell.send(line).is_err() {
            break;
        }
    }
    drop(answers);
    // However it ended: its answers are all that counts.
    let _ = child.wait();
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
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let mut ready = [PollFd::new(&self.calls, PollFlags::OUT)];
                    // None waits for ever: more than this can count is as long.
                    let most = Timespec::try_from(left()).ok();
                    match poll(&mut ready, most.as_ref()) {
                        Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits for the answer so long; `within` is what the whole call was given.
    fn answer(&self, left: Duration, within: Duration) -> Answer {
        match self.answers.recv_timeout(left) {
            Ok(text) => match text.trim().parse() {
                Ok(0) => Answer::Came(Ok(())),
                Ok(errno) => Answer::Came(Err(Errno::from_raw(errno))),
                Err(_) => Answer::Lost,
            },
            Err(mpsc::RecvTimeoutError::Timeout) => Answer::NoneWithin(within),
            Err(mpsc::RecvTimeoutError::Disconnected) => Answer::Lost,
        }
    }
}

impl Call<'_> {
    /// What the child reads.
    fn line(&self) -> String {
        let (verb, words): (_, [OsString; 2]) = match self {
            Call::Load { image: Image::Bytes(image), parameters } => {
                ("init_module", [parameters.into(), image.len().to_string().into()])
            }
            Call::Load { image: Image::File(file), parameters } => {
                let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
                ("finit_module", [parameters.into(), path.into()])
            }
            Call::Unload { name } => return format!("delete_module {}\n", encoded(name)),
            Call::Unmount { target, flags } => {
                ("umount2", [target.into(), flags.bits().to_string().into()])
            }
        };
        format!("{verb} {} {}\n", encoded(&words[0]), encoded(&words[1]))
    }

    fn carry_out(&self) -> Result<(), Errno> {
        match self {
            Call::Load { image: Image::Bytes(image), parameters } => {
                init_module(image, &c_string(parameters)?)
            }
            Call::Load { image: Image::File(file), parameters } => {
                finit_module(file, &c_string(parameters)?, ModuleInitFlags::empty())
            }
            Call::Unload { name } => delete_module(&c_string(name)?, DeleteModuleFlags::O_NONBLOCK),
            // Not by sys-mount: its NOFOLLOW (3.1.1) is O_NOFOLLOW, which umount2 answers with
            // EINVAL.
            Call::Unmount { target, flags } => umount2(*target, *flags | MntFlags::UMOUNT_NOFOLLOW),
        }
    }
}

impl std::fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Call::Load { image: Image::Bytes(_), .. } => write!(f, "init_module"),
            Call::Load { image: Image::File(_), .. } => write!(f, "finit_module"),
            Call::Unload { name } => write!(f, "delete_module {}", name.display()),
            Call::Unmount { target, .. } => write!(f, "umount2 {}", target.display()),
        }
    }
}

fn c_string(text: &OsStr) -> Result<CString, Errno> {
    CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL)
}

/// A word of a call's line.
fn encoded(word: &OsStr) -> String {
    let mut text = String::new();
    for byte in word.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"_-./=,:+".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn decoded(word: &[u8]) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(OsString::from_vec(bytes))
}

/// What the child does: makes the calls that its standard input names, until that ends. Returns its
/// exit code.
pub fn kernel_call_main() -> u8 {
    // Standard error is the lock, which names its holder.
    std::panic::set_hook(Box::new(|_| {}));
    u8::from(make_all(&mut io::stdin().lock(), &mut io::stdout()).is_err())
}

fn make_all(calls: &mut impl BufRead, answers: &mut impl Write) -> io::Result<()> {
    loop {
        let mut line = Vec::new();
        if calls.take(LONGEST_CALL).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // Half of one, where whoever asks has died: nothing is begun then.
        let answer = match line.strip_suffix(b"\n").and_then(words) {
            Some(words) => carry_out(&words, calls),
            None => Err(Errno::EINVAL),
        };
        writeln!(answers, "{}", answer.err().map_or(0, |errno| errno as i32))?;
        answers.flush()?;
    }
}

fn words(line: &[u8]) -> Option<Vec<OsString>> {
    line.split(|byte| *byte == b' ').map(decoded).collect()
}

fn carry_out(words: &[OsString], rest: &mut impl Read) -> Result<(), Errno> {
    let number = |text: &OsString| text.to_str().and_then(|t| t.parse().ok()).ok_or(Errno::EINVAL);
    match words {
        [verb, parameters, size] if verb == "init_module" => {
            let size: i32 = number(size)?;
            let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
            let mut image = Vec::with_capacity(size);
            rest.take(size as u64).read_to_end(&mut image).map_err(|_| Errno::EIO)?;
            if image.len() != size {
                return Err(Errno::ENODATA);
            }
            Call::Load { image: Image::Bytes(&image), parameters }.carry_out()
        }
        [verb, parameters, file] if verb == "finit_module" => {
            // Whoever may not have the file by this name hands over its bytes.
            let file = File::open(file).map_err(|_| Errno::EACCES)?;
            Call::Load { image: Image::File(&file), parameters }.carry_out()
        }
        [verb, name] if verb == "delete_module" => Call::Unload { name }.carry_out(),
        [verb, target, flags] if verb == "umount2" => {
            let flags = MntFlags::from_bits(number(flags)?).ok_or(Errno::EINVAL)?;
            Call::Unmount { target: Path::new(target), flags }.carry_out()
        }
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests;
