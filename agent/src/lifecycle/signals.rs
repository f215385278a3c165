//! TERM and INT stop the agent, at any time and once; HUP is noted.

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::signal_name;
use signal_hook_tokio::Handle;
use tokio::task::JoinHandle;

use crate::engine::CancelFlag;
use crate::failure::{ExitCode, Failure, OrFail};

/// Signals are taken until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Watch {
    /// Sets `stop` on the first TERM or INT; a further one changes nothing.
    ///
    /// # Errors
    /// 70 where no handler can be set.
    pub(super) fn begin(stop: CancelFlag) -> Result<Self, Failure> {
        let mut signals = signal_hook_tokio::Signals::new([SIGTERM, SIGINT, SIGHUP])
            .or_fail(ExitCode::Bug, || "setting signal handlers")?;
        let handle = signals.handle();
        let task = tokio::spawn(async move {
            while let Some(signal) = signals.next().await {
                let name = signal_name(signal).unwrap_or("a signal");
                match signal {
                    SIGHUP => tracing::info!("{name}: the configuration is read at start only"),
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
