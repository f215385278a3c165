//! Conduct of a reporter.

use std::time::Duration;

/// Conduct of a [`Reporter`](super::Reporter).
#[derive(Debug, Clone)]
pub struct Options {
    /// Taint the node while the driver is not ready; an earlier taint is removed otherwise.
    pub taint: bool,
    /// Time after which everything is written again, and events about pods are repeated.
    pub heartbeat: Duration,
    /// Time before a refused call is made again.
    pub refused: Duration,
    /// Time before a call about a missing object (404) is made again; each further one is twice as long, up to
    /// the heartbeat.
    pub missing: Duration,
    /// Name of the reporting pod, for events.
    pub pod: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            taint: false,
            heartbeat: Duration::from_secs(5 * 60),
            refused: Duration::from_secs(60 * 60),
            missing: Duration::from_secs(5),
            pod: None,
        }
    }
}
