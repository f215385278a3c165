//! File locks (flock(2)) with a deadline, taken by tries that never block.
//!
//! A blocking flock(2) has no deadline, and is not interrupted by a signal that another thread
//! handles. Any process that may open a file may lock it (flock(2)): lock files are accessible to
//! their owner only, and older ones that others may open are restricted.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{major, minor};

use crate::failure::{Failure, FailureKind};
use crate::sanitize;

/// Time between two tries.
const EVERY: Duration = Duration::from_millis(50);

const OWNER_ALONE: u32 = 0o600;

/// Bytes that are read of /proc/locks: some ten thousand locks.
const LISTED: u64 = 1 << 20;

/// Reads of /proc/locks until a holder is found.
const READS: usize = 5;

/// Bytes that are read of a process' name.
const NAME: u64 = 64;

/// Tries of making a file that is not removed before it is locked.
const BIRTHS: usize = 64;

/// Number of holders a lock may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Many.
    Shared,
    /// One.
    Exclusive,
}

/// Attempt to lock a lock file.
#[derive(Debug)]
pub struct Attempt {
    path: PathBuf,
    kind: LockKind,
    limit: Duration,
    since: Instant,
    /// None where the file has to be opened again.
    file: Option<File>,
}

impl Attempt {
    /// Opens the lock file at `path`; a missing one is made, accessible to its owner only.
    ///
    /// # Errors
    /// The errno of the system call.
    pub fn begin(path: &Path, kind: LockKind, limit: Duration) -> io::Result<Self> {
        let file = Some(open(path)?);
        Ok(Self { path: path.to_path_buf(), kind, limit, since: Instant::now(), file })
    }

    /// Tries once; None where another process holds it.
    ///
    /// # Errors
    /// The errno of the system call.
    fn once(&mut self) -> io::Result<Option<Flock<File>>> {
        let how = match self.kind {
            LockKind::Shared => FlockArg::LockSharedNonblock,
            LockKind::Exclusive => FlockArg::LockExclusiveNonblock,
        };
        // Twice: a file that its last holder removed is opened again.
        for _ in 0..2 {
            let file = match self.file.take() {
                Some(file) => file,
                None => open(&self.path)?,
            };
            match Flock::lock(file, how) {
                Ok(locked) if is_at(&locked, &self.path)? => return Ok(Some(locked)),
                Ok(_) => {}
                Err((back, Errno::EWOULDBLOCK)) => {
                    self.file = Some(back);
                    break;
                }
                Err((_, errno)) => return Err(errno.into()),
            }
        }
        Ok(None)
    }

    /// True if the deadline has passed.
    fn is_over(&self) -> bool {
        self.since.elapsed() >= self.limit
    }

    /// Tries until the deadline; None where another process holds it until then.
    ///
    /// # Errors
    /// The errno of the system call.
    pub(crate) async fn within_limit(&mut self) -> io::Result<Option<Flock<File>>> {
        self.within_limit_noting(EVERY, || ()).await
    }

    /// Like `within_limit`, with this time between two tries, and `note` called after each in vain.
    ///
    /// # Errors
    /// The errno of the system call.
    pub async fn within_limit_noting(
        &mut self,
        every: Duration,
        mut note: impl FnMut(),
    ) -> io::Result<Option<Flock<File>>> {
        loop {
            match self.once()? {
                None if !self.is_over() => {
                    note();
                    tokio::time::sleep(every).await;
                }
                tried => return Ok(tried),
            }
        }
    }

    /// Like `within_limit`, on a thread that may block.
    ///
    /// # Errors
    /// The errno of the system call.
    pub fn within_limit_here(&mut self) -> io::Result<Option<Flock<File>>> {
        loop {
            match self.once()? {
                None if !self.is_over() => thread::sleep(EVERY),
                tried => return Ok(tried),
            }
        }
    }

    /// Formats the processes that hold it for a message: ` (held by pid 12, backup)`; empty where
    /// the kernel names none.
    pub fn holders(&self) -> String {
        let Ok(file) = fs::symlink_metadata(&self.path) else { return String::new() };
        let id = (major(file.dev()), minor(file.dev()), file.ino());
        // The list is read page by page, by position: a lock that is released meanwhile hides
        // another one.
        let mut lists = (0..READS).filter_map(|_| {
            let mut listed = String::new();
            File::open("/proc/locks")
                .and_then(|f| f.take(LISTED).read_to_string(&mut listed))
                .ok()?;
            Some(holding(&listed, id)).filter(|pids| !pids.is_empty())
        });
        let named: Vec<String> = lists.next().unwrap_or_default().into_iter().map(named).collect();
        match named.is_empty() {
            true => String::new(),
            false => format!(" (held by {})", named.join("; ")),
        }
    }

    /// Makes the failure at the deadline, exit code 15.
    pub fn still_held(&self) -> Failure {
        let (path, limit, holders) = (self.path.display(), self.limit, self.holders());
        let cause = format!("the lock {path} is still held after {limit:?}{holders}");
        Failure::new(FailureKind::Preflight, cause).remedy(
            "let the process that holds it finish, or end it, and run again; lock-deadline sets \
             how long to wait",
        )
    }
}

/// Opens a lock file: no symlink and no pipe; restricts it to its owner.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    options.read(true).mode(OWNER_ALONE).custom_flags(flags.bits());
    let file = match options.clone().write(true).create(true).truncate(false).open(path) {
        // An existing file can be locked nevertheless.
        Err(e) if e.kind() == ErrorKind::ReadOnlyFilesystem => options.open(path).map_err(|_| e)?,
        opened => opened?,
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.mode() & 0o077 != 0 {
        match file.set_permissions(Permissions::from_mode(OWNER_ALONE)) {
            Err(e) if e.kind() != ErrorKind::ReadOnlyFilesystem => return Err(e),
            _ => {}
        }
    }
    Ok(file)
}

/// Tries once to lock a file that no other process should have open; None where it is held.
///
/// # Errors
/// The errno of the system call.
pub fn try_alone(file: File) -> io::Result<Option<Flock<File>>> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => Ok(Some(locked)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// True if the open file has this name now.
///
/// # Errors
/// The errno of the system call.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Makes a temporary file or directory and locks it. One that another process mistook for an
/// abandoned file and removed, before it was locked, is made again: so no process has to wait here.
///
/// # Errors
/// The errno of the system call.
pub(crate) fn made_locked<T: AsRef<Path>>(
    make: impl Fn() -> io::Result<T>,
) -> io::Result<(T, Flock<File>)> {
    for _ in 0..BIRTHS {
        let made = make()?;
        let file = match File::open(made.as_ref()) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        if let Some(locked) = try_alone(file)?
            && is_at(&locked, made.as_ref())?
        {
            return Ok((made, locked));
        }
    }
    Err(io::Error::other(format!(
        "another process locked or removed {BIRTHS} files just made here"
    )))
}

/// Returns the processes that hold a flock on the file (major and minor of its device, inode), as
/// listed in /proc/locks (proc_locks(5)), without those that wait.
fn holding(listed: &str, file: (u64, u64, u64)) -> Vec<u32> {
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, pid, id, ..] = fields[..] else { return None };
        let mut id = id.split(':');
        let mut hex = || u64::from_str_radix(id.next()?, 16).ok();
        let device = (hex()?, hex()?);
        let inode = id.next()?.parse().ok()?;
        // 0 and below are processes of another PID namespace.
        let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
        ((device.0, device.1, inode) == file).then_some(pid)
    };
    listed.lines().filter_map(holder).collect()
}

fn named(pid: u32) -> String {
    let mut name = Vec::new();
    let comm = File::open(format!("/proc/{pid}/comm"));
    match comm.and_then(|file| file.take(NAME).read_to_end(&mut name)) {
        Ok(_) => {
            let name = String::from_utf8_lossy(&name);
            format!("pid {pid}, {}", sanitize::in_line(name.trim_end()))
        }
        Err(_) => format!("pid {pid}"),
    }
}

#[cfg(test)]
mod tests;
