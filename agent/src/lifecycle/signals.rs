//! TERM and INT stop the agent, at any time and once; HUP makes it read its configuration again.
//!
//! At any time: also before there is anything that could take them. They are held back from the
//! first line of `main` on, and released once their handlers stand.

use std::sync::Arc;

use futures_util::StreamExt;
use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::signal_name;
use signal_hook_tokio::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::cancel::CancelFlag;
use crate::failure::{ExitCode, Failure, OrFail};

/// The signals that are held back.
pub(super) const HELD: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Holds TERM, INT and HUP back until [`release`]. To be called before any thread is started.
///
/// Without a handler they would kill this process as if something had failed, and process 1 would
/// never hear of them: the kernel keeps them from it, but for those that are blocked
/// (kernel/signal.c, sig_task_ignored and sig_ignored). Threads and programs started meanwhile
/// inherit it: whoever starts a program that has to hear of them releases them there.
pub fn hold() {
    // It fails for nothing but a set or a verb that does not exist.
    let _ = HELD.iter().copied().collect::<SigSet>().thread_block();
}

/// Lets the signals come that [`hold`] holds back: to this thread.
pub fn release() {
    let _ = HELD.iter().copied().collect::<SigSet>().thread_unblock();
}

/// A request to read the configuration again. It is kept until it is heard, and made twice in the
/// meantime it is one.
#[derive(Debug, Clone, Default)]
pub struct Renewal(Arc<Notify>);

impl Renewal {
    /// Asks for it.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// Waits until it is asked for.
    pub async fn asked(&self) {
        self.0.notified().await;
    }
}

/// Signals are taken until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Watch {
    /// Sets `stop` on the first TERM or INT, where a further one changes nothing; asks for `renewal`
    /// on HUP.
    ///
    /// # Errors
    /// 70 where no handler can be set.
    pub(super) fn begin(stop: CancelFlag, renewal: Renewal) -> Result<Self, Failure> {
        let mut signals = signal_hook_tokio::Signals::new([SIGTERM, SIGINT, SIGHUP])
            .or_fail(ExitCode::Bug, || "setting signal handlers")?;
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
