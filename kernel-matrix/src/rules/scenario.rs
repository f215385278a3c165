//! Scenarios of the rules' cells.

use serde::{Deserialize, Serialize};

/// Procedure of a cell of the rules.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, derive_more::Display,
)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum RuleScenario {
    /// The modules are compiled; nothing is booted.
    #[default]
    Compile,
    /// Start, Ready, TERM; the host as before.
    RoundTrip,
    /// TERM while a process holds the driver; then the next agent.
    InUse,
    /// Nodes and mounts are removed while the driver is Ready.
    Restored,
    /// TERM while the agent installs.
    Interrupted,
    /// The kernel panics. This and the next two check that a run explains guests that do not end.
    GuestPanic,
    /// The guest does not end.
    GuestHang,
    /// The guest's disk is filled.
    GuestFullDisk,
}

impl RuleScenario {
    /// True if its cells boot a VM.
    pub fn boots(self) -> bool {
        self != Self::Compile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_has_one_name() {
        for scenario in [
            RuleScenario::Compile,
            RuleScenario::RoundTrip,
            RuleScenario::InUse,
            RuleScenario::Restored,
            RuleScenario::Interrupted,
            RuleScenario::GuestPanic,
            RuleScenario::GuestHang,
            RuleScenario::GuestFullDisk,
        ] {
            assert_eq!(serde_json::to_value(scenario).unwrap(), scenario.to_string());
            assert_eq!(scenario.boots(), scenario != RuleScenario::Compile);
        }
    }
}
