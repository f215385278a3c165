//! Reports of `longshore builder`.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Telemetry;

/// Numbers of sets that a builder is asked for, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuilderSets {
    /// Those that are in the registry.
    pub served: u64,
    /// Those that were not looked after yet.
    pub waiting: u64,
    /// Those whose last try failed.
    pub failing: u64,
}

/// State of a builder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuilderStatus {
    /// The sets.
    pub sets: BuilderSets,
    /// Kernels that are asked for beyond those that are built for.
    pub left_out: u64,
    /// Sets that were compiled and pushed.
    pub pushed: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Driver, flavour and kernel that are compiled now, and the seconds so far.
    pub building: Option<(String, f64)>,
}

/// State behind it.
#[derive(Debug, Default)]
pub(super) struct Builder {
    status: BuilderStatus,
    building: Option<(String, Instant)>,
    /// Reason that it is not ready.
    not_ready: Option<String>,
}

impl Builder {
    pub(super) fn status(&self) -> BuilderStatus {
        let building = self.building.as_ref();
        let building = building.map(|(what, since)| (what.clone(), since.elapsed().as_secs_f64()));
        BuilderStatus { building, ..self.status.clone() }
    }

    pub(super) fn not_ready(&self) -> Vec<String> {
        self.not_ready.iter().cloned().collect()
    }
}

impl Telemetry {
    /// Records that this process is a builder, and the reason that it does not serve yet, or any more.
    pub fn builder_not_ready(&self, why: Option<String>) {
        self.change(|state| state.builder.get_or_insert_default().not_ready = why);
    }

    /// Records what a builder is asked for.
    pub fn builder_asked(&self, sets: BuilderSets, left_out: usize) {
        self.change(|state| {
            let status = &mut state.builder.get_or_insert_default().status;
            (status.sets, status.left_out) = (sets, left_out as u64);
        });
    }

    /// Records the set that a builder compiles now; None at its end.
    pub fn builder_builds(&self, what: Option<String>) {
        let building = what.map(|what| (what, Instant::now()));
        self.change(|state| state.builder.get_or_insert_default().building = building);
    }

    /// Counts a set that a builder pushed, or a try that failed.
    pub fn builder_tried(&self, pushed: bool) {
        self.change(|state| {
            let status = &mut state.builder.get_or_insert_default().status;
            status.pushed += u64::from(pushed);
            status.failed += u64::from(!pushed);
        });
    }
}
