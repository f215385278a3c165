//! Evidence of a cell's run in a VM.

use std::collections::VecDeque;
use std::time::Duration;

use crate::judge::records::Records;

/// Evidence of a cell's run in a VM.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Random word that the guest was given.
    pub nonce: String,
    /// Records from the results port.
    pub records: Records,
    /// Verdict line of the console: nonce and exit code.
    pub console_verdict: Option<(String, i32)>,
    /// Console lines that report a kernel fault.
    pub trouble: Vec<String>,
    /// The last lines of the console.
    pub tail: VecDeque<String>,
    /// Phases, and the time since QEMU's start at which each was reached.
    pub reached: Vec<(String, Duration)>,
    /// True if the VM was still running at the deadline.
    pub overdue: bool,
    /// True if its power went off.
    pub power_lost: bool,
    /// Signal that ended QEMU.
    pub killed_by: Option<i32>,
}

impl Evidence {
    /// Returns the time from start to Ready, and the memory in use when Ready, as far as the guest came.
    pub fn measurements(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let at = |phase: &str| self.reached.iter().find(|(name, _)| name == phase).map(|r| r.1);
        if let (Some(start), Some(ready)) = (at("start"), at("ready")) {
            let value = format!("{:.1} s", ready.saturating_sub(start).as_secs_f64());
            found.push(("start to Ready".to_owned(), value));
        }
        for line in self.records.section("ready.guest-memory").unwrap_or_default() {
            if let Some((what, value)) = line.split_once(": ") {
                found.push((what.to_owned(), value.to_owned()));
            }
        }
        for line in self.records.section("ready.memory").unwrap_or_default() {
            if let Some((what, value)) = line.split_once(':') {
                found.push((format!("agent {what}"), value.trim().to_owned()));
            }
        }
        found
    }
}
