//! Calls into the kernel that may never come back.
//!
//! A module whose init or exit function hangs sleeps where no signal reaches it. A process with
//! such a thread does not end, not even by SIGKILL: whoever waits for it, as a container runtime
//! does, waits until the host is rebooted. So each such call is made by a child, this program once
//! more, and is given up after a while: this process then says what hangs, and ends. The child
//! holds the lock of the state directory until it comes back, so nobody else begins meanwhile
//! (docs/decisions/wedged-modules.md).

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module, init_module};
use nix::mount::{MntFlags, umount2};

use super::verbs::Image;

/// The argument that makes this program such a child.
pub const ARGUMENT: &str = "__kernel-call";

/// The longest answer: an errno and a newline.
const LONGEST_ANSWER: u64 = 16;

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
        Self { program: None, lock: None, load: Duration::MAX, unload: Duration::MAX }
    }

    /// Calls made by a child, which holds `lock` meanwhile.
    pub fn by_child(lock: Option<File>, load: Duration, unload: Duration) -> Self {
        let program = Some(PathBuf::from("/proc/self/exe"));
        Self { program, lock: lock.map(Arc::new), load, unload }
    }

    pub(super) fn make(&self, call: Call<'_>) -> Answer {
        let Some(program) = &self.program else { return Answer::Came(call.carry_out()) };
        let within = if matches!(call, Call::Load { .. }) { self.load } else { self.unload };
        match self.child(program, call) {
            Ok(child) => answer_of(child, call, within),
            // No room for one more process is no reason to leave a driver on the host.
            Err(error) => {
                tracing::warn!("{call}: without a child, for none can be started: {error}");
                Answer::Came(call.carry_out())
            }
        }
    }

    fn child(&self, program: &Path, call: Call<'_>) -> io::Result<Child> {
        let lock = self.lock.as_ref().map(|lock| lock.try_clone()).transpose()?;
        let mut command = Command::new(program);
        command.arg0("longshore").arg(ARGUMENT).args(call.arguments()).env_clear();
        // What is typed at a terminal is meant for the agent alone.
        command.process_group(0);
        command.stdin(match call {
            Call::Load { image: Image::Bytes(_), .. } => Stdio::piped(),
            Call::Load { image: Image::File(file), .. } => file.try_clone()?.into(),
            Call::Unload { .. } | Call::Unmount { .. } => Stdio::null(),
        });
        // It writes nothing there: this is how it comes to hold the lock, and no other child does.
        command.stdout(Stdio::piped()).stderr(lock.map_or_else(Stdio::null, Stdio::from));
        command.spawn()
    }
}

fn answer_of(mut child: Child, call: Call<'_>, within: Duration) -> Answer {
    if let (Call::Load { image: Image::Bytes(image), .. }, Some(mut stdin)) =
        (call, child.stdin.take())
    {
        // Where it died meanwhile it gives no answer, and that counts.
        let _ = stdin.write_all(image);
    }
    let (tell, told) = mpsc::sync_channel(1);
    let wait = move || {
        let mut text = String::new();
        let read =
            child.stdout.take().map(|out| out.take(LONGEST_ANSWER).read_to_string(&mut text));
        // It has nothing more to do; it is reaped whenever it ends.
        let _ = tell.send(text);
        drop(read);
        let _ = child.wait();
    };
    if let Err(error) = thread::Builder::new().name("kernel-call".into()).spawn(wait) {
        tracing::warn!("{call}: no thread can wait for its child: {error}");
        return Answer::Lost;
    }
    match told.recv_timeout(within) {
        Ok(text) => match text.trim().parse() {
            Ok(0) => Answer::Came(Ok(())),
            Ok(errno) => Answer::Came(Err(Errno::from_raw(errno))),
            Err(_) => Answer::Lost,
        },
        Err(mpsc::RecvTimeoutError::Timeout) => Answer::NoneWithin(within),
        Err(mpsc::RecvTimeoutError::Disconnected) => Answer::Lost,
    }
}

impl Call<'_> {
    fn arguments(&self) -> Vec<OsString> {
        let words: [&OsStr; 2] = match self {
            Call::Load { image: Image::Bytes(_), parameters } => {
                ["init_module".as_ref(), parameters]
            }
            Call::Load { image: Image::File(_), parameters } => {
                ["finit_module".as_ref(), parameters]
            }
            Call::Unload { name } => ["delete_module".as_ref(), name],
            Call::Unmount { target, .. } => ["umount2".as_ref(), target.as_os_str()],
        };
        let mut all = words.map(OsStr::to_owned).to_vec();
        match self {
            Call::Load { image: Image::Bytes(image), .. } => {
                all.push(image.len().to_string().into());
            }
            Call::Unmount { flags, .. } => all.push(flags.bits().to_string().into()),
            Call::Load { image: Image::File(_), .. } | Call::Unload { .. } => {}
        }
        all
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

/// What the child does: `arguments` are those after [`ARGUMENT`]. Returns its exit code.
pub fn kernel_call_main(arguments: impl Iterator<Item = OsString>) -> u8 {
    // Standard error is the lock, which names its holder.
    std::panic::set_hook(Box::new(|_| {}));
    let errno = match carry_out(&arguments.collect::<Vec<_>>()) {
        Ok(()) => 0,
        Err(errno) => errno as i32,
    };
    // Nobody to tell any more: whoever comes next looks at the host.
    let _ = writeln!(io::stdout(), "{errno}");
    u8::from(errno != 0)
}

fn carry_out(arguments: &[OsString]) -> Result<(), Errno> {
    let number = |text: &OsString| text.to_str().and_then(|t| t.parse().ok()).ok_or(Errno::EINVAL);
    match arguments {
        [verb, parameters, size] if verb == "init_module" => {
            let size: i32 = number(size)?;
            let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
            let mut image = Vec::with_capacity(size);
            io::stdin().lock().read_to_end(&mut image).map_err(|_| Errno::EIO)?;
            // Half of one, where whoever hands it over has died: nothing was begun yet.
            if image.len() != size {
                return Err(Errno::ENODATA);
            }
            Call::Load { image: Image::Bytes(&image), parameters }.carry_out()
        }
        // Its standard input is the module's file.
        [verb, parameters] if verb == "finit_module" => {
            let file = io::stdin().as_fd().try_clone_to_owned().map_err(|_| Errno::EBADF)?;
            Call::Load { image: Image::File(&file.into()), parameters }.carry_out()
        }
        [verb, name] if verb == "delete_module" => Call::Unload { name }.carry_out(),
        [verb, target, flags] if verb == "umount2" => {
            let target = PathBuf::from(OsString::from_vec(target.as_bytes().to_vec()));
            let flags = MntFlags::from_bits(number(flags)?).ok_or(Errno::EINVAL)?;
            Call::Unmount { target: &target, flags }.carry_out()
        }
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const AMPLE: Duration = Duration::from_secs(60);

    /// A child that is a script: what it does with its arguments and its input.
    fn scripted(script: &str, within: Duration) -> (tempfile::TempDir, KernelCalls) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("child");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Some(program);
        (dir, KernelCalls { program, lock: None, load: within, unload: within })
    }

    fn unload() -> Call<'static> {
        Call::Unload { name: "nvidia".as_ref() }
    }

    #[test]
    fn the_answer_is_the_childs() {
        let cases = [
            ("echo 0", Answer::Came(Ok(()))),
            ("echo 11; exit 1", Answer::Came(Err(Errno::EAGAIN))),
            ("test \"$*\" = '__kernel-call delete_module nvidia' && echo 0", Answer::Came(Ok(()))),
            ("kill -9 $$", Answer::Lost),
            ("echo nonsense", Answer::Lost),
        ];
        for (script, answer) in cases {
            let (_dir, calls) = scripted(script, AMPLE);
            assert_eq!(calls.make(unload()), answer, "{script}");
        }
    }

    #[test]
    fn a_call_that_does_not_come_back_is_given_up() {
        let within = Duration::from_millis(20);
        let (reader, writer) = io::pipe().unwrap();
        let (_dir, blocked) = scripted("exec cat <&2", within);
        let lock = fs::File::from(std::os::fd::OwnedFd::from(reader));
        let blocked = KernelCalls { lock: Some(Arc::new(lock)), ..blocked };
        assert_eq!(blocked.make(unload()), Answer::NoneWithin(within));
        // The child that was left behind ends when what it waits for comes.
        drop(writer);
    }

    #[test]
    fn the_child_gets_the_image_whole_and_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let image = vec![7; 1 << 20];
        let lock = dir.path().join("lock");
        let (_script, calls) =
            scripted("test $(wc -c) = 1048576 && echo held >&2 && echo 0", AMPLE);
        let calls = KernelCalls { lock: Some(Arc::new(fs::File::create(&lock).unwrap())), ..calls };
        let call = Call::Load { image: Image::Bytes(&image), parameters: "".as_ref() };
        assert_eq!(calls.make(call), Answer::Came(Ok(())));
        assert_eq!(fs::read_to_string(lock).unwrap(), "held\n");
    }

    #[test]
    fn the_child_gets_the_file_itself() {
        let dir = tempfile::tempdir().unwrap();
        let module = dir.path().join("module");
        fs::write(&module, "a module").unwrap();
        let script = format!(
            "test \"$*\" = '__kernel-call finit_module a=1' && \
             test /proc/self/fd/0 -ef {} && echo 0",
            module.display()
        );
        let (_script, calls) = scripted(&script, AMPLE);
        let file = File::open(&module).unwrap();
        let call = Call::Load { image: Image::File(&file), parameters: "a=1".as_ref() };
        assert_eq!(calls.make(call), Answer::Came(Ok(())));
    }

    #[test]
    fn where_no_child_can_be_started_the_call_is_made_all_the_same() {
        let calls = KernelCalls { program: Some("/nonexistent".into()), ..KernelCalls::direct() };
        let call = Call::Unmount { target: Path::new("/nonexistent"), flags: MntFlags::empty() };
        let answer = calls.make(call);
        assert!(matches!(answer, Answer::Came(Err(Errno::ENOENT | Errno::EPERM))), "{answer:?}");
    }

    #[test]
    fn a_child_with_wrong_arguments_calls_nothing() {
        let os = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        for words in [&["reboot"][..], &[], &["umount2", "/x", "-"], &["init_module", "", "-1"]] {
            assert_eq!(carry_out(&os(words)), Err(Errno::EINVAL), "{words:?}");
        }
        let call = Call::Unmount { target: Path::new("/x"), flags: MntFlags::MNT_DETACH };
        assert_eq!(call.arguments(), os(&["umount2", "/x", "2"]));
    }
}
