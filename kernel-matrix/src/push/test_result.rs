//! Test result of a set, as a predicate of in-toto's type of that name: the cells whose guests passed with the set.
//!
//! Its fields are those of github.com/in-toto/attestation, spec/predicates/test-result.md (v0.1).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::results::{CellResult, Digest, Line, Run, Verdict};

/// Name of the lock file in the configuration.
const LOCK: &str = "matrix.lock";
/// Name of the agent's image in the configuration.
const IMAGE: &str = "longshore-image";

/// Cells that booted a set and passed, with the configuration of their runs; without cells where the set was compiled
/// alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TestResult {
    cells: BTreeSet<Line>,
    configuration: Vec<Value>,
}

impl TestResult {
    /// Adds a cell of this run, unless it did not boot in it: the configuration of a reused result is another run's.
    pub(super) fn add(&mut self, run: &Run, cell: &CellResult) {
        let has_booted = matches!(cell.verdict, Verdict::Works {} | Verdict::WorksPatched { .. });
        if !has_booted || cell.reused_from.is_some() {
            return;
        }
        self.cells.insert(cell.name.clone());
        for used in configuration(run) {
            if !self.configuration.contains(&used) {
                self.configuration.push(used);
            }
        }
    }

    /// True if no cell booted the set.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns the predicate.
    pub(super) fn predicate(&self) -> Value {
        json!({
            "result": "PASSED",
            "configuration": self.configuration,
            "passedTests": self.cells,
            "warnedTests": [],
            "failedTests": [],
        })
    }
}

/// Returns resource descriptors (spec/v1/resource_descriptor.md) of the inputs of a run.
fn configuration(run: &Run) -> Vec<Value> {
    let describe = |(name, digest): (&str, Option<&Digest>)| {
        let annotations = json!({
            "run": run.id, "longshore": run.agent.version, "commit": run.agent.commit,
        });
        Some(json!({
            "name": name, "digest": { "sha256": digest? }, "annotations": annotations,
        }))
    };
    let inputs = [(LOCK, run.lock.as_ref()), (IMAGE, run.agent.image.as_ref())];
    inputs.into_iter().filter_map(describe).collect()
}
