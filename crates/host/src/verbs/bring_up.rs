//! Starts a daemon and waits until it answers; stops it and waits until all its processes have
//! ended.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::daemon::{Answers, Daemon, Ending};
use crate::{Host, VerbError};
use longshore_core::cancel::CancelFlag;

/// Polling interval for a daemon's answer: the kernel sends no event when a process begins to
/// listen on a socket.
const LOOK: Duration = Duration::from_millis(50);

/// Time without any of its processes after which the daemon counts as ended: a process that was
/// executed a moment ago has no environment to be recognized by yet (fs/binfmt_elf.c sets it up
/// after it closes the files that tell its parent).
const UNSEEN: Duration = Duration::from_millis(500);

/// Time limit for SIGKILL to take effect; only a process stuck in the kernel needs it.
const KILLING: Duration = Duration::from_secs(2);

/// Starts the daemon under `mark`, after ending any processes that still run under it, and waits
/// until it answers on its socket, or until `cancel` is set, which is no failure.
///
/// # Errors
/// If it cannot be started, ends, or does not answer in time; the caller ends its remaining
/// processes with [`stop`].
pub fn bring_up(
    host: &dyn Host,
    daemon: &Daemon,
    mark: &str,
    cancel: &CancelFlag,
) -> Result<(), VerbError> {
    stop(host, daemon, mark, KILLING)?;
    host.start_daemon(daemon, mark)?;
    let since = Instant::now();
    let mut seen = since;
    loop {
        let state = host.daemon(daemon, mark)?;
        if !state.processes.is_empty() {
            seen = Instant::now();
        }
        if state.answers == Answers::Ours || cancel.is_set() {
            return Ok(());
        }
        let failed = |what: &str, errno: Errno| {
            let last = state.last_output.as_ref();
            let said = last.map(|output| format!(" (last output: {output})")).unwrap_or_default();
            let subject = format!("{daemon}, which {what}{said}");
            let kernel_log = last.into_iter().cloned().collect();
            Err(VerbError { kernel_log, ..VerbError::new("start", subject, errno) })
        };
        let overdue = since.elapsed() >= daemon.start_limit();
        if seen.elapsed() >= UNSEEN || (overdue && state.processes.is_empty()) {
            return failed("ended before it answered", Errno::ECHILD);
        }
        if overdue {
            let (socket, seconds) = (daemon.socket.display(), daemon.ready_within);
            let what = format!("did not answer on {socket} within {seconds} s");
            return failed(&what, Errno::ETIMEDOUT);
        }
        thread::sleep(LOOK);
    }
}

/// Ends every process under `mark`: sends SIGTERM, and SIGKILL to those that still run after
/// `grace`.
///
/// # Errors
/// If one of them cannot be signalled, or survives SIGKILL.
pub fn stop(
    host: &dyn Host,
    daemon: &Daemon,
    mark: &str,
    grace: Duration,
) -> Result<(), VerbError> {
    if end(host, mark, Ending::Term, grace)? {
        return Ok(());
    }
    tracing::warn!("{daemon} did not end {:.1} s after SIGTERM: killing it", grace.as_secs_f64());
    if end(host, mark, Ending::Kill, KILLING)? {
        return Ok(());
    }
    let subject = format!("{daemon}, which survived SIGKILL: a process is stuck in the kernel");
    Err(VerbError::new("kill", subject, Errno::EBUSY))
}

/// Signals, and waits; returns true if no process under the mark is left.
fn end(host: &dyn Host, mark: &str, how: Ending, wait: Duration) -> Result<bool, VerbError> {
    let until = Instant::now() + wait;
    loop {
        // Searched again in every round: a process may fork while it is ended.
        let processes = host.end_daemon(mark, how)?;
        if processes.is_empty() {
            return Ok(true);
        }
        for process in &processes {
            let left = until.saturating_duration_since(Instant::now());
            if !ended_within(process, left) {
                return Ok(false);
            }
        }
    }
}

/// True if the process of the descriptor ends within `wait`.
fn ended_within(process: &impl AsFd, wait: Duration) -> bool {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // A duration too long for a timespec is longer than any caller waits.
        let timeout = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(ready) => return ready > 0,
            Err(_) => return false,
        }
    }
}
