//! Daemons as real processes: started, found by their mark, queried, and ended by pidfd.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::libc::{AT_SECURE, SIGTERM};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::daemon::output::{LastLine, Output};
use crate::daemon::{Answers, Daemon, Ending, MARK_VARIABLE, Settings};
use longshore_core::privileges;
use longshore_core::root::open_regular;

/// Maximum bytes read of a process's environment; the mark is among its first variables.
const ENVIRONMENT: u64 = 64 << 10;

/// Maximum bytes read of a process's auxiliary vector; it has some twenty pairs of words.
const AUXILIARY: u64 = 4096;

/// Number of searches of /proc. A process that forks and ends between the listing of /proc and its
/// inspection is missed, and its child was not listed yet. Each miss takes a fork, and no daemon
/// forks so often while it starts.
const LOOKS: u32 = 4;

/// Permission bits that let other users write.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// Size limit of a settings file.
const SETTINGS: u64 = 1 << 20;

/// Stack size of the threads that follow a daemon's output and its end.
pub const STACK: usize = 64 << 10;

/// Starts the daemon, with its paths used as they are; its output goes to the log and `last`.
///
/// # Errors
/// If its settings cannot be written, or its program cannot be executed.
pub(crate) fn start(daemon: &Daemon, mark: &str, last: &LastLine) -> io::Result<()> {
    if let Some(settings) = &daemon.settings {
        write_settings(settings)?;
    }
    // The socket of a killed daemon has no listener, and some daemons do not bind over it.
    // Connecting to another kind of file is refused as well (net/unix/af_unix.c, unix_find_bsd),
    // but that file must not be removed.
    let is_socket = fs::metadata(&daemon.socket).is_ok_and(|there| there.file_type().is_socket());
    if is_socket && ask(&daemon.socket) == Err(Errno::ECONNREFUSED) {
        fs::remove_file(&daemon.socket)?;
    }
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(&daemon.program);
    command
        .args(&daemon.arguments)
        .env_clear()
        .env(MARK_VARIABLE, mark)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LD_LIBRARY_PATH", &daemon.libraries)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        // Ctrl-C in a terminal is for the agent, which then ends the daemon properly.
        .process_group(0);
    let child = privileges::spawn_with_only(&daemon.capabilities, command)?;
    follow(&daemon.name, child, reader, last)
}

fn follow(name: &str, mut child: Child, reader: io::PipeReader, last: &LastLine) -> io::Result<()> {
    let thread = |what: &str| thread::Builder::new().name(what.to_owned()).stack_size(STACK);
    let (last_line, who) = (last.clone(), name.to_owned());
    let log = move |line: &str| tracing::info!("{who}: {line}");
    thread("daemon-output").spawn(move || Output::new(last_line, log).copy(reader))?;
    let (last, name) = (last.clone(), name.to_owned());
    // A daemon that forks to the background ends at once, with success.
    thread("daemon-end").spawn(move || match child.wait() {
        Ok(status) if !status.success() => {
            // The signal that longshore ends daemons by; many have no handler for it.
            if status.signal() == Some(SIGTERM) {
                tracing::info!("{name} ended by SIGTERM");
            } else {
                tracing::warn!("{name} ended with {status}");
            }
            last.set_status(status.to_string());
        }
        Ok(_) => {}
        Err(e) => tracing::warn!("{name}: cannot wait for its end: {e}"),
    })?;
    Ok(())
}

/// Writes the settings: the template's lines, with the changed ones replaced or appended. The
/// directory has to be the agent's own: who could replace the file between its writing and its
/// reading would set the paths that the daemon writes to as root. No link is followed.
fn write_settings(settings: &Settings) -> io::Result<()> {
    let mut text = String::new();
    let template = open_regular(&settings.template, OFlag::empty())?;
    template.take(SETTINGS).read_to_string(&mut text)?;
    let (Some(dir), Some(name)) = (settings.file.parent(), settings.file.file_name()) else {
        return Err(io::Error::other(format!("{} names no file", settings.file.display())));
    };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let dir = fs::File::from(openat(AT_FDCWD, dir, flags, Mode::empty())?);
    check_private(&dir.metadata()?).map_err(|why| {
        io::Error::new(ErrorKind::PermissionDenied, format!("{}: {why}", settings.file.display()))
    })?;
    let mut next = name.to_owned();
    next.push(".next");
    // A link itself is removed, not its target.
    match unlinkat(&dir, next.as_os_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(&dir, next.as_os_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
    fs::File::from(file).write_all(with_settings(&text, &settings.set).as_bytes())?;
    Ok(renameat(&dir, next.as_os_str(), &dir, name)?)
}

/// Refuses a directory that another user owns or can write to.
fn check_private(dir: &fs::Metadata) -> Result<(), String> {
    let (owner, mode) = (dir.uid(), dir.mode() & 0o7777);
    if owner != geteuid().as_raw() {
        return Err(format!("its directory belongs to user {owner}"));
    }
    if mode & WRITTEN_BY_OTHERS != 0 {
        return Err(format!("others can write to its directory (mode {mode:04o})"));
    }
    Ok(())
}

fn with_settings(template: &str, set: &[(String, String)]) -> String {
    let is_set = |line: &&str| {
        let key = line.split_once('=').map(|(key, _)| key.trim());
        !set.iter().any(|(name, _)| key == Some(name.as_str()))
    };
    let kept = template.lines().filter(is_set).map(str::to_owned);
    let lines: Vec<String> = kept.chain(set.iter().map(|(k, v)| format!("{k}={v}"))).collect();
    lines.join("\n") + "\n"
}

/// A process id, and a pidfd that refers to exactly this process.
pub(crate) type IdentifiedProcess = (u32, OwnedFd);

/// Returns the processes with the mark, from the /proc below `root`. It can hang if a process of
/// root's hangs (see [`crate::facts::process_files`]).
///
/// # Errors
/// If /proc cannot be listed, or no pidfd can be opened (Linux 5.3).
pub(crate) fn find(root: &Path, mark: &str) -> io::Result<Vec<IdentifiedProcess>> {
    let proc = root.join("proc");
    for _ in 0..LOOKS {
        let found = look_for(&proc, mark)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

fn look_for(proc: &Path, mark: &str) -> io::Result<Vec<IdentifiedProcess>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let has_mark = || is_own_start(&entry.path()) && has_mark(&entry.path(), mark);
        if !has_mark() {
            continue;
        }
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
        match pidfd_open(raw, PidfdFlags::empty()) {
            // Checked again: before the pidfd was open another process may have got the number.
            Ok(fd) if has_mark() => found.push((pid, fd)),
            Ok(_) | Err(rustix::io::Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(found)
}

/// True if longshore can have started the process: it belongs to the agent's own user, who is root,
/// and was executed by that user. Any user can pass an environment to a setuid program, which then
/// has root's effective user id, but AT_SECURE as well (getauxval(3), proc_pid_auxv(5)).
fn is_own_start(process: &Path) -> bool {
    // The directory belongs to the effective user (fs/proc/base.c, task_dump_owner).
    let is_own = fs::metadata(process).is_ok_and(|dir| dir.uid() == geteuid().as_raw());
    is_own && !was_given_rights(process)
}

/// True if a process gained privileges from the file it executed, or if that cannot be read.
fn was_given_rights(process: &Path) -> bool {
    let mut vector = Vec::new();
    let read = fs::File::open(process.join("auxv"))
        .and_then(|file| file.take(AUXILIARY).read_to_end(&mut vector));
    let secure = vector.chunks_exact(2 * size_of::<usize>()).find_map(|pair| {
        let (key, value) = pair.split_at(size_of::<usize>());
        let word = |bytes: &[u8]| bytes.try_into().map(usize::from_ne_bytes).ok();
        (word(key)? == AT_SECURE as usize).then(|| word(value))?
    });
    read.is_err() || secure != Some(0)
}

/// True if the environment that a process was executed with has the mark. A process that is gone,
/// is a kernel thread, or may not be inspected, was not started by longshore.
fn has_mark(process: &Path, mark: &str) -> bool {
    let mut environment = Vec::new();
    let read = fs::File::open(process.join("environ"))
        .and_then(|file| file.take(ENVIRONMENT).read_to_end(&mut environment));
    let wanted = format!("{MARK_VARIABLE}={mark}");
    read.is_ok() && environment.split(|&byte| byte == 0).any(|one| one == wanted.as_bytes())
}

/// Signals every one of the processes; returns those that still existed.
///
/// # Errors
/// If one may not be signalled.
pub(crate) fn end(found: Vec<IdentifiedProcess>, how: Ending) -> io::Result<Vec<OwnedFd>> {
    let signal = match how {
        Ending::Term => Signal::TERM,
        Ending::Kill => Signal::KILL,
    };
    let mut signalled = Vec::new();
    for (_, fd) in found {
        match pidfd_send_signal(fd.as_fd(), signal) {
            Ok(()) => signalled.push(fd),
            Err(rustix::io::Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(signalled)
}

/// True if the process has not ended.
pub(crate) fn is_alive(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
}

/// The process that listens on `path`, as the kernel reports it (unix(7), SO_PEERCRED: the process
/// that called listen(2)).
pub(crate) fn answers(path: &Path, ours: &[u32]) -> Answers {
    match ask(path) {
        Ok(pid) if ours.contains(&pid) => Answers::Ours,
        // The listed process called listen(2) and then forked to the background: its child
        // inherited the socket.
        Ok(pid) if !ours.is_empty() && pid != 0 && is_gone(pid) => Answers::Ours,
        Ok(pid) => Answers::Other(pid),
        // No socket, no listener, or (EAGAIN) a listener that accepts no connection.
        Err(_) => Answers::Nobody,
    }
}

/// Connects, and gets the listener's pid from the kernel; 0 for a process of another PID namespace.
fn ask(path: &Path) -> nix::Result<u32> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let asking = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(asking.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(u32::try_from(getsockopt(&asking, PeerCredentials)?.pid()).unwrap_or(0))
}

/// True if a process has ended, even if it is not reaped yet (proc_pid_stat(5)).
fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests;
