//! One agent at a time: an flock on `lock`, which names its holder.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::failure::{ExitCode, Failure};

/// How long a lock that is held is waited for: a status query holds it for a moment, and an agent
/// that is just ending for a little more.
const GRACE: Duration = Duration::from_millis(500);

/// Whoever may open a file may lock it (flock(2)), and so keep every agent from this host.
const OWNER_ALONE: u32 = 0o600;

/// The lock, held until dropped; the kernel gives it up when its holder dies.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Takes the lock of `dir`, and writes this process's id into it.
    ///
    /// # Errors
    /// 15 where another agent holds it, or the file cannot be opened for writing.
    pub fn take(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join("lock");
        let fail = |e: io::Error| super::unwritable(&path, e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(OWNER_ALONE)
            .open(&path)
            .map_err(fail)?;
        file.set_permissions(Permissions::from_mode(OWNER_ALONE)).map_err(fail)?;
        let since = Instant::now();
        let mut locked = loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => break locked,
                Err((back, Errno::EWOULDBLOCK)) if since.elapsed() < GRACE => {
                    file = back;
                    thread::sleep(Duration::from_millis(25));
                }
                Err((mut back, Errno::EWOULDBLOCK)) => return Err(taken(&path, &mut back)),
                Err((_, errno)) => return Err(fail(errno.into())),
            }
        };
        // Held is what counts. Where the disk is full, who holds it is not said, and a driver can
        // still be taken off.
        if let Err(error) = sign(&mut locked) {
            tracing::warn!("{}: {error}", path.display());
        }
        Ok(Self { _file: locked })
    }
}

fn sign(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

/// The process id of the agent that holds the lock of `dir`; None where none does.
///
/// The id is the one the agent wrote, in its own PID namespace; 0 where it wrote none.
pub fn holder(dir: &Path) -> Option<u32> {
    let path = dir.join("lock");
    let opened = File::open(&path).inspect_err(|e| {
        if e.kind() == io::ErrorKind::PermissionDenied {
            tracing::warn!("whether an agent runs is for root to see: {}: {e}", path.display());
        }
    });
    let file = opened.ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((mut file, Errno::EWOULDBLOCK)) => Some(written_pid(&mut file).unwrap_or(0)),
        Ok(_) | Err(_) => None,
    }
}

fn taken(path: &Path, file: &mut File) -> Failure {
    let who = written_pid(file).map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    Failure::new(
        ExitCode::Preflight,
        format!("another longshore runs (pid {who}): it holds {}", path.display()),
    )
    .remedy("stop that one with SIGTERM; it takes its driver off and lets go of the lock")
}

fn written_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
