//! The wishes of the controller for one node, which a task makes come true.

use std::sync::Arc;
#[cfg(test)]
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::EvictEvent;
use super::decision::{Change, EvictPace, Wish};
use super::keeper::{Ends, Keeper, Settled};
use super::rate::Rate;
use crate::client::Cluster;
use crate::wishes::{Numbered, wish_for};

/// A node, and the pod of the program that acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the node.
    pub node: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod, which is never evicted.
    pub pod: String,
}

/// Cordon of a node and evictions from it, for changes of its driver.
#[derive(Debug)]
pub(crate) struct Drain {
    wish: watch::Sender<Numbered<Wish>>,
    /// The last wish for nothing that was settled.
    settled: watch::Receiver<Settled>,
    task: JoinHandle<()>,
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drain {
    /// Begins with no wish; makes no call before the first one, or before the time limit of evictions.
    /// `tell` is called with each event. It needs a tokio runtime.
    pub(crate) fn begin(
        cluster: Arc<Cluster>,
        place: Place,
        pace: EvictPace,
        rate: Arc<Rate>,
        tell: impl Fn(&EvictEvent) + Send + Sync + 'static,
    ) -> Self {
        let (wish, wishes) = watch::channel((0, Wish::Unknown));
        let (done, settled) = watch::channel((0, true));
        let ends = Ends { wishes, done };
        let keeper = Keeper::new(cluster, place, pace, rate, ends, Box::new(tell));
        Self { wish, settled, task: tokio::spawn(keeper.run()) }
    }

    /// Wishes for a drain. The same change with other users goes on; one with another id begins anew, with the whole
    /// time limit.
    pub(crate) fn want(&self, change: Change) {
        wish_for(&self.wish, Wish::Change(change));
    }

    /// Wishes for none: a cordon of longshore's is undone, be it one that an earlier controller left.
    pub(crate) fn want_none(&self) {
        wish_for(&self.wish, Wish::Nothing);
    }

    /// Waits until the last wish for none has come true.
    pub(crate) async fn is_undone(&self) {
        let number = self.wish.borrow().0;
        let mut settled = self.settled.clone();
        // The task ends with this handle alone.
        let _ = settled.wait_for(|(done, undone)| *done >= number && *undone).await;
    }

    /// Waits until no cordon of longshore's is left, `limit` at most; false if one may be left, also
    /// because the cluster refuses to undo it.
    #[cfg(test)]
    pub(super) async fn withdrawn(&self, limit: Duration) -> bool {
        self.want_none();
        let number = self.wish.borrow().0;
        let mut settled = self.settled.clone();
        let done = settled.wait_for(|(done, _)| *done >= number);
        matches!(tokio::time::timeout(limit, done).await, Ok(Ok(settled)) if settled.1)
    }
}
