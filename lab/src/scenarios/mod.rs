//! Scenarios, each in a folder with the script that acts in the guest, and the judge of its reports beside it.

pub(crate) mod scenario;

use crate::cell::Cell;
use crate::host::error::Error;
use crate::scenarios::scenario::Scenario;

/// Declares the modules of scenarios, and [`SCENARIOS`].
macro_rules! scenarios {
    ($($module:ident::$scenario:ident),+ $(,)?) => {
        $(mod $module;)+

        /// All scenarios.
        pub const SCENARIOS: &[&dyn Scenario] = &[$(&$module::$scenario),+];
    };
}

scenarios! {
    attacked::Attacked,
    bad_input::BadInput,
    build::Build,
    cluster::Cluster,
    cluster_upgrade::ClusterUpgrade,
    dead_disk::DeadDisk,
    deployed::Deployed,
    hot_plug::HotPlug,
    ima::Ima,
    in_use::InUse,
    interrupted::Interrupted,
    killed::Killed,
    next_kernel::NextKernel,
    nouveau::Nouveau,
    operator::Operator,
    operator_pod::OperatorPod,
    peermem::Peermem,
    power_cut::PowerCut,
    refused::Refused,
    restored::Restored,
    round_trip::RoundTrip,
    upgrade::Upgrade,
    warns::Warns,
}

/// Returns the scenario of that name.
pub fn named(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().copied().find(|scenario| scenario.name() == name)
}

/// Returns a cell's scenario.
///
/// # Errors
/// There is none of that name.
pub fn of(cell: &Cell) -> Result<&'static dyn Scenario, Error> {
    let unknown = || Error::Matrix(format!("{}: no scenario `{}`", cell.name, cell.scenario));
    named(&cell.scenario).ok_or_else(unknown)
}

#[cfg(test)]
mod tests;
