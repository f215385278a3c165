//! One task that keeps the node's cordon as it is wanted, and evicts meanwhile: it reads the node, decides,
//! writes where something differs, and looks again after growing pauses. Nothing is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::{Timestamp, Unit};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::call::{Evicted, EvictionApi};
use super::decision::{Action, Change, EvictPace, Past, Rest, Wish};
use super::pods::{Hindrance, Treatment, UserPod};
use super::rate::Rate;
use super::{EvictEvent, Place};
use crate::client::{Cluster, Limits, Pauses};
use crate::cordon::{CordonChange, CordonRecord, NodeCordon};
use crate::error::{Error, Kind};
use crate::pods::PodRef;
use crate::wishes::{Dropped, Numbered, or_wish};

/// Time after which a refused call is made again where no change waits, as a multiple of the usual one.
const SELDOM: u32 = 12;

/// Number of the last wish for nothing that was settled, and true if no cordon of longshore's is left.
pub(super) type Settled = (u64, bool);

/// Receiver of events.
type Tell = Box<dyn Fn(&EvictEvent) + Send + Sync>;

/// The task's ends of its connections with the handle.
pub(super) struct Ends {
    pub(super) wishes: watch::Receiver<Numbered<Wish>>,
    /// Receives the number of each wish for nothing that came true, or that the cluster refuses.
    pub(super) done: watch::Sender<Settled>,
}

/// Events that were reported for the present change.
#[derive(Debug, Default)]
struct Told {
    change: Option<String>,
    /// Evicted pods, and those that were not, with the reason, by their uids.
    evicted: BTreeSet<String>,
    blocked: BTreeMap<String, (PodRef, Hindrance)>,
    cordoned: bool,
    rest: Option<Rest>,
    failure: Option<Kind>,
}

/// The task.
pub(super) struct Keeper {
    cluster: Arc<Cluster>,
    place: Place,
    pace: EvictPace,
    wishes: watch::Receiver<Numbered<Wish>>,
    done: watch::Sender<Settled>,
    rate: Arc<Rate>,
    tell: Tell,
    api: EvictionApi,
    past: Past,
    told: Told,
    /// Pauses between two rounds of evictions.
    rounds: Pauses,
    /// End of the wait for a first wish.
    wished_by: Instant,
    /// The node has longshore's cordon, as far as it is known.
    is_cordoned: bool,
}

impl Keeper {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        place: Place,
        pace: EvictPace,
        rate: Arc<Rate>,
        ends: Ends,
        tell: Tell,
    ) -> Self {
        let Ends { wishes, done } = ends;
        let rounds =
            Limits { first_pause: pace.first, longest_pause: pace.longest, ..cluster.limits };
        let (api, past, told) = (EvictionApi::default(), Past::default(), Told::default());
        let rounds = rounds.pauses();
        let wished_by = Instant::now() + pace.deadline;
        Self {
            cluster,
            place,
            pace,
            wishes,
            done,
            rate,
            tell,
            api,
            past,
            told,
            rounds,
            wished_by,
            is_cordoned: false,
        }
    }

    pub(super) async fn run(mut self) {
        let mut last = None;
        let mut pauses = self.cluster.limits.pauses();
        loop {
            match self.step(last.take(), &mut pauses).await {
                Ok(next) => last = next,
                Err(Dropped) => return,
            }
        }
    }

    /// Makes one decision, and waits for what may change it; returns the node where it is known then.
    async fn step(
        &mut self,
        last: Option<NodeCordon>,
        pauses: &mut Pauses,
    ) -> Result<Option<NodeCordon>, Dropped> {
        let (number, wish) = self.next_wish().await?;
        self.follow(&wish);
        let rests = self.told.rest.is_some() && matches!(wish, Wish::Change(_));
        if rests {
            self.wishes.changed().await.map_err(|_| Dropped)?;
            return Ok(None);
        }
        let node = match last {
            Some(node) => node,
            None => match self.cluster.node_cordon(&self.place.node).await {
                Ok(node) => node,
                Err(error) => return self.fails(number, &wish, error, pauses).await,
            },
        };
        self.is_cordoned = node_is_own(&node);
        let decided = self.past.decide(&node, &self.pace, Instant::now(), Timestamp::now());
        match (decided, &wish) {
            (Action::Cordon, Wish::Change(change)) => {
                let record = Self::record(change);
                // The answer may be lost.
                self.is_cordoned = true;
                self.write(number, &wish, &node, CordonChange::Cordon(record), pauses).await
            }
            (Action::Uncordon, _) => {
                self.write(number, &wish, &node, CordonChange::Uncordon, pauses).await
            }
            (Action::Forget, _) => {
                self.write(number, &wish, &node, CordonChange::Forget, pauses).await
            }
            (Action::Evict(until), Wish::Change(change)) => {
                pauses.reset();
                if !node_is_own(&node) && !std::mem::replace(&mut self.told.cordoned, true) {
                    (self.tell)(&EvictEvent::CordonedByAnother);
                }
                self.round(number, &wish, change, until, pauses).await
            }
            (Action::Rest(rest), _) => {
                self.rests(rest);
                pauses.reset();
                if wish == Wish::Nothing {
                    self.done.send_replace((number, true));
                }
                self.wishes.changed().await.map_err(|_| Dropped)?;
                Ok(None)
            }
            // Without a change none of these is decided.
            (Action::Cordon | Action::Evict(_), _) => Ok(None),
        }
    }

    /// Returns the wish, and its number. Without any for the time limit of evictions no change waits: an
    /// earlier controller's cordon is undone.
    async fn next_wish(&mut self) -> Result<Numbered<Wish>, Dropped> {
        let wished = self.wishes.wait_for(|(_, wish)| *wish != Wish::Unknown);
        match timeout_at(self.wished_by, wished).await {
            Ok(wished) => wished.map(|wished| wished.clone()).map_err(|_| Dropped),
            Err(_) => Ok((0, Wish::Nothing)),
        }
    }

    /// Begins anew for another change.
    fn follow(&mut self, wish: &Wish) {
        self.past.follow(wish);
        let id = match wish {
            Wish::Change(change) => Some(&change.id),
            Wish::Unknown | Wish::Nothing => None,
        };
        if self.told.change.as_ref() != id {
            self.told = Told { change: id.cloned(), ..Told::default() };
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

    async fn write(
        &mut self,
        number: u64,
        wish: &Wish,
        node: &NodeCordon,
        change: CordonChange,
        pauses: &mut Pauses,
    ) -> Result<Option<NodeCordon>, Dropped> {
        let now = match self.cluster.change_cordon(&self.place.node, node, &change).await {
            Ok(now) => now,
            Err(error) => return self.fails(number, wish, error, pauses).await,
        };
        self.is_cordoned = node_is_own(&now);
        let (is_own, wants_own) = (node_is_own(&now), matches!(change, CordonChange::Cordon(_)));
        if is_own != wants_own || (!wants_own && now.has_record) {
            tracing::debug!("the cluster did not keep the node's cordon as it was written");
            return or_wish(&mut self.wishes, pauses.pause()).await.map(|()| Some(now));
        }
        match change {
            CordonChange::Cordon(record) => (self.tell)(&EvictEvent::Cordoned(record.reason)),
            CordonChange::Uncordon => (self.tell)(&EvictEvent::Uncordoned),
            CordonChange::Forget => (self.tell)(&EvictEvent::Forgotten),
        }
        Ok(Some(now))
    }

    /// Evicts the pods that use the driver, each once, and waits for the next round.
    async fn round(
        &mut self,
        number: u64,
        wish: &Wish,
        change: &Change,
        until: Instant,
        pauses: &mut Pauses,
    ) -> Result<Option<NodeCordon>, Dropped> {
        let own = format!("{}/{}", self.place.namespace, self.place.pod);
        let spared = [&*own, &*change.agent];
        let users = match change.pods.is_empty() {
            true => Vec::new(),
            false => match self.cluster.user_pods(&self.place.node, &spared, &change.pods).await {
                Ok(users) => users,
                Err(error) => return self.round_fails(number, wish, error, until, pauses).await,
            },
        };
        let mut blocked = BTreeMap::new();
        let mut left =
            |pod: &PodRef, why: Hindrance| blocked.insert(pod.uid.clone(), (pod.clone(), why));
        let is_last = |user: &UserPod| user.treatment == Treatment::EvictLast;
        let only_last = users.iter().all(|user| {
            is_last(user)
                || matches!(&user.treatment, Treatment::Leave(why) if *why != Hindrance::Ending)
        });
        let mut is_new = false;
        for user in &users {
            match &user.treatment {
                Treatment::Leave(why) => drop(left(&user.id, why.clone())),
                Treatment::EvictLast if !only_last => {}
                Treatment::Evict | Treatment::EvictLast => {
                    let Self { cluster, api, rate, wishes, .. } = self;
                    let evicted = async {
                        timeout_at(until, rate.take()).await.ok()?;
                        Some(cluster.evict(&user.id, api).await)
                    };
                    let evicted = tokio::select! {
                        biased;
                        changed = wishes.changed() => {
                            return changed.map(|()| None).map_err(|_| Dropped);
                        }
                        evicted = evicted => evicted,
                    };
                    // The time limit is over.
                    let Some(evicted) = evicted else { return Ok(None) };
                    match evicted {
                        Evicted::Gone => {}
                        Evicted::Accepted => is_new |= self.evicted(&user.id),
                        Evicted::Not(why) => drop(left(&user.id, why)),
                        Evicted::Unanswered(error) => {
                            return self.round_fails(number, wish, error, until, pauses).await;
                        }
                    }
                }
            }
        }
        self.blocked(blocked);
        self.told.failure = None;
        if is_new {
            self.rounds.reset();
        }
        let Self { rounds, wishes, .. } = self;
        let pause = async {
            let _ = timeout_at(until, rounds.pause()).await;
        };
        or_wish(wishes, pause).await.map(|()| None)
    }

    /// Reports an accepted eviction; returns true where it is the pod's first one.
    fn evicted(&mut self, pod: &PodRef) -> bool {
        let is_new = self.told.evicted.insert(pod.uid.clone());
        if is_new {
            (self.tell)(&EvictEvent::Evicted(pod.clone()));
        }
        is_new
    }

    /// Reports the pods that are left of a round, each once for each reason.
    fn blocked(&mut self, blocked: BTreeMap<String, (PodRef, Hindrance)>) {
        for (uid, (pod, why)) in &blocked {
            let before = self.told.blocked.get(uid);
            let is_told = before.is_some_and(|(_, before)| before.is_like(why));
            // One that was evicted and ends is what was asked for.
            if !is_told && *why != Hindrance::Ending {
                (self.tell)(&EvictEvent::Blocked(pod.clone(), why.clone()));
            }
        }
        self.told.blocked = blocked;
    }

    fn rests(&mut self, rest: Rest) {
        if self.told.rest.replace(rest) == Some(rest) {
            return;
        }
        match rest {
            Rest::NoChange => {}
            Rest::Overruled => (self.tell)(&EvictEvent::Overruled),
            Rest::Expired => {
                let left = std::mem::take(&mut self.told.blocked).into_values().collect();
                (self.tell)(&EvictEvent::Expired(left));
            }
        }
    }

    /// Handles a failed call: it is made again after a pause, or at once for another wish.
    async fn fails(
        &mut self,
        number: u64,
        wish: &Wish,
        error: Error,
        pauses: &mut Pauses,
    ) -> Result<Option<NodeCordon>, Dropped> {
        let is_refusal = error.kind.is_refusal();
        if error.kind == Kind::Status(409) {
            tracing::debug!("{error}; another program changed the node, which is read again");
        } else if is_refusal {
            if *wish == Wish::Nothing {
                let is_left = self.is_cordoned && error.kind != Kind::Missing;
                self.done.send_replace((number, !is_left));
            }
            self.tell_failure(wish, &error, EvictEvent::Refused);
        } else {
            self.tell_failure(wish, &error, EvictEvent::Unreachable);
            if error.kind == Kind::Unauthorized
                && let Err(error) = self.cluster.renew()
            {
                tracing::debug!("{error}");
            }
        }
        let refused = match wish {
            Wish::Change(_) => self.pace.refused,
            Wish::Unknown | Wish::Nothing => self.pace.refused * SELDOM,
        };
        let pause = async {
            match error.kind {
                Kind::Forbidden => sleep(refused).await,
                // A missing node as well: an API server that was just started answers so.
                _ => pauses.pause().await,
            }
        };
        or_wish(&mut self.wishes, pause).await.map(|()| None)
    }

    /// The same in a round of evictions, whose time limit is not waited over.
    async fn round_fails(
        &mut self,
        number: u64,
        wish: &Wish,
        error: Error,
        until: Instant,
        pauses: &mut Pauses,
    ) -> Result<Option<NodeCordon>, Dropped> {
        match timeout_at(until, self.fails(number, wish, error, pauses)).await {
            Ok(next) => next,
            Err(_) => Ok(None),
        }
    }

    /// Reports a failure, once for each kind, where a change waits: otherwise nothing waits for the
    /// cluster.
    fn tell_failure(&mut self, wish: &Wish, error: &Error, event: fn(String) -> EvictEvent) {
        if !matches!(wish, Wish::Change(_)) {
            return tracing::debug!("{error}; an earlier cordon is looked for again");
        }
        if self.told.failure.replace(error.kind) != Some(error.kind) {
            (self.tell)(&event(error.to_string()));
        }
    }
}

fn node_is_own(node: &NodeCordon) -> bool {
    node.is_unschedulable && node.has_record
}
