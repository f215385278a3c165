//! Part of a node's agent in its drain: it writes the request on its own node, and reports the events of the state
//! that the controller writes there. It cordons, uncordons and evicts nothing itself, and lists no pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::annotated::DrainNode;
use super::outcome::{Cordoned, DrainStatus};
use super::request::{EvictRequest, reason_of};
use super::{EvictEvent, ReportEvent};
use crate::client::{Cluster, Limits, Pauses};
use crate::error::{ApiErrorKind, Error};
use crate::names::EVICT_REQUEST;
use crate::pods::ActingPod;
use crate::reconcile::{Desired, Handle, Next, Reconcile, Then};
use crate::text::is_name;

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

/// A change that waits for users in these pods.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WaitingChange {
    reason: String,
    pods: BTreeSet<String>,
}

/// Requests for evictions from the own node, for changes of its driver.
#[derive(Debug)]
pub struct Evictions {
    desired: Handle<Desired<WaitingChange>>,
    /// The controller evicts.
    active: Arc<AtomicBool>,
}

impl Evictions {
    /// Begins without a desired drain; makes no call yet. Where nothing is desired within the time limit of evictions,
    /// an earlier agent's request is withdrawn. An agent that requests nothing (`asks` is false) waits for no uncordon.
    /// `report` is called with each event. It needs a tokio runtime.
    ///
    /// # Errors
    /// A name that is none.
    pub fn begin(
        cluster: Cluster,
        place: ActingPod,
        pace: AskPace,
        asks: bool,
        report: impl Fn(&EvictEvent) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        for name in [&place.node, &place.namespace, &place.pod] {
            if !is_name(name) {
                let why = format!("`{name}` is no name of a node, namespace or pod");
                return Err(Error::new(
                    "requesting evictions from the own node",
                    ApiErrorKind::Name,
                    why,
                ));
            }
        }
        let active = Arc::new(AtomicBool::new(false));
        let reconciler = EvictRequestReconciler {
            pauses: looks(&cluster, &pace),
            desired_by: Instant::now() + pace.deadline,
            cluster,
            place,
            pace,
            may_request: asks,
            active: Arc::clone(&active),
            report: Box::new(report),
            request: None,
            asked: None,
            seen: None,
            is_unanswered: false,
            is_cordoned: false,
            uncordoned_by: None,
            failure: None,
        };
        Ok(Self { desired: Handle::begin(Desired::Unknown, |_| reconciler), active })
    }

    /// Desires a drain, because a change waits for users in pods with these uids. The same change with
    /// other users goes on; another `reason` begins anew, with the whole time limit.
    pub fn want(&self, reason: &str, pods: impl IntoIterator<Item = String>) {
        let (reason, pods) = (reason_of(reason), pods.into_iter().collect());
        self.desired.want(WaitingChange { reason, pods });
    }

    /// Desires none: a request is withdrawn, be it one that an earlier agent left.
    pub fn withdraw(&self) {
        self.desired.withdraw();
    }

    /// Waits until no request is left, and no cordon of longshore's, `limit` at most; false if one may be left.
    pub async fn withdrawn(&self, limit: Duration) -> bool {
        self.desired.withdrawn(limit).await
    }

    /// True while pods are evicted: users may be gone for a moment alone.
    pub fn are_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }
}

fn looks(cluster: &Cluster, pace: &AskPace) -> Pauses {
    Limits { first_pause: pace.first, longest_pause: pace.longest, ..cluster.limits }.pauses()
}

/// Reconciler of the request on the own node.
struct EvictRequestReconciler {
    cluster: Cluster,
    place: ActingPod,
    pace: AskPace,
    may_request: bool,
    active: Arc<AtomicBool>,
    report: ReportEvent,
    /// Pauses between two looks at the node.
    pauses: Pauses,
    /// Time after which no change waits where nothing was desired.
    desired_by: Instant,
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
    failure: Option<ApiErrorKind>,
}

impl Reconcile for EvictRequestReconciler {
    type Desired = Desired<WaitingChange>;

    async fn reconcile(&mut self, desired: &Self::Desired) -> Result<Next, Error> {
        if *desired == Desired::Unknown && Instant::now() < self.desired_by {
            return Ok(Then::At(self.desired_by).into());
        }
        let is_done = match desired {
            Desired::Wanted(change) => {
                self.asks(&change.reason, &change.pods).await.map(|()| false)
            }
            Desired::Unknown | Desired::Nothing => self.withdraws().await,
        }?;
        self.failure = None;
        Ok(match is_done {
            true => Next { settled: Some(true), ..Then::Changed.into() },
            false => Then::after(self.pauses.next_pause()).into(),
        })
    }

    fn fails(&mut self, desired: &Self::Desired, error: Error) -> Next {
        let is_refusal = error.kind.is_refusal();
        let is_left = self.is_cordoned || self.request.is_some();
        let settled = (is_refusal && *desired == Desired::Nothing)
            .then_some(!is_left || error.kind == ApiErrorKind::Missing);
        if !matches!(desired, Desired::Wanted(_)) {
            tracing::debug!("{error}; an earlier request is looked for again");
        } else if self.failure.replace(error.kind) != Some(error.kind) {
            let event = if is_refusal { EvictEvent::Refused } else { EvictEvent::Unreachable };
            (self.report)(&event(error.to_string()));
        }
        self.cluster.renew_after(&error);
        let pause = match error.kind {
            ApiErrorKind::Forbidden => self.pace.refused,
            // A missing node as well: an API server that was just started answers so.
            _ => self.pauses.next_pause(),
        };
        Next { settled, ..Then::after(pause).into() }
    }

    fn pauses(&mut self) -> &mut Pauses {
        &mut self.pauses
    }
}

impl EvictRequestReconciler {
    /// Writes the request where the node has another one, and reports the controller's progress.
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
        let ActingPod { namespace, pod, .. } = &self.place;
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

    /// Reports the events since the last look, or that no controller answers.
    fn sees(&mut self, node: &DrainNode, request: &EvictRequest) {
        self.is_cordoned = node.has_record;
        let status = node.status.as_deref().and_then(DrainStatus::of_annotation);
        let Some(status) = status.filter(|status| status.request == request.id) else {
            let late = self.asked.is_some_and(|asked| asked.elapsed() >= self.pace.answer);
            if late && !std::mem::replace(&mut self.is_unanswered, true) {
                (self.report)(&EvictEvent::Unanswered(self.pace.answer));
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
            (self.report)(&event);
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
            (self.report)(&EvictEvent::Uncordoned);
        }
        Ok(true)
    }

    /// Reports once that the node stays cordoned.
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
}
