//! Signals of the agent: TERM and INT stop it, at any time and once; HUP makes it read its
//! configuration again.
//!
//! At any time: also before there is a handler. They are blocked from the first line of `main` on,
//! and unblocked once their handlers are set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::signal_name;
use signal_hook_tokio::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// The signals that are blocked.
pub(super) const HELD: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Blocks TERM, INT and HUP until [`release`]. To be called before any thread is started.
///
/// Without a handler they would kill this process as if something had failed, and process 1 would
/// never receive them: the kernel drops them for it unless they are blocked (kernel/signal.c,
/// sig_task_ignored and sig_ignored). Threads and programs started meanwhile inherit the mask: the
/// starter of a program that has to receive them unblocks them there.
pub fn hold() {
    // Fails only for a set or a verb that does not exist.
    let _ = HELD.iter().copied().collect::<SigSet>().thread_block();
}

/// Unblocks the signals of [`hold`] for this thread.
pub fn release() {
    let _ = HELD.iter().copied().collect::<SigSet>().thread_unblock();
}

/// True if this process was started with the signal ignored, as nohup(1) does with HUP.
pub fn is_ignored(signal: i32) -> bool {
    // Without /proc the signal counts as one that ends the process, as by default.
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| has_ignored(&status, signal))
}

/// Reads the mask of a process's status (proc(5), SigIgn): bit N - 1 is signal N.
fn has_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1)
        .ok()
        .and_then(|bit| mask.checked_shr(bit))
        .is_some_and(|mask| mask & 1 == 1)
}

/// Request to read the configuration again, or its support table alone. It is kept until it is handled; two requests
/// before that are one.
#[derive(Debug, Clone, Default)]
pub struct Renewal(Arc<Requested>);

#[derive(Debug, Default)]
struct Requested {
    notify: Notify,
    /// Of the whole configuration.
    whole: AtomicBool,
}

impl Renewal {
    /// Requests the whole configuration.
    pub fn ask(&self) {
        self.0.whole.store(true, Ordering::SeqCst);
        self.0.notify.notify_one();
    }

    /// Requests the support table alone.
    pub fn ask_for_table(&self) {
        self.0.notify.notify_one();
    }

    /// Waits for the request.
    pub async fn asked(&self) {
        self.0.notify.notified().await;
    }

    /// Takes the requests so far; true if one was of the whole configuration.
    pub fn take_whole(&self) -> bool {
        self.0.whole.swap(false, Ordering::SeqCst)
    }
}

/// Signal handling, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Watch {
    /// Sets `stop` on the first TERM or INT; a further one changes nothing. Requests `renewal` on
    /// HUP.
    ///
    /// # Errors
    /// 70 if no handler can be set.
    pub(super) fn begin(stop: CancelFlag, renewal: Renewal) -> Result<Self, Failure> {
        let mut signals = signal_hook_tokio::Signals::new([SIGTERM, SIGINT, SIGHUP])
            .or_fail(FailureKind::Bug, || "setting signal handlers")?;
        release();
        let handle = signals.handle();
        let task = tokio::spawn(async move {
            while let Some(signal) = signals.next().await {
                let name = signal_name(signal).unwrap_or("a signal");
                match signal {
                    SIGHUP => {
                        tracing::info!("{name}: reading the configuration again");
                        renewal.ask();
                    }
                    _ if stop.set() => tracing::info!("{name}: stopping"),
                    _ => tracing::info!("{name}: stopping already"),
                }
            }
        });
        Ok(Self { handle, task })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::hup("Name:\tx\nSigIgn:\t0000000000000001\n", SIGHUP, true)]
    #[case::another("SigIgn:\t0000000000001000\n", SIGHUP, false)]
    #[case::term("SigIgn:\t0000000000004001\n", SIGTERM, true)]
    #[case::none("SigIgn:\t0000000000000000\n", SIGTERM, false)]
    #[case::no_line("", SIGHUP, false)]
    #[case::no_signal("SigIgn:\tffffffffffffffff\n", 0, false)]
    fn ignored(#[case] status: &str, #[case] signal: i32, #[case] wanted: bool) {
        assert_eq!(has_ignored(status, signal), wanted);
    }
}
