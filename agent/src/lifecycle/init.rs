//! Process 1 of a container: starts the agent as its child, forwards signals, reaps orphans.
//!
//! A compiler's or daemon's orphans become children of process 1. If the agent were process 1 it
//! would have to tell them from its own children, whose exit statuses its other parts wait for; a
//! process that has only one child of its own cannot mistake them. In a container that shares the
//! host's PID namespace (as under the GPU operator) the agent is not process 1, and the host's init
//! reaps.

use std::ffi::{CStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_name;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::process::{WaitOptions, waitpid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use super::signals::{HELD, release};
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Time limit for the agent to set its signal handlers; some milliseconds are usual.
const STARTING: Duration = Duration::from_secs(5);

/// Process name of this program in listings (proc_pid_comm(5)), by whichever name it was started.
const NAME: &CStr = c"longshore";

/// Result of the agent's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, or 128 + the signal that killed it.
    pub code: u8,
    /// The number of the signal that killed it.
    pub signal: Option<i32>,
}

impl Ended {
    /// Returns the name of the signal that killed it, or its number if it has no name.
    pub fn signal_name(&self) -> Option<String> {
        let signal = self.signal?;
        Some(signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned))
    }
}

/// Runs this program again as a child if this is process 1, and returns its result; None if this is
/// not process 1. To be called before any thread is started.
///
/// # Errors
/// 70 if the child cannot be started.
pub fn as_process_one() -> Result<Option<Ended>, Failure> {
    if std::process::id() != 1 {
        // Started by the code below it would be listed as `exe`. A name is no reason to fail.
        let _ = set_name(NAME);
        return Ok(None);
    }
    let mut arguments = std::env::args_os();
    let mut again = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    again.args(arguments);
    // The loader's variables are meant for this process, not for the agent.
    let loaders = |name: &OsString| name.as_encoded_bytes().starts_with(b"LD_");
    for name in std::env::vars_os().map(|(name, _)| name).filter(loaders) {
        again.env_remove(name);
    }
    supervise(again).map(Some)
}

/// Runs `command` and forwards the signals of this process to it until it ends; reaps every child
/// of this process meanwhile.
///
/// # Errors
/// 70 if the child cannot be started.
pub fn supervise(mut command: Command) -> Result<Ended, Failure> {
    // Handlers first: process 1 ignores a signal it has none for, and no SIGCHLD may be missed.
    let handled = [SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
    let mut signals =
        Signals::new(handled).or_fail(FailureKind::Bug, || "setting signal handlers")?;
    release();
    let agent = command.spawn().or_fail(FailureKind::Bug, || "starting the agent as a child")?;
    let agent = Pid::from_raw(agent.id() as i32);
    for signal in signals.forever() {
        if signal != SIGCHLD {
            hand_on(agent, signal);
        } else if let Some(ended) = reap(agent) {
            return Ok(ended);
        }
    }
    Err(Failure::new(FailureKind::Bug, "waiting for the agent: the stream of signals ended"))
}

/// Forwards a signal as soon as the agent handles it: in its first milliseconds the signal that is
/// to stop it would kill it.
fn hand_on(agent: Pid, signal: i32) {
    let Ok(signal) = Signal::try_from(signal) else { return };
    let since = Instant::now();
    while HELD.contains(&signal) && !takes(agent, signal) && since.elapsed() < STARTING {
        thread::sleep(Duration::from_millis(1));
    }
    // The agent may have ended just now; its SIGCHLD is then on its way.
    let _ = kill(agent, signal);
}

/// True if a process blocks or catches a signal (proc_pid_status(5)), or has ended.
fn takes(process: Pid, signal: Signal) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{process}/status")) else { return true };
    let bit = 1u64 << (signal as i32 - 1);
    status.lines().filter_map(|line| line.split_once(":\t")).any(|(key, value)| match key {
        "State" => value.starts_with('Z'),
        "SigBlk" | "SigCgt" => u64::from_str_radix(value, 16).is_ok_and(|mask| mask & bit != 0),
        _ => false,
    })
}

/// Reaps every child that has ended; returns the agent's result if it is among them.
fn reap(agent: Pid) -> Option<Ended> {
    let mut ended = None;
    loop {
        // Not by nix: it has no name for a real-time signal, and then does not return the process
        // that was reaped.
        match waitpid(None, WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == agent.as_raw() => {
                let signal = status.terminating_signal();
                let code = status.exit_status().or(signal.map(|signal| 128 + signal));
                let code = code.and_then(|code| u8::try_from(code).ok());
                ended = code.map(|code| Ended { code, signal });
            }
            Ok(None) | Err(Errno::CHILD) => return ended,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::error!("waiting for children: {errno}");
                return ended;
            }
        }
    }
}
