//! Task of one node: it takes a place for the node, lets its drain follow the request, and writes back what became of
//! it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::slots::Slots;
use crate::client::Cluster;
use crate::error::ApiErrorKind;
use crate::evict::annotated::DrainNode;
use crate::evict::outcome::{Cordoned, DrainState, DrainStatus};
use crate::evict::rate::Rate;
use crate::evict::reconciler::{Drain, DrainReconciler};
use crate::evict::{EvictEvent, EvictPace, EvictRequest, Hindrance};
use crate::names::EVICTIONS;
use crate::pods::ActingPod;

const WRITE: &str = "writing the state of a drain (patch nodes)";

/// Pauses of one node's changes: a node decides how often it writes its request, and never how often the API server is
/// asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePace {
    /// Shortest time between two changes of a request that are followed.
    pub request: Duration,
    /// Shortest time between two writes of the state.
    pub write: Duration,
    /// Time after which a write that failed is made again.
    pub again: Duration,
}

impl Default for NodePace {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(1),
            write: Duration::from_secs(1),
            again: Duration::from_secs(10),
        }
    }
}

/// The controller's own parts, shared by all nodes.
pub(super) struct Own {
    pub(super) cluster: Arc<Cluster>,
    /// Namespace and name of its pod.
    pub(super) pod: (String, String),
    pub(super) slots: Arc<Slots>,
    pub(super) rate: Arc<Rate>,
    pub(super) pace: EvictPace,
    pub(super) of_node: NodePace,
}

/// A node's request, and true while it has the record of a cordon of longshore's.
type Wanted = (Option<EvictRequest>, bool);

/// Handle of a node's task, which ends with it.
pub(super) struct Worker {
    requests: watch::Sender<Wanted>,
    task: JoinHandle<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Worker {
    /// Begins with a node as it was found, and its request. A node that is cordoned already has its place.
    pub(super) fn begin(own: Arc<Own>, node: &DrainNode, request: Option<EvictRequest>) -> Self {
        if node.has_record {
            own.slots.take_over(&node.name);
        }
        let (requests, receiver) = watch::channel((request, node.has_record));
        let task = Task::new(own, node, receiver);
        Self { requests, task: tokio::spawn(task.run()) }
    }

    /// Takes the node as it is now.
    pub(super) fn take(&self, request: Option<EvictRequest>, has_record: bool) {
        self.requests.send_if_modified(|before| {
            let differs = before.0 != request;
            *before = (request, has_record);
            differs
        });
    }
}

/// Time limit of the place that a node has. The request for which it was taken ends by its own limit; other requests that
/// follow in the same place do not lengthen this one.
#[derive(Debug, Clone, Copy)]
struct PlaceLimit {
    /// End for other requests than the first.
    until: Instant,
    /// End for a node that is not even cordoned.
    cordoned_by: Instant,
    /// Another request than the first was in the place, or the first was withdrawn.
    is_renewed: bool,
}

/// The task, which gives the node's place back when it ends.
struct Task {
    own: Arc<Own>,
    node: String,
    freed: watch::Receiver<()>,
    requests: watch::Receiver<Wanted>,
    drain: Drain,
    events: mpsc::UnboundedReceiver<EvictEvent>,
    /// State of the present request.
    status: Option<DrainStatus>,
    /// Text of it on the node, and the time of the next write.
    written: Option<String>,
    write_at: Instant,
    /// The node waits for a place.
    waits: bool,
    /// Time limit of its place.
    limit: Option<PlaceLimit>,
    /// The place is left to other nodes, and given back after the uncordon.
    leaves: bool,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.own.slots.release(&self.node);
    }
}

impl Task {
    fn new(own: Arc<Own>, node: &DrainNode, requests: watch::Receiver<Wanted>) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let report = move |event: &EvictEvent| {
            // A task that has ended reads nothing.
            let _ = sender.send(event.clone());
        };
        let (namespace, pod) = own.pod.clone();
        let place = ActingPod { node: node.name.clone(), namespace, pod };
        let (cluster, rate) = (Arc::clone(&own.cluster), Arc::clone(&own.rate));
        let drain = DrainReconciler::begin(cluster, place, own.pace, rate, report);
        // The work of an earlier controller for this request counts: a change that it gave up is not begun anew.
        let mut status = node.status.as_deref().and_then(DrainStatus::of_annotation);
        if let Some(status) = &mut status
            && node.has_record
        {
            status.cordoned = Cordoned::ByLongshore;
        }
        Self {
            freed: own.slots.changes(),
            node: node.name.clone(),
            requests,
            drain,
            events,
            status,
            written: node.status.clone(),
            write_at: Instant::now(),
            waits: false,
            limit: None,
            leaves: false,
            own,
        }
    }

    async fn run(mut self) {
        let mut next_request = Instant::now();
        self.follow();
        next_request += self.own.of_node.request;
        loop {
            let mut due = self.due();
            let is_due = due.is_some_and(|due| due <= Instant::now());
            if is_due && self.own.slots.is_wanted() {
                self.leave();
                due = None;
            }
            let is_written = self.text() == self.written;
            let withdraws = self.leaves || self.status.as_ref().is_none_or(DrainStatus::rests);
            let write_at = self.write_at;
            tokio::select! {
                changed = later(&mut self.requests, next_request) => {
                    if changed.is_err() {
                        return;
                    }
                    next_request = Instant::now() + self.own.of_node.request;
                    self.follow();
                }
                Some(event) = self.events.recv() => self.takes(&event),
                Ok(()) = self.freed.changed(), if self.waits || is_due => {
                    if self.waits {
                        self.follow();
                    }
                }
                _ = self.drain.settles(true), if withdraws && self.slot_is_held() => {
                    let leaves = self.leaves;
                    self.release();
                    if leaves {
                        self.follow();
                    }
                }
                () = sleep_until(due.unwrap_or(write_at)), if due.is_some() && !is_due => {}
                () = sleep_until(write_at), if !is_written => self.write().await,
            }
        }
    }

    fn slot_is_held(&self) -> bool {
        self.own.slots.is_taken(&self.node)
    }

    /// Gives the place back, or the wait for one up.
    fn release(&mut self) {
        (self.limit, self.leaves) = (None, false);
        self.own.slots.release(&self.node);
    }

    /// Returns the time from which on the place is due to nodes that wait; None where the request has its own limit.
    fn due(&self) -> Option<Instant> {
        let limit = self.limit.filter(|_| !self.leaves)?;
        let status = self.status.as_ref().filter(|status| !status.rests())?;
        if limit.is_renewed {
            return Some(limit.until);
        }
        // The request's own limit counts from the cordon.
        (status.cordoned == Cordoned::No).then_some(limit.cordoned_by)
    }

    /// Leaves the place to a node that waits: the node is uncordoned, and then waits behind that one.
    fn leave(&mut self) {
        let Some(status) = &mut self.status else { return };
        tracing::info!(
            "node {}: the time limit of its place is over, and other nodes wait: it is uncordoned, and waits behind them",
            self.node
        );
        let new = DrainStatus::new(&status.request, DrainState::Waiting);
        *status = DrainStatus { cordoned: status.cordoned, ..new };
        self.leaves = true;
        self.drain.withdraw();
    }

    /// Notes that the place has another request than the one for which it was taken.
    fn renew(&mut self) {
        if let Some(limit) = &mut self.limit {
            limit.is_renewed = true;
        }
    }

    /// Begins the time limit of a place, unless it has begun.
    fn begin_limit(&mut self, request: &EvictRequest) {
        let (now, longest) = (Instant::now(), self.own.pace.deadline);
        self.limit.get_or_insert_with(|| PlaceLimit {
            until: now + longest.min(request.change().deadline),
            cordoned_by: now + longest,
            is_renewed: false,
        });
    }

    /// Follows the present request.
    fn follow(&mut self) {
        let (request, has_record) = self.requests.borrow_and_update().clone();
        self.waits = false;
        let Some(request) = request else {
            self.renew();
            self.status = None;
            self.drain.withdraw();
            if !self.slot_is_held() {
                self.own.slots.release(&self.node);
            }
            return;
        };
        if self.status.as_ref().is_none_or(|status| status.request != request.id) {
            self.renew();
            let cordoned = self.status.take().map(|before| before.cordoned).unwrap_or_default();
            let new = DrainStatus::new(&request.id, DrainState::Waiting);
            self.status = Some(DrainStatus { cordoned, ..new });
        }
        let Some(status) = &mut self.status else { return };
        if status.rests() {
            // After a restart its cordon may be left.
            self.drain.withdraw();
            return;
        }
        if self.leaves {
            status.state = DrainState::Waiting;
            return;
        }
        if self.own.slots.try_take(&self.node) {
            status.state = DrainState::Draining;
            if has_record && status.cordoned == Cordoned::No {
                status.cordoned = Cordoned::ByLongshore;
            }
            self.drain.want(request.change());
            self.begin_limit(&request);
        } else {
            status.state = DrainState::Waiting;
            self.waits = true;
        }
    }

    /// Takes an event of the drain.
    fn takes(&mut self, event: &EvictEvent) {
        log(&self.node, event);
        let Some(status) = &mut self.status else { return };
        status.take(event);
        if status.rests() {
            self.release();
        }
    }

    /// Text of the state; none once the request is gone. A state without anything to tell leaves what is there: another
    /// controller may have told more.
    fn text(&self) -> Option<String> {
        match &self.status {
            Some(status) if status.is_blank() => self.written.clone(),
            status => status.as_ref().map(DrainStatus::to_annotation),
        }
    }

    async fn write(&mut self) {
        let text = self.text();
        let written =
            self.own.cluster.annotate_node(WRITE, &self.node, EVICTIONS, text.as_deref()).await;
        let pace = &self.own.of_node;
        match written {
            Ok(_) => {
                self.written = text;
                self.write_at = Instant::now() + pace.write;
            }
            Err(error) => {
                self.write_at = Instant::now() + pace.again;
                match error.kind {
                    ApiErrorKind::Forbidden => self.own.cluster.report_once(&error),
                    _ => tracing::debug!("node {}: {error}; it is written again", self.node),
                }
            }
        }
    }
}

/// Waits for a change, from this time on.
async fn later<T>(
    changes: &mut watch::Receiver<T>,
    from: Instant,
) -> Result<(), watch::error::RecvError> {
    sleep_until(from).await;
    changes.changed().await
}

fn log(node: &str, event: &EvictEvent) {
    match event {
        EvictEvent::Cordoned(reason) => tracing::info!("node {node}: cordoned: {reason}"),
        EvictEvent::CordonedByAnother => {
            tracing::info!("node {node}: cordoned already, not by longshore: it stays so");
        }
        EvictEvent::Evicted(pod) => {
            tracing::info!("node {node}: pod {pod}: its eviction was accepted")
        }
        EvictEvent::Blocked(pod, why) => {
            tracing::warn!("node {node}: pod {pod} is not evicted: {why}");
        }
        EvictEvent::Overruled => tracing::warn!(
            "node {node}: another program uncordoned it: no pod is evicted for this change any more"
        ),
        EvictEvent::Expired(left) => {
            let why = |(pod, why): &(crate::PodRef, Hindrance)| format!(" {pod}: {why};");
            let left: String = left.iter().map(why).collect();
            tracing::warn!(
                "node {node}: the time limit is over: no pod is evicted for this change any more{}{}",
                if left.is_empty() { "" } else { ":" },
                left.trim_end_matches(';')
            );
        }
        EvictEvent::Uncordoned => tracing::info!("node {node}: uncordoned"),
        EvictEvent::Forgotten => {
            tracing::debug!("node {node}: another program uncordoned it; the record is removed");
        }
        EvictEvent::Refused(why) => tracing::warn!("node {node}: {why} (reported once)"),
        EvictEvent::Unreachable(why) => tracing::warn!("node {node}: {why}; it is asked again"),
        EvictEvent::Waits | EvictEvent::Unanswered(_) => {}
    }
}
