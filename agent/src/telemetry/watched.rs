//! Reports beside the driver's own state: findings of the plan, failed sources, compiles, and the node's drain.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Telemetry;
use longshore_core::failure::Failure;
use longshore_core::finding::Finding;
use longshore_core::source_id::SourceId;

/// Number of failures of one kind of source with one exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceErrors {
    /// The kind of source.
    pub source: SourceId,
    /// Exit code of such a failure.
    pub code: u8,
    /// The number.
    pub count: u64,
}

/// Drain of the own node for this agent, by the controller of evictions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDrain {
    /// True while the node is cordoned by longshore.
    pub cordoned: bool,
    /// Evictions that the API server accepted.
    pub evicted: u64,
    /// Pods that were found not to be evictable.
    pub blocked: u64,
    /// True while no controller answers the request for evictions.
    #[serde(default)]
    pub unanswered: bool,
    /// True while another program has cordoned the node.
    #[serde(skip)]
    pub(crate) by_another: bool,
}

/// True for a whole version: a plan whose sources could not be read may have `newest`, or a branch.
pub(super) fn is_version(driver: &str) -> bool {
    driver.contains('.')
}

impl Telemetry {
    /// Records the findings of the last plan, and the patches of the set that it loads.
    pub fn planned(&self, findings: &[Finding], patches: Vec<String>) {
        let mut state = self.state();
        state.reported.plan_findings = findings.to_vec();
        state.planned_patches = patches;
    }

    /// Counts a source that failed.
    pub fn source_failed(&self, source: SourceId, failure: &Failure) {
        let key = (source, failure.code().number());
        *self.state().source_errors.entry(key).or_default() += 1;
    }

    /// Records the time that the compile of a set took.
    pub fn compiled(&self, took: Duration) {
        self.state().reported.last_compile_seconds = Some(took.as_secs_f64());
    }

    /// Changes the record of the node's drain.
    pub fn drain(&self, change: impl FnOnce(&mut NodeDrain)) {
        change(self.state().reported.node.get_or_insert_default());
    }

    /// Records the size limit of the store in bytes; None is no limit.
    pub fn store_limit(&self, bytes: Option<u64>) {
        self.state().reported.store_limit_bytes = bytes;
    }
}
