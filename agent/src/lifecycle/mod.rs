//! From Probing to Ready and, on SIGTERM, to Removed.

pub mod phase;
pub mod status;

use std::future::Future;

pub use phase::Phase;
pub use status::{StatusReport, status};

use crate::catalog::Catalog;
use crate::config::Config;
use crate::failure::{ExitCode, Failure};
use crate::host::HostFacts;
use crate::plan::Plan;

/// What a life asks of the rest of the agent: everything left of the engine, which only reads the
/// host and writes the store.
pub trait Provider: Send + Sync {
    /// Reads the host, and what is at hand.
    fn gather(&self) -> impl Future<Output = Result<(HostFacts, Catalog), Failure>> + Send;
    /// Decides: pure.
    ///
    /// # Errors
    /// Whatever makes a plan impossible, with its exit code.
    fn plan(&self, facts: &HostFacts, catalog: &Catalog) -> Result<Plan, Failure>;
    /// Brings into the store what `plan.acquire` names. Dropping the future cancels it: processes
    /// it started must end with it (`kill_on_drop`).
    fn acquire(&self, plan: &Plan) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Installs the driver, stays until SIGTERM or SIGINT, and takes it off again.
///
/// # Errors
/// The failure that ended it; the host is then as it was before, or the failure (exit code 20 or
/// 21) says what is left.
pub async fn run(_config: &Config, _provider: &impl Provider) -> Result<ExitCode, Failure> {
    Err(Failure::new(ExitCode::Bug, "run is not written yet"))
}

/// Undoes what the journal of an agent that has ended says is on the host.
///
/// # Errors
/// 15 where an agent is alive, 20 where the driver is in use, 21 where something could not be
/// undone.
pub async fn unload(_config: &Config) -> Result<ExitCode, Failure> {
    Err(Failure::new(ExitCode::Bug, "unload is not written yet"))
}
