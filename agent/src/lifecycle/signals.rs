//! Signals of the agent: TERM and INT stop it, at any time and once; HUP makes it read its
//! configuration again.
//!
//! At any time: also before there is a handler. They are blocked from the first line of `main` on,
//! and unblocked once their handlers are set.

use std::sync::Arc;

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

/// Request to read the configuration again. It is kept until it is handled; two requests before
/// that are one.
#[derive(Debug, Clone, Default)]
pub struct Renewal(Arc<Notify>);

impl Renewal {
    /// Makes the request.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// Waits for the request.
    pub async fn asked(&self) {
        self.0.notified().await;
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
