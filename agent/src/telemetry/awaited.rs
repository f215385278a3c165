//! Wait for modules that no registry has yet.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Telemetry;

/// Modules that an agent waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { driver, flavour, kernel, registries, .. } = self;
        write!(
            f,
            "modules of driver {driver} ({flavour}) for kernel {kernel} in {}",
            registries.join(", ")
        )
    }
}

impl Telemetry {
    /// Records the modules that the agent waits for; None at the end of the wait.
    pub fn awaits(&self, awaited: Option<Awaited>) {
        if self.state().awaited != awaited {
            self.change(|state| state.awaited = awaited);
        }
    }
}
