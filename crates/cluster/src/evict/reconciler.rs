//! Reconciler of a node's drain: it reads the node, decides, writes where the cordon differs, evicts meanwhile, and
//! looks again after growing pauses. Nothing is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::{Timestamp, Unit};
use tokio::time::{Instant, timeout_at};

use super::call::{Evicted, EvictionApi};
use super::decision::{Action, Change, EvictPace, Past, Rest};
use super::pods::{Hindrance, Treatment, UserPod};
use super::rate::Rate;
use super::{EvictEvent, ReportEvent};
use crate::client::{Cluster, Limits, Pauses};
use crate::cordon::{CordonChange, CordonRecord, NodeCordon};
use crate::error::{ApiErrorKind, Error};
use crate::pods::{ActingPod, PodRef};
use crate::reconcile::{Desired, Handle, Next, Reconcile, Then};

/// Time after which a refused call is made again where no change waits, as a multiple of the usual one.
const SELDOM: u32 = 12;

/// Pods that are not evicted, with the reason, by their uids.
type Blocked = BTreeMap<String, (PodRef, Hindrance)>;

/// Round of evictions.
#[derive(Debug, Default)]
struct Round {
    /// Pods to evict.
    due: Vec<PodRef>,
    blocked: Blocked,
}

impl Round {
    /// Sorts the pods that use the driver.
    fn new(users: Vec<UserPod>) -> Self {
        let only_last = users.iter().all(|user| match &user.treatment {
            Treatment::Evict => false,
            Treatment::EvictLast => true,
            Treatment::Leave(why) => *why != Hindrance::Ending,
        });
        let mut round = Self::default();
        for UserPod { id, treatment } in users {
            match treatment {
                Treatment::Leave(why) => drop(round.blocked.insert(id.uid.clone(), (id, why))),
                Treatment::EvictLast if !only_last => {}
                Treatment::Evict | Treatment::EvictLast => round.due.push(id),
            }
        }
        round
    }
}

/// Events that were reported for the present change.
#[derive(Debug, Default)]
struct Reported {
    change: Option<String>,
    /// Uids of the evicted pods.
    evicted: BTreeSet<String>,
    blocked: Blocked,
    cordoned: bool,
    rest: Option<Rest>,
    failure: Option<ApiErrorKind>,
}

/// Desired cordon of a node and evictions from it, for a change of its driver. The same change with other users goes
/// on; one with another id begins anew, with the whole time limit. Where nothing is desired, a cordon of longshore's is
/// undone, be it one that an earlier controller left.
pub(crate) type Drain = Handle<Desired<Change>>;

/// Reconciler of the drain of one node.
pub(crate) struct DrainReconciler {
    cluster: Arc<Cluster>,
    place: ActingPod,
    pace: EvictPace,
    rate: Arc<Rate>,
    report: ReportEvent,
    api: EvictionApi,
    past: Past,
    reported: Reported,
    pauses: Pauses,
    /// Pauses between two rounds of evictions.
    rounds: Pauses,
    /// Time after which no change waits where nothing was desired: an earlier controller's cordon is undone.
    desired_by: Instant,
    /// The node, where it is known.
    last: Option<NodeCordon>,
    /// The node has longshore's cordon, as far as it is known.
    is_cordoned: bool,
    /// Round of evictions, and their time limit in one.
    round: Round,
    until: Option<Instant>,
}

impl Reconcile for DrainReconciler {
    type Desired = Desired<Change>;

    async fn reconcile(&mut self, desired: &Self::Desired) -> Result<Next, Error> {
        if *desired == Desired::Unknown && Instant::now() < self.desired_by {
            return Ok(Then::At(self.desired_by).into());
        }
        (self.round, self.until) = (Round::default(), None);
        self.follow(desired);
        let last = self.last.take();
        if self.reported.rest.is_some() && matches!(desired, Desired::Wanted(_)) {
            return Ok(Then::Changed.into());
        }
        let node = match last {
            Some(node) => node,
            None => self.cluster.node_cordon(&self.place.node).await?,
        };
        self.is_cordoned = is_own(&node);
        let decided = self.past.decide(&node, &self.pace, Instant::now(), Timestamp::now());
        match (decided, desired) {
            (Action::Cordon, Desired::Wanted(change)) => {
                // The answer may be lost.
                self.is_cordoned = true;
                self.write(&node, CordonChange::Cordon(Self::record(change))).await
            }
            (Action::Uncordon, _) => self.write(&node, CordonChange::Uncordon).await,
            (Action::Forget, _) => self.write(&node, CordonChange::Forget).await,
            (Action::Evict(until), Desired::Wanted(change)) => {
                self.pauses.reset();
                if !is_own(&node) && !std::mem::replace(&mut self.reported.cordoned, true) {
                    (self.report)(&EvictEvent::CordonedByAnother);
                }
                self.until = Some(until);
                let round = Round::new(self.users_of(change).await?);
                match round.due.is_empty() {
                    true => self.ends_round(round.blocked, false),
                    false => self.round = round,
                }
                Ok(Then::Wait.into())
            }
            (Action::Rest(rest), _) => {
                self.rests(rest);
                self.pauses.reset();
                let settled = (!matches!(desired, Desired::Wanted(_))).then_some(true);
                Ok(Next { settled, ..Then::Changed.into() })
            }
            // Without a change none of these is decided.
            (Action::Cordon | Action::Evict(_), _) => Ok(Then::Now.into()),
        }
    }

    /// Evicts the pods that use the driver, each once, and waits for the next round.
    async fn wait(&mut self, _: &Self::Desired) -> Result<Next, Error> {
        let until = self.until.unwrap_or_else(Instant::now);
        let Round { due, mut blocked } = std::mem::take(&mut self.round);
        let mut is_new = false;
        for pod in &due {
            // The time limit is over.
            if timeout_at(until, self.rate.take()).await.is_err() {
                return Ok(Then::Now.into());
            }
            match self.cluster.evict(pod, &mut self.api).await {
                Evicted::Gone => {}
                Evicted::Accepted => is_new |= self.evicted(pod),
                Evicted::Not(why) => drop(blocked.insert(pod.uid.clone(), (pod.clone(), why))),
                Evicted::Unanswered(error) => return Err(error),
            }
        }
        // Without a due pod it ended where it began.
        if !due.is_empty() {
            self.ends_round(blocked, is_new);
        }
        let _ = timeout_at(until, self.rounds.pause()).await;
        Ok(Then::Now.into())
    }

    fn fails(&mut self, desired: &Self::Desired, error: Error) -> Next {
        let is_change = matches!(desired, Desired::Wanted(_));
        let mut settled = None;
        if error.kind == ApiErrorKind::Status(409) {
            tracing::debug!("{error}; another program changed the node, which is read again");
        } else if error.kind.is_refusal() {
            let is_left = self.is_cordoned && error.kind != ApiErrorKind::Missing;
            settled = (!is_change).then_some(!is_left);
            self.reports_failure(is_change, &error, EvictEvent::Refused);
        } else {
            self.reports_failure(is_change, &error, EvictEvent::Unreachable);
            self.cluster.renew_after(&error);
        }
        let refused = if is_change { self.pace.refused } else { self.pace.refused * SELDOM };
        let then = match error.kind {
            ApiErrorKind::Forbidden => Then::after(refused),
            // A missing node as well: an API server that was just started answers so.
            _ => Then::Backoff,
        };
        Next { then, settled, by: self.until }
    }

    fn pauses(&mut self) -> &mut Pauses {
        &mut self.pauses
    }
}

impl DrainReconciler {
    /// Begins without a desired drain; makes no call before the first one, or before the time limit of evictions.
    /// `report` is called with each event. It needs a tokio runtime.
    pub(crate) fn begin(
        cluster: Arc<Cluster>,
        place: ActingPod,
        pace: EvictPace,
        rate: Arc<Rate>,
        report: impl Fn(&EvictEvent) + Send + Sync + 'static,
    ) -> Drain {
        let rounds =
            Limits { first_pause: pace.first, longest_pause: pace.longest, ..cluster.limits };
        let reconciler = Self {
            pauses: cluster.limits.pauses(),
            cluster,
            place,
            pace,
            rate,
            report: Box::new(report),
            api: EvictionApi::default(),
            past: Past::default(),
            reported: Reported::default(),
            rounds: rounds.pauses(),
            desired_by: Instant::now() + pace.deadline,
            last: None,
            is_cordoned: false,
            round: Round::default(),
            until: None,
        };
        Handle::begin(Desired::Unknown, |_| reconciler)
    }

    /// Begins anew for another change.
    fn follow(&mut self, desired: &Desired<Change>) {
        self.past.follow(desired);
        let id = match desired {
            Desired::Wanted(change) => Some(&change.id),
            Desired::Unknown | Desired::Nothing => None,
        };
        if self.reported.change.as_ref() != id {
            self.reported = Reported { change: id.cloned(), ..Reported::default() };
            self.rounds.reset();
        }
    }

    fn record(change: &Change) -> CordonRecord {
        let now = Timestamp::now();
        CordonRecord {
            pod: change.agent.clone(),
            since: now.round(Unit::Second).unwrap_or(now).to_string(),
            reason: change.reason.clone(),
        }
    }

    async fn write(&mut self, node: &NodeCordon, change: CordonChange) -> Result<Next, Error> {
        let now = self.cluster.change_cordon(&self.place.node, node, &change).await?;
        let (has, wants) = (is_own(&now), matches!(change, CordonChange::Cordon(_)));
        let is_kept = has == wants && (wants || !now.has_record);
        (self.is_cordoned, self.last) = (has, Some(now));
        if !is_kept {
            tracing::debug!("the cluster did not keep the node's cordon as it was written");
            return Ok(Then::Backoff.into());
        }
        match change {
            CordonChange::Cordon(record) => (self.report)(&EvictEvent::Cordoned(record.reason)),
            CordonChange::Uncordon => (self.report)(&EvictEvent::Uncordoned),
            CordonChange::Forget => (self.report)(&EvictEvent::Forgotten),
        }
        Ok(Then::Now.into())
    }

    /// Lists the pods that use the driver; none where no process of a pod does.
    async fn users_of(&self, change: &Change) -> Result<Vec<UserPod>, Error> {
        if change.pods.is_empty() {
            return Ok(Vec::new());
        }
        let own = format!("{}/{}", self.place.namespace, self.place.pod);
        let spared = [&*own, &*change.agent];
        self.cluster.user_pods(&self.place.node, &spared, &change.pods).await
    }

    /// Reports an accepted eviction; returns true where it is the pod's first one.
    fn evicted(&mut self, pod: &PodRef) -> bool {
        let is_new = self.reported.evicted.insert(pod.uid.clone());
        if is_new {
            (self.report)(&EvictEvent::Evicted(pod.clone()));
        }
        is_new
    }

    /// Ends a round: reports the pods that are left, each once for each reason. It begins the pauses anew where it evicted
    /// a pod for the first time (`is_new`).
    fn ends_round(&mut self, blocked: Blocked, is_new: bool) {
        for (uid, (pod, why)) in &blocked {
            let before = self.reported.blocked.get(uid);
            let is_reported = before.is_some_and(|(_, before)| before.is_like(why));
            // One that was evicted and ends is what was asked for.
            if !is_reported && *why != Hindrance::Ending {
                (self.report)(&EvictEvent::Blocked(pod.clone(), why.clone()));
            }
        }
        (self.reported.blocked, self.reported.failure) = (blocked, None);
        if is_new {
            self.rounds.reset();
        }
    }

    fn rests(&mut self, rest: Rest) {
        if self.reported.rest.replace(rest) == Some(rest) {
            return;
        }
        match rest {
            Rest::NoChange => {}
            Rest::Overruled => (self.report)(&EvictEvent::Overruled),
            Rest::Expired => {
                let left = std::mem::take(&mut self.reported.blocked).into_values().collect();
                (self.report)(&EvictEvent::Expired(left));
            }
        }
    }

    /// Reports a failure, once for each kind, where a change waits: otherwise nothing waits for the
    /// cluster.
    fn reports_failure(&mut self, is_change: bool, error: &Error, event: fn(String) -> EvictEvent) {
        if !is_change {
            return tracing::debug!("{error}; an earlier cordon is looked for again");
        }
        if self.reported.failure.replace(error.kind) != Some(error.kind) {
            (self.report)(&event(error.to_string()));
        }
    }
}

fn is_own(node: &NodeCordon) -> bool {
    node.is_unschedulable && node.has_record
}
