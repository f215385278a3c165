//! Facts, catalog and plan for a kernel that need not run on this host.

use super::host_facts::{read_host, with_kernel};
use super::inventory::Inventory;
use crate::config::Config;
use crate::plan::{Acquire, Plan};
use crate::provider::Gathered;
use longshore_build as build;
use longshore_core::failure::Failure;
use longshore_core::finding::{self, Area, Code, Finding};
use longshore_host::HostFacts;
use longshore_modules::artifact::ModuleKey;

impl Inventory<'_> {
    /// Gathers for a kernel that need not run here.
    pub(super) async fn gather_kernel(&self, release: Option<&str>) -> Result<Gathered, Failure> {
        let release = release.map(str::to_owned);
        let read = move |config: &Config| {
            let mut facts = read_host(config)?;
            // A loaded driver is no reason not to fetch.
            facts.loaded.clear();
            Ok(match release {
                Some(release) => with_kernel(facts, &config.paths, &release),
                None => facts,
            })
        };
        let mut gathered = self.gather_for(read).await?;
        let kernel = &mut gathered.facts.kernel;
        if kernel.version.is_empty() {
            // The build of that kernel is not specified: that of the first set is used.
            let keys = gathered.catalog.sets.iter().map(|available| &available.set.key);
            let mut builds = keys
                .filter(|key| key.is_for(&kernel.any_build()))
                .filter_map(ModuleKey::kernel_build);
            kernel.version = builds.next().unwrap_or_default().to_owned();
        }
        Ok(gathered)
    }

    /// Returns the host's facts as if the kernel `release` ran on it, and the plan for that kernel, with the findings
    /// about kernel, devices, signatures and sources alone; nothing is compiled. A compile of it that failed a short
    /// while ago is a warning.
    ///
    /// # Errors
    /// As [`Inventory::decide`].
    pub async fn decide_for(&self, release: &str) -> Result<(HostFacts, Plan), Failure> {
        let gathered = self.gather_kernel(Some(release)).await?;
        let mut plan = self.plan(&gathered)?;
        gathered.catalog.warn_of_failures();
        plan.findings.retain(|finding| is_about_kernel(finding.code));
        if plan.acquire.iter().any(|item| matches!(item, Acquire::BuildSet(_))) {
            let store = self.store.open_in_time().await?;
            let failed = self.store.in_time(move || Ok(build::failed_before(&store))).await?;
            let of_kernel = failed.into_iter().filter(|text| text.contains(release));
            let findings = of_kernel.map(|why| Finding::warning(Code::CompileFailedBefore, why));
            plan.findings.extend(findings);
            finding::sort(&mut plan.findings);
        }
        plan.next_kernel = None;
        Ok((gathered.facts, plan))
    }
}

/// True for findings about a kernel that does not run, and what it would load; the others are about the host as it is.
fn is_about_kernel(code: Code) -> bool {
    let of_running = [Code::KernelUnknown, Code::ModulesDisabled, Code::DependencyMissing];
    matches!(code.entry().area, Area::Devices | Area::Kernel | Area::Signatures | Area::Sources)
        && !of_running.contains(&code)
}
