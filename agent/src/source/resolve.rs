//! Dependency closure.

use crate::failure::{ExitCode, Failure};

/// What was asked for cannot be had from the archive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not to be had from the archive: {}", .chain.join(" -> "))]
pub struct Unsatisfiable {
    /// The requirement that nothing satisfies.
    pub what: String,
    /// From a root to what asks for it, as `name (version)`.
    pub chain: Vec<String>,
    /// What could be done about it.
    pub remedy: String,
}

impl Unsatisfiable {
    /// The failure a command ends with; the caller knows what was being looked for.
    pub fn failure(self, code: ExitCode) -> Failure {
        Failure::new(code, self.to_string()).remedy(self.remedy)
    }
}

impl From<Unsatisfiable> for Failure {
    /// Exit code 12: in none of the sources.
    fn from(error: Unsatisfiable) -> Self {
        error.failure(ExitCode::Download)
    }
}
