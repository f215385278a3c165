//! Part of a node's agent in its drain: it writes the request on its own node, and tells the events of the state that
//! the controller writes there. It cordons, uncordons and evicts nothing itself, and lists no pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::annotated::DrainNode;
use super::outcome::{Cordoned, DrainStatus};
use super::request::{EvictRequest, reason_of};
use super::{EvictEvent, Place};
use crate::client::{Cluster, Limits, Pauses};
use crate::error::{Error, Kind};
use crate::names::EVICT_REQUEST;
use crate::text::is_name;
use crate::wishes::{Dropped, Numbered, or_wish, wish_for};

const REQUEST: &str = "writing the request for evictions (patch nodes)";

/// Pauses and limits of an agent's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskPace {
    /// Time limit of all evictions for one change, from the cordon on.
    pub deadline: Duration,
    /// Time after which a request without an answer is reported.
    pub answer: Duration,
    /// First pause between two looks at the node; each further one is twice as long.
    pub first: Duration,
    /// Longest such pause.
    pub longest: Duration,
    /// Time after which a refused call is made again.
    pub refused: Duration,
}

impl Default for AskPace {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(600),
            answer: Duration::from_secs(60),
            first: Duration::from_millis(500),
            longest: Duration::from_secs(5),
            refused: Duration::from_secs(300),
        }
    }
}

/// Wanted state.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    /// Nothing was wished for: the node is left as it is.
    Unknown,
    /// No change waits.
    Nothing,
    /// A change waits for users in these pods.
    Change { reason: String, pods: BTreeSet<String> },
}

/// Number of the last wish for nothing that was settled, and true if neither a request nor a cordon of longshore's is
/// left.
type Settled = (u64, bool);

/// Receiver of events.
type Tell = Box<dyn Fn(&EvictEvent) + Send + Sync>;

/// Requests for evictions from the own node, for changes of its driver.
#[derive(Debug)]
pub struct Evictions {
    wish: watch::Sender<Numbered<Wish>>,
    settled: watch::Receiver<Settled>,
    /// The controller evicts.
    active: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Evictions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Evictions {
    /// Begins with no wish; makes no call yet. Where none is made within the time limit of evictions, what an earlier
    /// agent requested is withdrawn. An agent that requests nothing (`asks` is false) waits for no uncordon. `tell` is
    /// called with each event. It needs a tokio runtime.
    ///
    /// # Errors
    /// A name that is none.
    pub fn begin(
        cluster: Cluster,
        place: Place,
        pace: AskPace,
        asks: bool,
        tell: impl Fn(&EvictEvent) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        for name in [&place.node, &place.namespace, &place.pod] {
            if !is_name(name) {
                let why = format!("`{name}` is no name of a node, namespace or pod");
                return Err(Error::new("requesting evictions from the own node", Kind::Name, why));
            }
        }
        let (wish, wishes) = watch::channel((0, Wish::Unknown));
        let (done, settled) = watch::channel((0, true));
        let active = Arc::new(AtomicBool::new(false));
        let asker = Asker {
            pauses: looks(&cluster, &pace),
            wished_by: Instant::now() + pace.deadline,
            cluster,
            place,
            pace,
            may_request: asks,
            wishes,
            done,
            active: Arc::clone(&active),
            tell: Box::new(tell),
            request: None,
            asked: None,
            seen: None,
            is_unanswered: false,
            is_cordoned: false,
            uncordoned_by: None,
            failure: None,
        };
        Ok(Self { wish, settled, active, task: tokio::spawn(asker.run()) })
    }

    /// Wishes for a drain, because a change waits for users in pods with these uids. The same change with
    /// other users goes on; another `reason` begins anew, with the whole time limit.
    pub fn want(&self, reason: &str, pods: impl IntoIterator<Item = String>) {
        let (reason, pods) = (reason_of(reason), pods.into_iter().collect());
        wish_for(&self.wish, Wish::Change { reason, pods });
    }

    /// Wishes for none: a request is withdrawn, be it one that an earlier agent left.
    pub fn want_none(&self) {
        wish_for(&self.wish, Wish::Nothing);
    }

    /// Waits until no request is left, and no cordon of longshore's, `limit` at most; false if one may be left.
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
}

fn looks(cluster: &Cluster, pace: &AskPace) -> Pauses {
    Limits { first_pause: pace.first, longest_pause: pace.longest, ..cluster.limits }.pauses()
}

/// The task.
struct Asker {
    cluster: Cluster,
    place: Place,
    pace: AskPace,
    may_request: bool,
    wishes: watch::Receiver<Numbered<Wish>>,
    done: watch::Sender<Settled>,
    active: Arc<AtomicBool>,
    tell: Tell,
    /// Pauses between two looks at the node.
    pauses: Pauses,
    /// End of the wait for a first wish.
    wished_by: Instant,
    /// Request of the present change, and the time at which it was on the node first.
    request: Option<EvictRequest>,
    asked: Option<Instant>,
    /// State of its drain.
    seen: Option<DrainStatus>,
    /// No controller has answered in time, which was reported.
    is_unanswered: bool,
    /// The node had longshore's cordon when it was last seen.
    is_cordoned: bool,
    /// End of the wait for the uncordon; None once it was reported.
    uncordoned_by: Option<Instant>,
    /// Failure that was reported.
    failure: Option<Kind>,
}

impl Asker {
    async fn run(mut self) {
        while self.step().await.is_ok() {}
    }

    /// Brings the node to the wish, and waits for what may change it.
    async fn step(&mut self) -> Result<(), Dropped> {
        let (number, wish) = self.next_wish().await?;
        let done = match &wish {
            Wish::Change { reason, pods } => self.asks(reason, pods).await.map(|()| false),
            Wish::Unknown | Wish::Nothing => self.withdraws().await,
        };
        match done {
            Ok(true) => {
                self.failure = None;
                self.done.send_replace((number, true));
                if wish == Wish::Unknown {
                    self.wishes
                        .wait_for(|(_, wish)| *wish != Wish::Unknown)
                        .await
                        .map_err(|_| Dropped)?;
                    return Ok(());
                }
                self.wishes.changed().await.map_err(|_| Dropped)
            }
            Ok(false) => {
                self.failure = None;
                let pause = self.pauses.next_pause();
                or_wish(&mut self.wishes, sleep(pause)).await
            }
            Err(error) => self.fails(number, &wish, error).await,
        }
    }

    /// Returns the wish, and its number. Without any for the time limit of evictions no change waits.
    async fn next_wish(&mut self) -> Result<Numbered<Wish>, Dropped> {
        let wished = self.wishes.wait_for(|(_, wish)| *wish != Wish::Unknown);
        match timeout_at(self.wished_by, wished).await {
            Ok(wished) => wished.map(|wished| wished.clone()).map_err(|_| Dropped),
            Err(_) => Ok((0, Wish::Unknown)),
        }
    }

    /// Writes the request where the node has another one, and tells what the controller did.
    async fn asks(&mut self, reason: &str, pods: &BTreeSet<String>) -> Result<(), Error> {
        let mut node = self.cluster.drain_node(&self.place.node).await?;
        let request = self.request_for(reason, pods, &node);
        let text = request.to_annotation();
        if node.request.as_deref() != Some(&*text) {
            node = self.write(Some(&text)).await?;
            self.pauses.reset();
        }
        let is_new = self.request.as_ref().is_none_or(|before| before.id != request.id);
        if is_new {
            (self.asked, self.seen, self.is_unanswered) = (Some(Instant::now()), None, false);
        }
        self.uncordoned_by = None;
        self.sees(&node, &request);
        self.request = Some(request);
        Ok(())
    }

    /// Returns the request for a change: that of the same change which this agent, or one before, made already goes on.
    fn request_for(&self, reason: &str, pods: &BTreeSet<String>, node: &DrainNode) -> EvictRequest {
        let Place { namespace, pod, .. } = &self.place;
        let own = format!("{namespace}/{pod}");
        let on_node = || EvictRequest::of_annotation(node.request.as_deref()?).ok();
        let same = |request: &EvictRequest| request.reason == reason;
        match self.request.clone().or_else(on_node).filter(same) {
            Some(request) => {
                let deadline = self.pace.deadline.as_secs();
                EvictRequest { pod: own, deadline, ..request.with(pods) }
            }
            None => EvictRequest::new(own, reason, self.pace.deadline, pods),
        }
    }

    /// Tells the events since the last look, or that no controller answers.
    fn sees(&mut self, node: &DrainNode, request: &EvictRequest) {
        self.is_cordoned = node.has_record;
        let status = node.status.as_deref().and_then(DrainStatus::of_annotation);
        let Some(status) = status.filter(|status| status.request == request.id) else {
            let late = self.asked.is_some_and(|asked| asked.elapsed() >= self.pace.answer);
            if late && !std::mem::replace(&mut self.is_unanswered, true) {
                (self.tell)(&EvictEvent::Unanswered(self.pace.answer));
            }
            return;
        };
        self.is_unanswered = false;
        self.active.store(status.is_active(), Ordering::Relaxed);
        if self.seen.as_ref() == Some(&status) {
            return;
        }
        self.pauses.reset();
        for event in status.events_since(self.seen.as_ref(), &request.reason) {
            (self.tell)(&event);
        }
        self.seen = Some(status);
    }

    /// Withdraws the request, and waits for the uncordon; true where nothing is left.
    async fn withdraws(&mut self) -> Result<bool, Error> {
        self.active.store(false, Ordering::Relaxed);
        let mut node = self.cluster.drain_node(&self.place.node).await?;
        if node.request.is_some() {
            node = self.write(None).await?;
            self.pauses.reset();
        }
        self.request = None;
        self.is_cordoned = node.has_record;
        if node.has_record && self.may_request {
            self.waits_for_uncordon();
            return Ok(false);
        }
        self.uncordoned_by = None;
        let seen = self.seen.take();
        if seen.is_some_and(|seen| seen.cordoned == Cordoned::ByLongshore) {
            (self.tell)(&EvictEvent::Uncordoned);
        }
        Ok(true)
    }

    /// Says once that the node stays cordoned.
    fn waits_for_uncordon(&mut self) {
        let now = Instant::now();
        let by = *self.uncordoned_by.get_or_insert(now + self.pace.answer);
        if by <= now && !std::mem::replace(&mut self.is_unanswered, true) {
            tracing::warn!(
                "the node stays cordoned, though no change of the driver waits any more: no controller (`longshore \
                 evictor`) has uncordoned it within {} s; if none runs any more, run `longshore fleet clean`",
                self.pace.answer.as_secs()
            );
        }
    }

    async fn write(&self, request: Option<&str>) -> Result<DrainNode, Error> {
        self.cluster.annotate_node(REQUEST, &self.place.node, EVICT_REQUEST, request).await
    }

    /// Handles a failed call: it is made again after a pause, or at once for another wish.
    async fn fails(&mut self, number: u64, wish: &Wish, error: Error) -> Result<(), Dropped> {
        let is_refusal = error.kind.is_refusal();
        let is_change = matches!(wish, Wish::Change { .. });
        if is_refusal && *wish == Wish::Nothing {
            let is_left = self.is_cordoned || self.request.is_some();
            self.done.send_replace((number, !is_left || error.kind == Kind::Missing));
        }
        if !is_change {
            tracing::debug!("{error}; an earlier request is looked for again");
        } else if self.failure.replace(error.kind) != Some(error.kind) {
            let event = if is_refusal { EvictEvent::Refused } else { EvictEvent::Unreachable };
            (self.tell)(&event(error.to_string()));
        }
        if error.kind == Kind::Unauthorized
            && let Err(error) = self.cluster.renew()
        {
            tracing::debug!("{error}");
        }
        let pause = match error.kind {
            Kind::Forbidden => self.pace.refused,
            // A missing node as well: an API server that was just started answers so.
            _ => self.pauses.next_pause(),
        };
        or_wish(&mut self.wishes, sleep(pause)).await
    }
}
