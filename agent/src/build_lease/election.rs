//! Election of the builder among agents that need the same modules.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Claim, Claims, LONGEST_LEASE, Lease, LeaseBackend, Stage, StoredClaim, Times};
use longshore_build::KnownFailure;
use longshore_build::builder::Builder;
use longshore_core::failure::Failure;
use longshore_core::progress::{Progress, Task, Unit};

/// Maximum number of builders that ended without a result or a failure: one may have had reasons of
/// its own, after this many every agent builds for itself.
const MOST_ABANDONED: u32 = 3;

/// Delay of a build of which another host reported that it fails, with a jitter of as much again. No report is
/// signed, and any writer of the backend can make one, so it never ends a build: it costs a host this delay. That
/// is longer than most compiles take, so the first host that tries again publishes a set, where one can be made,
/// before the others begin.
pub(super) const REPORTED_DELAY: Duration = Duration::from_secs(5 * 60);

/// Interval of the searches during that delay, as a multiple of the usual one.
const SELDOM: u32 = 4;

/// Maximum number of refused writes, after which the backend counts as unusable.
const MOST_REFUSED: u32 = 3;

/// Search for the product to build.
pub trait Search: Sync {
    /// The product found.
    type Product: Send;

    /// Searches once.
    fn look(&self) -> impl Future<Output = Result<Option<Self::Product>, Failure>> + Send;

    /// Judges failures reported by other agents: would this agent's build end in one of them?
    fn judge(&self, reported: Vec<KnownFailure>) -> impl Future<Output = Forecast> + Send;
}

/// Result of judging other agents' failures.
pub enum Forecast {
    /// This build would end with this one, if the reports are true; this agent's claim must report these on.
    Fails(Failure, Vec<KnownFailure>),
    /// It would not; this agent's claim must report these on.
    Open(Vec<KnownFailure>),
}

/// Result of the election.
pub enum Outcome<F> {
    /// Use the existing product.
    Found(F),
    /// Build it under this claim; the others wait.
    Mine(Lease),
    /// Build it without a claim, for this reason.
    Alone(Alone),
}

/// Reason for building without a claim.
#[derive(Debug)]
pub enum Alone {
    /// The backend cannot be used.
    NoBackend(Failure),
    /// The wait for other agents brought no result.
    InVain(String),
}

/// One agent in the election.
pub struct Election<'a, B> {
    /// The backend with the claim.
    pub backend: Arc<B>,
    /// This agent.
    pub me: Builder,
    /// Time limits.
    pub times: Times,
    /// Counts this agent's claims until they are released.
    pub claims: &'a Claims,
    /// Shows the agent that is waited for.
    pub progress: &'a dyn Progress,
}

impl<B: LeaseBackend> Election<'_, B> {
    /// Waits until `search` finds the product, or this agent is elected to build it. A reported failure delays the
    /// election by [`REPORTED_DELAY`] and its jitter. Takes at most the times' `wait` plus one lease; a backend that refuses quickly is retried twice, each in
    /// less than a tenth of a lease.
    pub async fn elect<S: Search>(&self, search: &S) -> Outcome<S::Product> {
        for _ in 1..MOST_REFUSED {
            let begun = Instant::now();
            match self.wait_for_it(search).await {
                Ok(outcome) => return outcome,
                // Many concurrent writes of one claim make a docker-registry refuse some of them. A
                // slow failure is not retried.
                Err(failure) if begun.elapsed() < self.times.settling_time() => {
                    tracing::info!("could not take the lease, retrying: {}", failure.one_line());
                    sleep(self.times.settling_time()).await;
                }
                Err(failure) => return Outcome::Alone(Alone::NoBackend(failure)),
            }
        }
        let outcome = self.wait_for_it(search).await;
        outcome.unwrap_or_else(|failure| Outcome::Alone(Alone::NoBackend(failure)))
    }

    /// Like [`Election::elect`], but by `fallback` where the backend refuses or cannot be used.
    pub async fn elect_or<C: LeaseBackend, S: Search>(
        &self,
        fallback: Arc<C>,
        search: &S,
    ) -> Outcome<S::Product> {
        // One read tells: a refusal is not retried.
        let unused = match self.backend.read().await {
            Err(failure) => failure,
            Ok(_) => match self.elect(search).await {
                Outcome::Alone(Alone::NoBackend(failure)) => failure,
                outcome => return outcome,
            },
        };
        self.claims.report_unused(&unused);
        let Self { me, times, claims, progress, .. } = self;
        let (me, times, claims, progress) = (me.clone(), *times, *claims, *progress);
        Election { backend: fallback, me, times, claims, progress }.elect(search).await
    }

    async fn wait_for_it<S: Search>(&self, search: &S) -> Result<Outcome<S::Product>, Failure> {
        let deadline = Instant::now() + self.times.wait;
        let mut watch = Watch::new(self.times);
        // Before a claim is written the product is searched for, and then the backend is read again.
        let mut looked = false;
        loop {
            let asked = Instant::now();
            watch.see(self.backend.read().await)?;
            let reported = watch.unjudged();
            let delayed = watch.delayed(asked);
            if !reported.is_empty() || (watch.is_free() && !looked) {
                // An existing set takes precedence over a reported failure.
                if let Some(found) = search.look().await? {
                    return Ok(Outcome::Found(found));
                }
                match search.judge(reported).await {
                    Forecast::Fails(failure, carried) => {
                        watch.delay(&failure, deadline);
                        watch.carry(carried);
                    }
                    Forecast::Open(carried) => watch.carry(carried),
                }
                if let Some(left) = watch.delayed(Instant::now()) {
                    sleep((SELDOM * self.times.poll()).min(left)).await;
                } else if watch.is_free() {
                    self.backend.prepare().await?;
                    looked = true;
                }
            } else if let Some(left) = delayed {
                sleep((SELDOM * self.times.poll()).min(left)).await;
            } else if watch.abandoned >= MOST_ABANDONED {
                let why = format!("{} other agents started the build and gave up", watch.abandoned);
                return Ok(Outcome::Alone(Alone::InVain(why)));
            } else if watch.is_free() {
                if let Some(held) = self.claim(asked, &watch).await? {
                    return self.build_or_take(held, search).await;
                }
                looked = false;
                if Instant::now() >= deadline {
                    let why = "other agents took the lease again and again".to_owned();
                    return Ok(Outcome::Alone(Alone::InVain(why)));
                }
                if B::COMPARES {
                    // The others that lost read at other moments.
                    sleep(self.times.settling_time().mul_f64(fastrand::f64())).await;
                }
            } else if Instant::now() >= deadline {
                let why = format!("no result after {:?}", self.times.wait);
                return Ok(Outcome::Alone(Alone::InVain(why)));
            } else {
                watch.show(self.progress);
                looked = false;
                sleep(self.times.poll()).await;
            }
        }
    }

    /// Searches again: the previous holder of the claim may have finished just before this one was
    /// written.
    async fn build_or_take<S: Search>(
        &self,
        held: Lease,
        search: &S,
    ) -> Result<Outcome<S::Product>, Failure> {
        match search.look().await {
            Ok(None) => Ok(Outcome::Mine(held)),
            Ok(Some(found)) => {
                held.release().await;
                Ok(Outcome::Found(found))
            }
            Err(failure) => {
                held.release().await;
                Err(failure)
            }
        }
    }

    /// Writes a claim to a backend that was free at `asked`; None where another agent was faster.
    async fn claim(&self, asked: Instant, watch: &Watch) -> Result<Option<Lease>, Failure> {
        // The time of the claim, not that of the beginning of the wait.
        let me = Builder { since: jiff::Timestamp::now(), ..self.me.clone() };
        let claim = Claim::new(me, &self.times, watch.carried.clone());
        let over = watch.seen.as_ref().map(|seen| seen.mark.clone());
        Lease::ask(Arc::clone(&self.backend), claim, asked, over, self.times, self.claims).await
    }
}

/// Observations of the backend over time, by this process's own clock: clocks of hosts differ.
struct Watch {
    times: Times,
    seen: Option<StoredClaim>,
    /// Time of the last change.
    since: Instant,
    /// Time of the last read.
    read: Instant,
    /// Nonce of the last builder seen, until it ends.
    building: Option<String>,
    /// Number of builders that ended. It no longer matters once the product exists.
    abandoned: u32,
    /// The current claim's failures that have been judged.
    judged: Vec<KnownFailure>,
    /// Of these, the ones that the next claim reports on.
    carried: Vec<KnownFailure>,
    /// End of the delay by reported failures. It is set once, whatever is reported later.
    delayed_until: Option<Instant>,
    shown: Option<(String, Box<dyn Task>)>,
}

impl Watch {
    fn new(times: Times) -> Self {
        let now = Instant::now();
        Self {
            times,
            seen: None,
            since: now,
            read: now,
            building: None,
            abandoned: 0,
            judged: Vec::new(),
            carried: Vec::new(),
            delayed_until: None,
            shown: None,
        }
    }

    /// Records a read; a backend that is unreadable for a while is no reason to give up on the
    /// builder.
    fn see(&mut self, read: Result<Option<StoredClaim>, Failure>) -> Result<(), Failure> {
        match read {
            Ok(stored) => {
                self.read = Instant::now();
                self.note(stored);
                Ok(())
            }
            Err(failure) if !self.is_free() && self.read.elapsed() < self.times.lease => {
                tracing::warn!("cannot read the claim, still waiting: {}", failure.one_line());
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn note(&mut self, stored: Option<StoredClaim>) {
        if stored == self.seen {
            return;
        }
        let stage = stored.as_ref().map_or(Stage::Done, |p| p.claim.stage);
        let nonce = stored.as_ref().map(|p| p.claim.nonce.clone());
        // An asking agent may have overwritten a builder's claim, which the builder will renew.
        if stage != Stage::Asking {
            let now = nonce.filter(|_| stage == Stage::Building);
            self.abandoned += u32::from(self.building.is_some() && self.building != now);
            self.building = now;
        }
        let reported = stored.as_ref().map(|p| p.claim.failures.as_slice()).unwrap_or_default();
        self.judged.retain(|known| reported.contains(known));
        self.carried.retain(|known| reported.contains(known));
        self.seen = stored;
        self.since = Instant::now();
    }

    /// Returns the failures that have not been judged yet.
    fn unjudged(&mut self) -> Vec<KnownFailure> {
        let reported = self.seen.iter().flat_map(|stored| &stored.claim.failures);
        let reported: Vec<_> =
            reported.filter(|known| !self.judged.contains(known)).cloned().collect();
        self.judged.extend_from_slice(&reported);
        reported
    }

    /// Delays the build, because another host reported that it ends with this failure; until `deadline` at most.
    fn delay(&mut self, failure: &Failure, deadline: Instant) {
        if self.delayed_until.is_some() {
            return tracing::debug!("another host reported: {}", failure.one_line());
        }
        let delay = REPORTED_DELAY.mul_f64(1.0 + fastrand::f64());
        let now = Instant::now();
        let until = (now + delay).min(deadline);
        tracing::warn!(
            "another host reported that this build fails, which is not proven: it is tried here in {} s, unless a \
             set is published: {}",
            (until - now).as_secs(),
            failure.one_line()
        );
        self.delayed_until = Some(until);
    }

    /// Returns the rest of the delay.
    fn delayed(&self, now: Instant) -> Option<Duration> {
        let left = self.delayed_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn carry(&mut self, failures: Vec<KnownFailure>) {
        self.carried.extend(failures);
    }

    fn is_free(&self) -> bool {
        let Some(StoredClaim { claim, .. }) = &self.seen else { return true };
        let theirs = Duration::from_millis(claim.lease);
        let lease = theirs.max(self.times.lease).min(LONGEST_LEASE);
        claim.stage == Stage::Done || self.since.elapsed() >= lease
    }

    /// Logs the awaited agent once, and keeps showing it.
    fn show(&mut self, progress: &dyn Progress) {
        let Some(StoredClaim { claim, .. }) = &self.seen else { return };
        let who = claim.builder.to_string();
        if self.shown.as_ref().is_none_or(|(nonce, _)| *nonce != claim.nonce) {
            tracing::info!("waits for {who}");
            let what = format!("waiting for {}", claim.builder.shown_host());
            let task = progress.begin(&what, None, Unit::Items);
            self.shown = Some((claim.nonce.clone(), task));
        }
        if let Some((_, task)) = &self.shown {
            task.note(&who);
        }
    }
}
