//! Directories of the host that are attached in this container, where no mount of the container has
//! them (docs/internals/decisions/store-of-the-host.md).
//!
//! The host's directories are reached through process 1. Each one on the way has to be root's, closed
//! to other writers, and no link: whoever could replace one of them would choose what is attached.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use crate::facts::mounts;
use crate::real::kernel_call::{Call, CallOutcome, KernelCalls};

/// Mode bits of writers other than the owner.
const WRITTEN_BY_OTHERS: u32 = 0o022;
/// Mode of a directory on the way, and of the last one.
const MODES: (u32, u32) = (0o755, 0o700);

/// Mount namespace of the host, and its root directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostNamespace {
    root: PathBuf,
    file: PathBuf,
}

/// A directory of the host that root alone can have written to, held open.
#[derive(Debug)]
pub struct HostDir {
    dir: OwnedFd,
    namespace: PathBuf,
    /// True if this is the directory that was asked for, false if the deepest one that exists.
    pub whole: bool,
}

/// Reason why a directory of the host is not attached.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum NotAttached {
    /// The kernel or a filter of system calls refused it.
    #[display("{}", refusal(*_0))]
    Refused(Errno),
    /// The kernel did not answer within this time; the call may still take effect.
    #[display("the kernel has not answered in {} s", _0.as_secs_f64())]
    Unanswered(Duration),
}

impl HostNamespace {
    /// The mount namespace of process 1, which must be the host's.
    pub fn of_process_1() -> Self {
        Self { root: "/proc/1/root".into(), file: "/proc/1/ns/mnt".into() }
    }

    /// True if this process is in another mount namespace, with another root directory, as a
    /// container is; false where that is unknown. A service of the host may have a mount namespace
    /// of its own and the host's root.
    pub fn is_another(&self) -> bool {
        let id = |file: &Path| fs::read_link(file).ok();
        let theirs = id(&self.file);
        let root = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        // The last component is followed into the directory that the link of process 1 stands for.
        let their_root = root(&self.root.join("."));
        theirs.is_some()
            && theirs != id(Path::new("/proc/thread-self/ns/mnt"))
            && their_root.is_some()
            && their_root != root(Path::new("/"))
    }

    /// Opens the absolute `path`, and makes the directories that are missing.
    ///
    /// # Errors
    /// The kernel's error, or the reason why a directory on the way is not trusted.
    pub fn make(&self, path: &Path) -> io::Result<HostDir> {
        self.walk(path, true)
    }

    /// Opens the absolute `path`, or the deepest directory on the way to it that exists.
    ///
    /// # Errors
    /// As [`HostNamespace::make`].
    pub fn nearest(&self, path: &Path) -> io::Result<HostDir> {
        self.walk(path, false)
    }

    fn walk(&self, path: &Path, make: bool) -> io::Result<HostDir> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = open(&self.root, flags, Mode::empty())?;
        check(&dir, Path::new("/"))?;
        let (mut at, mut whole) = (PathBuf::from("/"), true);
        for part in path.components() {
            let name = match part {
                Component::RootDir => continue,
                Component::Normal(name) => name,
                _ => return Err(io::Error::other(format!("{} has `..`", path.display()))),
            };
            at.push(name);
            if make {
                make_in(&dir, name, if at == path { MODES.1 } else { MODES.0 })?;
            }
            match openat(&dir, name, flags_of_part(), Mode::empty()) {
                Err(Errno::ENOENT) if !make => {
                    whole = false;
                    break;
                }
                opened => dir = opened.map_err(|errno| on_host(&at, errno))?,
            }
            check(&dir, &at)?;
        }
        check_flags(&dir, &at)?;
        Ok(HostDir { dir, namespace: self.file.clone(), whole })
    }
}

/// Refuses a file system on which no store can be kept, or from which no library can be loaded: the
/// driver's are, out of the store.
fn check_flags(dir: &OwnedFd, path: &Path) -> io::Result<()> {
    let flags = fstatvfs(dir).map_err(|errno| on_host(path, errno))?.flags();
    for (flag, name) in [(FsFlags::ST_RDONLY, "read-only"), (FsFlags::ST_NOEXEC, "noexec")] {
        if flags.contains(flag) {
            let place = path.display();
            return Err(io::Error::other(format!("{place} on the host is mounted {name}")));
        }
    }
    Ok(())
}

fn flags_of_part() -> OFlag {
    OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

fn make_in(dir: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<()> {
    match mkdirat(dir, name, Mode::from_bits_truncate(mode)) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        // Its file system may be read-only, though the directory is there.
        Err(errno) if openat(dir, name, flags_of_part(), Mode::empty()).is_err() => {
            Err(on_host(Path::new(name), errno))
        }
        Err(_) => Ok(()),
    }
}

fn on_host(path: &Path, errno: Errno) -> io::Error {
    io::Error::other(format!("{} on the host: {}", path.display(), io::Error::from(errno)))
}

/// Refuses what is no directory, or may be another's than root's.
fn check(dir: &OwnedFd, path: &Path) -> io::Result<()> {
    let found = fstat(dir).map_err(|errno| on_host(path, errno))?;
    match distrust(&found) {
        None => Ok(()),
        Some(why) => Err(io::Error::other(format!("{} on the host {why}", path.display()))),
    }
}

fn distrust(found: &FileStat) -> Option<String> {
    let kind = found.st_mode & SFlag::S_IFMT.bits();
    let mode = found.st_mode & 0o7777;
    if kind == SFlag::S_IFLNK.bits() {
        Some("is a symbolic link".into())
    } else if kind != SFlag::S_IFDIR.bits() {
        Some("is no directory".into())
    } else if found.st_uid != 0 {
        Some(format!("belongs to uid {}, not to root", found.st_uid))
    } else {
        (mode & WRITTEN_BY_OTHERS != 0)
            .then(|| format!("can be written to by others (mode {mode:04o})"))
    }
}

impl HostDir {
    /// Attaches the directory on the directory `target` of this container, without the mounts below
    /// it, in this mount namespace alone.
    ///
    /// # Errors
    /// As [`NotAttached`] says; nothing is attached then unless the kernel does not answer.
    pub fn attach(&self, target: &Path, calls: &KernelCalls) -> Result<(), NotAttached> {
        let source = self.path();
        let call =
            Call::FromHost { source: &source, namespace: &self.namespace, target: Some(target) };
        match answered(calls.make(&target.display().to_string(), call)) {
            // A child that was killed may have attached it.
            Err(NotAttached::Refused(Errno::EINTR)) if is_mounted(target) => Ok(()),
            answer => answer,
        }
    }

    /// Tries to attach the directory, in a mount namespace that ends with the trial.
    ///
    /// # Errors
    /// As [`HostDir::attach`].
    pub fn try_out(&self, calls: &KernelCalls) -> Result<(), NotAttached> {
        let source = self.path();
        let call = Call::FromHost { source: &source, namespace: &self.namespace, target: None };
        answered(calls.make("a trial of the host's directory", call))
    }

    /// Path of the open directory, for a child process as well.
    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.dir.as_raw_fd()).into()
    }
}

fn answered(answer: CallOutcome) -> Result<(), NotAttached> {
    match answer {
        CallOutcome::Came(answer) => answer.map_err(NotAttached::Refused),
        CallOutcome::NoneWithin(waited) => Err(NotAttached::Unanswered(waited)),
        CallOutcome::Lost => Err(NotAttached::Refused(Errno::EINTR)),
    }
}

fn is_mounted(target: &Path) -> bool {
    let mounts = fs::read("/proc/thread-self/mountinfo").map(|text| mounts::parse(&text));
    mounts.is_ok_and(|mounts| mounts.iter().any(|mount| mount.target == target))
}

fn refusal(errno: Errno) -> String {
    match errno {
        Errno::ENOSYS => {
            "the kernel has no open_tree and move_mount (Linux 5.2 has), or the container's \
             seccomp profile refuses these or setns"
                .to_owned()
        }
        Errno::EPERM | Errno::EACCES => format!(
            "setns, open_tree or move_mount was refused ({}): by the container's seccomp profile, \
             AppArmor or SELinux, or for want of CAP_SYS_ADMIN, CAP_SYS_CHROOT or CAP_SYS_PTRACE",
            errno.desc()
        ),
        _ => format!("setns, open_tree or move_mount failed: {}", errno.desc()),
    }
}

impl std::error::Error for NotAttached {}

#[cfg(test)]
mod tests;
