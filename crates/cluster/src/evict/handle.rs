//! The desired drain of one node, for the controller.

use std::sync::Arc;
#[cfg(test)]
use std::time::Duration;

use super::EvictEvent;
use super::decision::{Change, EvictPace};
use super::rate::Rate;
use super::reconciler::DrainReconciler;
use crate::client::Cluster;
use crate::pods::Place;
use crate::reconcile::{Desired, Handle};

/// Cordon of a node and evictions from it, for changes of its driver.
#[derive(Debug)]
pub(crate) struct Drain(Handle<Desired<Change>>);

impl Drain {
    /// Begins without a desired drain; makes no call before the first one, or before the time limit of evictions.
    /// `report` is called with each event. It needs a tokio runtime.
    pub(crate) fn begin(
        cluster: Arc<Cluster>,
        place: Place,
        pace: EvictPace,
        rate: Arc<Rate>,
        report: impl Fn(&EvictEvent) + Send + Sync + 'static,
    ) -> Self {
        let reconciler = DrainReconciler::new(cluster, place, pace, rate, Box::new(report));
        Self(Handle::begin(Desired::Unknown, |_| reconciler))
    }

    /// Desires a drain. The same change with other users goes on; one with another id begins anew, with the whole
    /// time limit.
    pub(crate) fn want(&self, change: Change) {
        self.0.want(change);
    }

    /// Desires none: a cordon of longshore's is undone, be it one that an earlier controller left.
    pub(crate) fn withdraw(&self) {
        self.0.withdraw();
    }

    /// Waits until the withdrawn drain is undone.
    pub(crate) async fn is_undone(&self) {
        self.0.settles(true).await;
    }

    /// Waits until no cordon of longshore's is left, `limit` at most; false if one may be left, also
    /// because the cluster refuses to undo it.
    #[cfg(test)]
    pub(super) async fn withdrawn(&self, limit: Duration) -> bool {
        self.0.withdrawn(limit).await
    }
}
