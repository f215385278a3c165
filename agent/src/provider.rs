//! Interface of the agent run to the code that reads the host, plans and acquires.

use std::future::Future;

use crate::catalog::Catalog;
use crate::cluster::VersionUnknown;
use crate::config::Config;
use crate::journal::PlanSummary;
use crate::plan::Plan;
use crate::steps::Step;
use crate::telemetry::Awaited;
use longshore_core::failure::Failure;
use longshore_host::HostFacts;

/// Facts and catalog that were read together: the inputs of a plan.
#[derive(Debug)]
pub struct Gathered {
    /// The host.
    pub facts: HostFacts,
    /// Everything available for it.
    pub catalog: Catalog,
    /// Plan of exactly these facts and this catalog, where it was needed to know which sources to
    /// query.
    pub plan: Option<Plan>,
}

/// Source of facts, plans and acquired files for an agent run: everything left of the engine, which
/// only reads the host and writes the store.
pub trait Provider: Send + Sync {
    /// Reads the host, and the available files.
    fn gather(&self) -> impl Future<Output = Result<Gathered, Failure>> + Send;
    /// Makes the plan, without side effects.
    ///
    /// # Errors
    /// The reason that no plan is possible, with its exit code.
    fn plan(&self, of: &Gathered) -> Result<Plan, Failure>;
    /// Acquires the items of `plan.acquire` into the store. Dropping the future cancels it:
    /// processes it started must end with it (`kill_on_drop`).
    fn acquire(&self, plan: &Plan) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Returns the modules that the refused `plan` lacks, where the configuration waits for a registry to get them.
    fn awaits(&self, _plan: &Plan) -> Option<Awaited> {
        None
    }
    /// Returns the sets that registries offer now for the host's kernel, in any spelling that names each of them.
    fn offered(&self) -> impl Future<Output = Vec<String>> + Send {
        async { Vec::new() }
    }
    /// Follows up on the driver of `plan`, which `steps` installed. Its errors fail nothing any
    /// more; it may be cancelled.
    fn installed(&self, _plan: &PlanSummary, _steps: &[Step]) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Source of configurations, and of their providers.
pub trait Configurations: Send + Sync {
    /// Reads the configuration again: the file as it is now, with the flags and the environment
    /// that this process was started with.
    ///
    /// # Errors
    /// 2 where it is wrong, and those of the support table that it names.
    fn read(&self) -> impl Future<Output = Result<Config, Failure>> + Send;
    /// Returns the running configuration with the support table that its place has now.
    ///
    /// # Errors
    /// Those of that table.
    fn with_table(&self, running: &Config) -> impl Future<Output = Result<Config, Failure>> + Send {
        std::future::ready(Ok(running.clone()))
    }
    /// Notes the configuration that the agent follows from now on.
    fn follows(&self, _running: &Config) {}
    /// Waits until the place of the support table has another one than the followed configuration.
    fn table_changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
    /// Returns the driver version in the tag of the own pod's image, for this configuration, which names
    /// none; None outside of a cluster.
    fn image_version(
        &self,
        config: &Config,
    ) -> impl Future<Output = Result<Option<String>, VersionUnknown>> + Send;
    /// Keeps that version for the configurations that are read from now on.
    fn keep_image_version(&self, version: Option<String>);
    /// Returns the provider of a configuration. It may keep the indexes of whole archives, so it is
    /// dropped as soon as the driver is Ready.
    fn provider<'a>(&self, config: &'a Config) -> impl Provider + 'a;
}
