//! Scenarios, each in a folder with the script that acts in the guest, and the judge of its reports beside it.

pub(crate) mod scenario;

use crate::cell::Cell;
use crate::host::error::Error;
use crate::scenarios::scenario::{Row, Scenario};

/// Declares the modules of scenarios, the type and the [`Row`] of each, and [`SCENARIOS`]. A scenario's name is that of
/// its module, with `-` for `_`.
macro_rules! scenarios {
    ($($module:ident::$scenario:ident {
        $(script: $script:literal)? $(, is_on_demand: $is_on_demand:literal)?
    }),+ $(,)?) => {
        $(
            mod $module;

            #[derive(Debug)]
            struct $scenario;

            impl Row for $scenario {
                fn name(&self) -> String {
                    stringify!($module).replace('_', "-")
                }

                $(fn script(&self) -> Option<&'static str> {
                    Some(include_str!(concat!(stringify!($module), "/", $script)))
                })?

                $(fn is_on_demand(&self) -> bool {
                    $is_on_demand
                })?
            }
        )+

        /// All scenarios.
        pub const SCENARIOS: &[&dyn Scenario] = &[$(&$scenario),+];
    };
}

scenarios! {
    attacked::Attacked { script: "script.sh", is_on_demand: true },
    bad_input::BadInput { script: "script.sh", is_on_demand: true },
    build::Build {},
    cluster::Cluster { script: "script.sh", is_on_demand: true },
    cluster_upgrade::ClusterUpgrade { script: "script.sh", is_on_demand: true },
    dead_disk::DeadDisk { script: "script.sh", is_on_demand: true },
    deployed::Deployed { script: "script.sh", is_on_demand: true },
    hot_plug::HotPlug { script: "script.sh", is_on_demand: true },
    ima::Ima { script: "script.sh", is_on_demand: true },
    in_use::InUse { script: "script.sh" },
    interrupted::Interrupted { script: "script.sh" },
    killed::Killed { script: "script.sh", is_on_demand: true },
    modules_only::ModulesOnly { script: "script.sh", is_on_demand: true },
    next_kernel::NextKernel { script: "script.sh", is_on_demand: true },
    nouveau::Nouveau { script: "script.sh", is_on_demand: true },
    operator::Operator { script: "script.sh", is_on_demand: true },
    operator_pod::OperatorPod { script: "script.sh", is_on_demand: true },
    peermem::Peermem { script: "script.sh", is_on_demand: true },
    power_cut::PowerCut { script: "script.sh", is_on_demand: true },
    refused::Refused { script: "script.sh" },
    restored::Restored { script: "script.sh" },
    round_trip::RoundTrip { script: "script.sh" },
    upgrade::Upgrade { script: "script.sh" },
    warns::Warns { script: "script.sh" },
}

/// Returns the scenario of that name.
pub fn named(name: &str) -> Option<&'static dyn Scenario> {
    SCENARIOS.iter().copied().find(|scenario| scenario.name() == name)
}

/// Returns a cell's scenario.
///
/// # Errors
/// There is none of that name.
pub fn scenario_of(cell: &Cell) -> Result<&'static dyn Scenario, Error> {
    let unknown = || Error::Matrix(format!("{}: no scenario `{}`", cell.name, cell.scenario));
    named(&cell.scenario).ok_or_else(unknown)
}

#[cfg(test)]
mod tests;
