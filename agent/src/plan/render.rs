//! A plan as a person reads it.

use super::Plan;
use crate::host::HostFacts;

/// Host, devices, decisions with their reasons, what is acquired, steps, findings.
pub fn render(plan: &Plan, facts: &HostFacts) -> String {
    format!("{} for {}\n", plan.driver_version, facts.kernel.release)
}
