//! Decisions about the node's request, by the desired value, the node, and earlier writes.

use std::time::Duration;

use tokio::time::Instant;

use super::node::{Request, SafeLoadOnNode};
use crate::reconcile::Desired;

/// Pauses of requests, which bound the number of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Shortest time between two writes of a request.
    pub change: Duration,
    /// Time after which a request is made again that was granted while the driver has users still.
    pub again: Duration,
    /// Time after which a refused call is made again.
    pub refused: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            change: Duration::from_secs(60),
            again: Duration::from_secs(600),
            refused: Duration::from_secs(300),
        }
    }
}

/// State of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// None is wanted, and none of longshore's is there.
    NoRequest,
    /// The request is made after a pause.
    Postponed,
    /// The request is made; the controller has not granted it yet.
    Asked,
    /// Another program asked for the same already.
    AskedByAnother,
    /// The controller removed the request: the node is drained.
    Granted,
    /// No controller upgrades drivers here.
    NoController,
    /// The node is exempt from upgrades by its label.
    NodeSkipped,
    /// An upgrade of this node failed before, so the controller waits for a person.
    UpgradeFailed,
    /// The cluster refuses a call, or has no such node.
    Refused,
    /// The API server does not answer as it should.
    Unreachable,
}

/// Earlier states and writes that a decision depends on.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// A request of longshore's was there when the node was last seen.
    asked: bool,
    pub(super) granted: Option<Instant>,
    written: Option<Instant>,
    pub(super) reported: Option<Standing>,
}

/// Decision about a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Set(String),
    Remove,
    /// Nothing is to be written before that time, or before the node changes.
    Stay(Standing, Option<Instant>),
}

impl Past {
    /// Takes a look at the node: a request that is gone was granted.
    pub(super) fn sees(&mut self, seen: &SafeLoadOnNode, now: Instant) {
        let is_asked = matches!(seen.request, Request::Own(_));
        if self.asked && seen.request == Request::None {
            self.granted = Some(now);
        }
        self.asked = is_asked;
    }

    /// Takes the removal of the request that begins: its answer may be lost, and it is no grant.
    pub(super) fn removes(&mut self) {
        self.asked = false;
    }

    /// Takes a request of its own that was written.
    pub(super) fn wrote(&mut self, now: Instant) {
        (self.asked, self.written, self.granted) = (true, Some(now), None);
    }

    pub(super) fn decide(
        &self,
        desired: &Desired<String>,
        seen: &SafeLoadOnNode,
        pace: &Pace,
        now: Instant,
    ) -> Action {
        let is_own = matches!(seen.request, Request::Own(_));
        let value = match desired {
            Desired::Wanted(value) => value,
            _ if is_own => return Action::Remove,
            _ => return Action::Stay(Standing::NoRequest, None),
        };
        match (unheard(seen), &seen.request) {
            (Some(_), Request::Own(_)) => Action::Remove,
            (Some(standing), _) => Action::Stay(standing, None),
            (None, Request::Foreign) => Action::Stay(Standing::AskedByAnother, None),
            (None, Request::Own(asked)) if asked == value => Action::Stay(Standing::Asked, None),
            (None, Request::Own(_)) => self.set(value, Standing::Asked, pace, now),
            (None, Request::None) if self.granted.is_some() => {
                self.set(value, Standing::Granted, pace, now)
            }
            (None, Request::None) => self.set(value, Standing::Postponed, pace, now),
        }
    }

    /// Sets the value, unless that is too soon.
    fn set(&self, value: &str, standing: Standing, pace: &Pace, now: Instant) -> Action {
        let granted = self.granted.filter(|_| standing == Standing::Granted);
        let after_write = self.written.map(|at| at + pace.change);
        match granted.map(|at| at + pace.again).max(after_write).filter(|due| *due > now) {
            Some(due) => Action::Stay(standing, Some(due)),
            None => Action::Set(value.to_owned()),
        }
    }
}

/// Reason why no controller would hear a request.
fn unheard(seen: &SafeLoadOnNode) -> Option<Standing> {
    match seen {
        SafeLoadOnNode { upgrades: false, .. } => Some(Standing::NoController),
        SafeLoadOnNode { skipped: true, .. } => Some(Standing::NodeSkipped),
        SafeLoadOnNode { failed: true, .. } => Some(Standing::UpgradeFailed),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
