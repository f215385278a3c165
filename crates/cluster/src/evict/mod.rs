//! Drain of a node for a change of its driver: the node is cordoned, and the pods that use the driver
//! are evicted, within a time limit.
//!
//! An agent requests it by an annotation of its own node ([`Evictions`]); the controller
//! ([`Evictor`](crate::Evictor)) has a [`Drain`](reconciler::Drain) for each such node, which
//! keeps the node as it is wanted, and undoes only its own cordon, which it knows by the
//! annotation [`CORDONED`](crate::names::CORDONED). Evictions go through the Eviction API, so that a
//! PodDisruptionBudget is respected.

pub(crate) mod annotated;
mod asking;
mod call;
pub(crate) mod decision;
pub(crate) mod outcome;
mod pods;
pub(crate) mod rate;
pub(crate) mod reconciler;
mod request;

use std::time::Duration;

pub use asking::{AskPace, Evictions};
pub use decision::EvictPace;
pub use outcome::{BlockedPod, Cordoned, DRAIN_FORMAT, DrainFailure, DrainState, DrainStatus};
pub use pods::Hindrance;
pub use request::{BadRequest, EvictRequest, REQUEST_FORMAT};

use crate::pods::PodRef;

/// Event of a drain, each reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictEvent {
    /// The controller drains other nodes first.
    Waits,
    /// No controller has answered the request within this time.
    Unanswered(Duration),
    /// The node was cordoned, for this reason.
    Cordoned(String),
    /// Another program has cordoned the node: it stays so.
    CordonedByAnother,
    /// A pod's eviction was accepted.
    Evicted(PodRef),
    /// A pod is not evicted; one that may be later is tried again.
    Blocked(PodRef, Hindrance),
    /// Another program uncordoned the node: no pod is evicted for this change any more.
    Overruled,
    /// The time limit is over: no pod is evicted for this change any more. These are left.
    Expired(Vec<(PodRef, Hindrance)>),
    /// The node is uncordoned again.
    Uncordoned,
    /// The annotation was removed from a node that another program uncordoned.
    Forgotten,
    /// The cluster refuses a call: its text.
    Refused(String),
    /// The API server does not answer as it should; it is asked again.
    Unreachable(String),
}

/// Receiver of events.
type ReportEvent = Box<dyn Fn(&EvictEvent) + Send + Sync>;

#[cfg(test)]
mod tests;
