//! Wait for modules that no registry has yet.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Telemetry;

/// Modules that an agent waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display(
    "modules of driver {driver} ({flavour}) for kernel {kernel} in {}",
    registries.join(", ")
)]
pub struct Awaited {
    /// Driver version, branch or `newest`.
    pub driver: String,
    /// Flavour.
    pub flavour: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Registries that are asked.
    pub registries: Vec<String>,
    /// Start of the wait.
    pub since: Timestamp,
}

impl Telemetry {
    /// Records the modules that the agent waits for; None at the end of the wait.
    pub fn awaits(&self, awaited: Option<Awaited>) {
        if self.state().reported.awaited != awaited {
            self.change(|state| state.reported.awaited = awaited);
        }
    }
}
