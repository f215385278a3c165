//! The kernel of the next boot in a plan.

use serde::Serialize;

use super::values::{Choice, Inputs};
use crate::config::NextKernelMode;
use crate::next_kernel;
use longshore_core::kernel_id::KernelId;
use longshore_modules::artifact::SetQuery;

/// Newer kernel that is installed on the host and not booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedKernel {
    /// Its release.
    pub release: String,
    /// True if the store has a set of the chosen driver for it, signed where that is required.
    pub stored: bool,
    /// True if its modules are fetched or compiled once the driver is ready.
    pub prepares: bool,
}

/// Returns the newer kernel of the host; None without one, and where none is looked for.
pub(super) fn planned(inputs: Inputs<'_>, choice: &Choice) -> Option<PlannedKernel> {
    let Inputs { config, facts, catalog } = inputs;
    let mode = config.next_kernel();
    if mode == NextKernelMode::Off {
        return None;
    }
    let release = next_kernel::next(&facts.kernel.release, &facts.installed_kernels)?;
    let query = SetQuery {
        kernel: KernelId { release, version: None, arch: &facts.kernel.arch },
        driver_version: &choice.version,
        flavour: Some(choice.flavour),
    };
    let stored = catalog.sets.iter().filter(|available| available.place.is_store());
    let mut sets = stored.map(|available| &available.set);
    let stored = sets.any(|set| query.matches_with(set, &config.driver.extra_modules));
    let prepares = mode == NextKernelMode::Prepare && !stored;
    Some(PlannedKernel { release: release.to_owned(), stored, prepares })
}
