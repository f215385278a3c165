//! What a run of the agent needs of the rest of the program.

use std::future::Future;

use crate::catalog::Catalog;
use crate::config::Config;
use crate::failure::Failure;
use crate::host::HostFacts;
use crate::journal::PlanSummary;
use crate::plan::Plan;
use crate::step::Step;

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
    /// The driver of `plan` is installed by `steps`. What follows from that is no longer worth a
    /// failure; it may be cancelled.
    fn installed(&self, _plan: &PlanSummary, _steps: &[Step]) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Where configurations come from, and what reads and acquires for one.
pub trait Configurations: Send + Sync {
    /// Reads the configuration again: the file as it is now, with the flags and the environment
    /// that this process was started with.
    ///
    /// # Errors
    /// 2 where it is wrong.
    fn read(&self) -> Result<Config, Failure>;
    /// What provides for a configuration. It may come to know whole archives, so it is dropped as
    /// soon as the driver is Ready.
    fn provider<'a>(&self, config: &'a Config) -> impl Provider + 'a;
}
