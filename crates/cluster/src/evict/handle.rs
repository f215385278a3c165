//! The wishes of an agent for its node, which a task makes come true.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::EvictEvent;
use super::decision::{Change, EvictPace, Wish};
use super::keeper::{Ends, Keeper, Numbered, Settled};
use crate::client::Cluster;
use crate::error::{Error, Kind};
use crate::text::{in_line, is_name};

/// Length at which the reason of a cordon is cut.
const LONGEST_REASON: usize = 200;

/// The own pod, and its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the node.
    pub node: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod, which is never evicted.
    pub pod: String,
}

/// Cordon of the own node and evictions from it, for changes of its driver.
#[derive(Debug)]
pub struct Evictions {
    wish: watch::Sender<Numbered>,
    /// The last wish for nothing that was settled.
    settled: watch::Receiver<Settled>,
    /// Rounds of evictions follow.
    active: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Evictions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Evictions {
    /// Begins with no wish; makes no call before the first one, or before the time limit of evictions.
    /// `tell` is called with each event. It needs a tokio runtime.
    ///
    /// # Errors
    /// A name that is none.
    pub fn begin(
        cluster: Cluster,
        place: Place,
        pace: EvictPace,
        tell: impl Fn(&EvictEvent) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        for name in [&place.node, &place.namespace, &place.pod] {
            if !is_name(name) {
                let why = format!("`{name}` is no name of a node, namespace or pod");
                return Err(Error::new("draining the own node", Kind::Name, why));
            }
        }
        let (wish, wishes) = watch::channel((0, Wish::Unknown));
        let (done, settled) = watch::channel((0, true));
        let active = Arc::new(AtomicBool::new(false));
        let ends = Ends { wishes, done, active: Arc::clone(&active) };
        let keeper = Keeper::new(cluster, place, pace, ends, Box::new(tell));
        Ok(Self { wish, settled, active, task: tokio::spawn(keeper.run()) })
    }

    /// Wishes for a drain, because a change waits for users in pods with these uids. The same change with
    /// other users goes on; another `reason` begins anew, with the whole time limit.
    pub fn want(&self, reason: &str, pods: impl IntoIterator<Item = String>) {
        let reason = in_line(reason, LONGEST_REASON);
        self.wish_for(Wish::Change(Change { reason, pods: pods.into_iter().collect() }));
    }

    /// Wishes for none: a cordon of longshore's is undone, be it one that an earlier agent left.
    pub fn want_none(&self) {
        self.wish_for(Wish::Nothing);
    }

    /// Waits until no cordon of longshore's is left, `limit` at most; false if one may be left, also
    /// because the cluster refuses to undo it.
    pub async fn withdrawn(&self, limit: Duration) -> bool {
        self.want_none();
        let number = self.wish.borrow().0;
        let mut settled = self.settled.clone();
        let done = settled.wait_for(|(done, _)| *done >= number);
        matches!(timeout(limit, done).await, Ok(Ok(settled)) if settled.1)
    }

    /// True while pods are evicted: users may be gone for a moment alone.
    pub fn are_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// True if anything was wished for.
    pub fn are_begun(&self) -> bool {
        self.wish.borrow().0 > 0
    }

    fn wish_for(&self, next: Wish) {
        self.wish.send_if_modified(|(number, wish)| {
            let differs = *wish != next;
            if differs {
                (*number, *wish) = (*number + 1, next);
            }
            differs
        });
    }
}
