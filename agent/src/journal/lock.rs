//! Lock for one agent at a time: an flock on `lock`, which names its holder.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::locks::{Attempt, LockKind};
use longshore_core::root::open_regular;

/// Time limit for waiting for a held lock: a status query holds it for a moment, and an agent that
/// is just ending for a little more.
const GRACE: Duration = Duration::from_millis(500);

/// A lock file has two short lines.
const LONGEST: u64 = 1024;

/// The lock, held until dropped; the kernel releases it when its holder and every process that it
/// was shared with are dead.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

/// Holder of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id, in the holder's own PID namespace; None if it wrote none.
    pub pid: Option<u32>,
    /// Host name: in a pod, the pod's name.
    pub host: Option<String>,
}

impl Lock {
    /// Takes the lock of `dir`, and writes its holder into it. The inner error is the present
    /// holder.
    ///
    /// # Errors
    /// 15 if the file cannot be opened for writing.
    pub fn take(dir: &Path) -> Result<Result<Self, Holder>, Failure> {
        let path = dir.join("lock");
        let fail = |e: io::Error| super::unwritable(&path, e);
        check_writable(&path).map_err(fail)?;
        let mut attempt = Attempt::begin(&path, LockKind::Exclusive, GRACE).map_err(fail)?;
        let Some(locked) = attempt.within_limit_here().map_err(fail)? else {
            return Ok(Err(Holder::read_from(&path)));
        };
        let mut locked = kept_by_all(locked).map_err(fail)?;
        // Only holding it matters. With a full disk the file does not name its holder, and a driver
        // can still be uninstalled.
        if let Err(error) = sign(&mut locked) {
            tracing::warn!("{}: {error}", path.display());
        }
        Ok(Ok(Self { file: locked }))
    }

    /// Returns the lock, for a child that is to hold it as well.
    ///
    /// # Errors
    /// If there is no room for one more open file.
    pub fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// Fails on a file that cannot be written to: one on a read-only file system could be locked, but
/// nothing could be recorded beside it.
fn check_writable(path: &Path) -> io::Result<()> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    match OpenOptions::new().read(true).write(true).custom_flags(flags.bits()).open(path) {
        // It is made when it is locked.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened.map(drop),
    }
}

/// Takes the locked file out of its guard, which would unlock it for the processes it is shared
/// with as well: it is to stay locked until the last of them closes it (flock(2)).
fn kept_by_all(mut guard: Flock<File>) -> io::Result<File> {
    let unlocked = File::open("/dev/null")?;
    Ok(mem::replace(&mut *guard, unlocked))
}

/// Opens the lock for reading: any kind of file may be in its place.
fn open(path: &Path) -> io::Result<File> {
    open_regular(path, OFlag::O_NOFOLLOW)
}

fn sign(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    writeln!(lock, "{}\n{}", std::process::id(), host.trim())
}

/// Returns the process id of the agent that holds the lock of `dir`; None if no agent does.
///
/// It is the id that the agent wrote, in its own PID namespace; 0 if it wrote none.
///
/// # Errors
/// A message, if the caller may not read the lock.
pub fn holder(dir: &Path) -> Result<Option<u32>, String> {
    let path = dir.join("lock");
    let file = match open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return Err(format!(
                "only root can see whether an agent runs: {}: {e}",
                path.display()
            ));
        }
        Err(_) => return Ok(None),
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((mut file, Errno::EWOULDBLOCK)) => Ok(Some(Holder::read(&mut file).pid.unwrap_or(0))),
        Ok(_) | Err(_) => Ok(None),
    }
}

impl Holder {
    /// Reads the holder out of the lock file at `path`.
    fn read_from(path: &Path) -> Self {
        match open(path) {
            Ok(mut file) => Self::read(&mut file),
            // Removed meanwhile, or replaced: the holder stays unnamed.
            Err(_) => Self { pid: None, host: None },
        }
    }

    fn read(file: &mut File) -> Self {
        let mut text = String::new();
        // An unreadable text leaves the holder unnamed; the lock is held all the same.
        let _ = file.take(LONGEST).read_to_string(&mut text);
        let mut lines = text.lines().map(str::trim);
        let pid = lines.next().and_then(|line| line.parse().ok());
        Self { pid, host: lines.next().filter(|host| !host.is_empty()).map(str::to_owned) }
    }

    /// Returns the failure of a caller that waited for `waited` while this holder kept the lock of
    /// `dir`.
    pub fn into_failure(self, dir: &Path, waited: Duration) -> Failure {
        let path = dir.join("lock");
        let waited = match waited.as_secs() {
            0 => String::new(),
            s => format!(", for the {s} s that this one waited"),
        };
        Failure::new(
            FailureKind::Preflight,
            format!("another longshore runs ({self}): it holds {}{waited}", path.display()),
        )
        .remedy(
            "stop that one with SIGTERM; it uninstalls its driver and releases the lock. Where it \
             has ended and the lock is still held, a call of its into the kernel hangs: see dmesg, \
             and reboot the host",
        )
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid}")?,
            None => write!(f, "pid unknown")?,
        }
        self.host.as_ref().map_or(Ok(()), |host| write!(f, " of {host}"))
    }
}
