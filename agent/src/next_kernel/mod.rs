//! Modules for the kernel of the next boot: a newer kernel that is installed on the host is noticed while the
//! driver is Ready, and everything for it is fetched or compiled into the store before the reboot.
//!
//! [`NextKernel`] is a task of its own beside the agent run: nothing waits for it but the agent's end, for the
//! few seconds that its child process takes to end. Its source is a [`Kernels`]; it reports to telemetry.

mod fetch;
mod host;
#[cfg(test)]
pub(crate) mod in_memory;
mod permission;
mod release;
mod task;

use std::future::Future;

use tokio::task::JoinHandle;

use crate::config::Config;
use crate::telemetry::{Telemetry, Unprepared};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::Failure;

pub use fetch::FetchCommand;
pub use host::of_host;
pub use permission::Permission;
pub use release::next;
pub use task::Times;

/// Kernel of the next boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRelease {
    /// Its release.
    pub release: String,
    /// True if it is the running kernel.
    pub is_running: bool,
}

/// Kernels of the host, and their modules in the store.
pub trait Kernels: Send + Sync + 'static {
    /// Finds the kernel of the next boot; None where the host shows no kernels.
    ///
    /// # Errors
    /// The reason that the host could not be read.
    fn next(
        &self,
        config: &Config,
    ) -> impl Future<Output = Result<Option<NextRelease>, Failure>> + Send;

    /// True if the store has everything that a start of the agent needs with the kernel `release`.
    ///
    /// # Errors
    /// The reason that the host or the store could not be read.
    fn has_modules(
        &self,
        config: &Config,
        release: &str,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Fetches or compiles that into the store. It returns soon once `stop` is set, with any result.
    ///
    /// # Errors
    /// The reason that it failed.
    fn prepare(
        &self,
        config: &Config,
        release: &str,
        stop: &CancelFlag,
    ) -> impl Future<Output = Result<(), Unprepared>> + Send;
}

/// Receiver of a failed preparation, for an event: it is told the release and the cause, once for each
/// release until a preparation of it succeeds.
pub type TellFailure = Box<dyn Fn(&str, &Unprepared) + Send + Sync>;

/// Look-out for the kernel of the next boot.
#[derive(Debug)]
pub struct NextKernel {
    stop: CancelFlag,
    task: JoinHandle<()>,
}

impl NextKernel {
    /// Begins to look; nothing is done before `permission` is given.
    pub fn begin(
        kernels: impl Kernels,
        permission: &Permission,
        telemetry: &Telemetry,
        tell: TellFailure,
        times: Times,
    ) -> Self {
        let stop = CancelFlag::default();
        let task = task::Task::new(kernels, permission, telemetry, tell, times);
        Self { task: tokio::spawn(task.run(stop.clone())), stop }
    }

    /// Ends a preparation, and waits until its process has ended.
    pub async fn end(self) {
        self.stop.set();
        if let Err(error) = self.task.await {
            tracing::warn!("the look-out for the next kernel ended early: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
