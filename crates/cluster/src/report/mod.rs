//! Report of a driver on the own node: labels, an annotation, a condition, a taint where it is wanted, and
//! events.
//!
//! [`Reporter`] keeps the node as the last [`Report`] describes it. It writes keys of its own alone, by
//! small patches, and watches nothing: a change is written at once, and all of it again with each heartbeat.

mod calls;
mod events;
mod handle;
mod labels;
mod node_status;
mod options;
mod part;
mod reason;
mod reconciler;

use crate::pods::PodRef;
use crate::text::in_line;
pub(crate) use calls::is_own_taint;
pub use events::{Event, Events, Regarding};
pub use handle::Reporter;
pub use node_status::{
    HolderStatus, LARGEST_STATUS, LastFailure, NextKernel, NodeStatus, STATUS_FORMAT, Unreadable,
};
pub use options::Options;
pub use reason::Reason;

use k8s_openapi::jiff::Timestamp;

/// State of a driver, to be reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The annotation's content. Its `holders` and `cordoned` are filled in by the reporter.
    pub status: NodeStatus,
    /// True if the driver is ready.
    pub ready: bool,
    /// Reason of the condition, and of the event about it.
    pub reason: Reason,
    /// Message of the condition: one sentence.
    pub message: String,
    /// Programs that hold the driver and prevent a change or removal of it.
    pub holders: Vec<Holder>,
}

/// A program that holds the driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its command name.
    pub program: String,
    /// Its pod, with the uid of its cgroups; None for a process of none, and where its name is not known.
    pub pod: Option<PodRef>,
    /// Time of the first inspection that found it.
    pub since: Option<Timestamp>,
}

impl Holder {
    /// Returns the note of an event about its pod.
    fn note(&self, status: &NodeStatus) -> String {
        let program = in_line(&self.program, 60);
        let live = status.live.as_deref().unwrap_or("of another version");
        let since = self.since.map(|since| format!(" (found first at {since:.0})"));
        let since = since.unwrap_or_default();
        match &status.wanted {
            Some(wanted) if status.live.as_ref() != Some(wanted) => {
                format!("{program} holds driver {live}{since}, which blocks its change to {wanted}")
            }
            _ => format!("{program} holds driver {live}{since}, which blocks its removal"),
        }
    }
}

#[cfg(test)]
mod tests;
