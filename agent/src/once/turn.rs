//! Whose turn it is.

use std::future::Future;
use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::{Board, Claim, Claims, Held, LONGEST_LEASE, Posted, Stage, Times};
use crate::build::KnownFailure;
use crate::builder::Builder;
use crate::failure::Failure;
use crate::progress::{Progress, Task, Unit};

/// A builder that gave up without a word may have had reasons of its own. After so many of them everybody tries for
/// themselves, at once.
const MOST_GIVEN_UP: u32 = 3;

/// After so many refusals there is no board.
const MOST_REFUSED: u32 = 3;

/// Looks for what is to be built.
pub trait Search: Sync {
    /// Where it is.
    type Found: Send;

    /// Looks once.
    fn look(&self) -> impl Future<Output = Result<Option<Self::Found>, Failure>> + Send;

    /// Weighs failures that others have `told`: whether this agent's build would end so too.
    fn weigh(&self, told: Vec<KnownFailure>) -> impl Future<Output = Prospect> + Send;
}

/// What failures that others have told mean for one's own build.
pub enum Prospect {
    /// It would end with one of them.
    Fails(Failure),
    /// Nothing; others are to hear of these from this agent too.
    Open(Vec<KnownFailure>),
}

/// What to do.
pub enum Turn<F> {
    /// Take it: it is there.
    Found(F),
    /// Build it; the others wait.
    Mine(Held),
    /// Do not build it: another one has, and this is how it ends on every host.
    Fails(Failure),
    /// Build it for yourself, without a claim: why.
    Alone(Alone),
}

/// Why there is no claim to build under.
#[derive(Debug)]
pub enum Alone {
    /// The board cannot be used.
    NoBoard(Failure),
    /// Others have been waited for, and there is nothing.
    InVain(String),
}

/// One agent among those who want the same.
pub struct Round<'a, B> {
    /// Where the claim lies.
    pub board: Arc<B>,
    /// Who this is.
    pub me: Builder,
    /// How long everything takes.
    pub times: Times,
    /// Where this agent's claim is counted until it is given back.
    pub claims: &'a Claims,
    /// Shows who is waited for.
    pub progress: &'a dyn Progress,
}

impl<B: Board> Round<'_, B> {
    /// Waits until what `search` looks for is there, or it is this agent's turn to build it. Takes no
    /// longer than the times' `wait` and one lease; a board that refuses at once is asked twice more,
    /// which takes no tenth of a lease each.
    pub async fn turn<S: Search>(&self, search: &S) -> Turn<S::Found> {
        for _ in 1..MOST_REFUSED {
            let begun = Instant::now();
            match self.wait_for_it(search).await {
                Ok(turn) => return turn,
                // Many that write one claim at once make a docker-registry refuse some of them. Whoever
                // is slow to fail is not asked again.
                Err(failure) if begun.elapsed() < self.times.settle() => {
                    tracing::info!("asks for its turn once more: {}", failure.one_line());
                    sleep(self.times.settle()).await;
                }
                Err(failure) => return Turn::Alone(Alone::NoBoard(failure)),
            }
        }
        let turn = self.wait_for_it(search).await;
        turn.unwrap_or_else(|failure| Turn::Alone(Alone::NoBoard(failure)))
    }

    async fn wait_for_it<S: Search>(&self, search: &S) -> Result<Turn<S::Found>, Failure> {
        let deadline = Instant::now() + self.times.wait;
        let mut watch = Watch::new(self.times);
        // Directly before a claim is written it is looked for, and then the board is read again.
        let mut looked = false;
        loop {
            let asked = Instant::now();
            watch.see(self.board.read().await)?;
            let told = watch.unweighed();
            if !told.is_empty() || (watch.is_free() && !looked) {
                // A set that is there after all counts for more than a failure.
                if let Some(found) = search.look().await? {
                    return Ok(Turn::Found(found));
                }
                match search.weigh(told).await {
                    Prospect::Fails(failure) => return Ok(Turn::Fails(failure)),
                    Prospect::Open(carried) => watch.carry(carried),
                }
                if watch.is_free() {
                    self.board.prepare().await?;
                    looked = true;
                }
            } else if watch.given_up >= MOST_GIVEN_UP {
                let why = format!("{} others began and gave up", watch.given_up);
                return Ok(Turn::Alone(Alone::InVain(why)));
            } else if watch.is_free() {
                if let Some(held) = self.claim(asked, watch.carried.clone()).await? {
                    return self.build_or_take(held, search).await;
                }
                looked = false;
            } else if Instant::now() >= deadline {
                let why = format!("it is not there after {:?}", self.times.wait);
                return Ok(Turn::Alone(Alone::InVain(why)));
            } else {
                watch.show(self.progress);
                looked = false;
                sleep(self.times.poll()).await;
            }
        }
    }

    /// Who held the claim before may have finished just before this one was written.
    async fn build_or_take<S: Search>(
        &self,
        held: Held,
        search: &S,
    ) -> Result<Turn<S::Found>, Failure> {
        match search.look().await {
            Ok(None) => Ok(Turn::Mine(held)),
            Ok(Some(found)) => {
                held.release().await;
                Ok(Turn::Found(found))
            }
            Err(failure) => {
                held.release().await;
                Err(failure)
            }
        }
    }

    /// Claims the work on a board that was free at `asked`; None where another one was faster.
    async fn claim(
        &self,
        asked: Instant,
        carried: Vec<KnownFailure>,
    ) -> Result<Option<Held>, Failure> {
        // Since now, and not since it began to wait for others.
        let me = Builder { since: jiff::Timestamp::now(), ..self.me.clone() };
        let claim = Claim::new(me, &self.times, carried);
        Held::ask(Arc::clone(&self.board), claim, asked, self.times, self.claims).await
    }
}

/// What is seen of the board over time, by this process's own clock: clocks of hosts differ.
struct Watch {
    times: Times,
    seen: Option<Posted>,
    /// Since when it is unchanged.
    since: Instant,
    /// When the board was last read.
    read: Instant,
    /// The last who was seen to build, until that ends.
    building: Option<String>,
    /// Builders that ended. Where what they built is there, nobody looks at the count again.
    given_up: u32,
    /// The failures of the claim that is seen which have been weighed.
    weighed: Vec<KnownFailure>,
    /// Those of them that the next claim tells on.
    carried: Vec<KnownFailure>,
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
            given_up: 0,
            weighed: Vec::new(),
            carried: Vec::new(),
            shown: None,
        }
    }

    /// A board that cannot be read for a while is no reason to give up on who builds.
    fn see(&mut self, read: Result<Option<Posted>, Failure>) -> Result<(), Failure> {
        match read {
            Ok(posted) => {
                self.read = Instant::now();
                self.note(posted);
                Ok(())
            }
            Err(failure) if !self.is_free() && self.read.elapsed() < self.times.lease => {
                tracing::warn!("goes on waiting: {}", failure.one_line());
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn note(&mut self, posted: Option<Posted>) {
        if posted == self.seen {
            return;
        }
        let stage = posted.as_ref().map_or(Stage::Done, |p| p.claim.stage);
        let nonce = posted.as_ref().map(|p| p.claim.nonce.clone());
        // Who only asks may have written over who builds, who will write anew.
        if stage != Stage::Asking {
            let now = nonce.filter(|_| stage == Stage::Building);
            self.given_up += u32::from(self.building.is_some() && self.building != now);
            self.building = now;
        }
        let told = posted.as_ref().map(|p| p.claim.failures.as_slice()).unwrap_or_default();
        self.weighed.retain(|known| told.contains(known));
        self.carried.retain(|known| told.contains(known));
        self.seen = posted;
        self.since = Instant::now();
    }

    /// The failures that have not been weighed yet.
    fn unweighed(&mut self) -> Vec<KnownFailure> {
        let told = self.seen.iter().flat_map(|posted| &posted.claim.failures);
        let told: Vec<_> = told.filter(|known| !self.weighed.contains(known)).cloned().collect();
        self.weighed.extend_from_slice(&told);
        told
    }

    fn carry(&mut self, failures: Vec<KnownFailure>) {
        self.carried.extend(failures);
    }

    fn is_free(&self) -> bool {
        let Some(Posted { claim, .. }) = &self.seen else { return true };
        let theirs = std::time::Duration::from_millis(claim.lease);
        let lease = theirs.max(self.times.lease).min(LONGEST_LEASE);
        claim.stage == Stage::Done || self.since.elapsed() >= lease
    }

    /// Says once who is waited for, and goes on showing it.
    fn show(&mut self, progress: &dyn Progress) {
        let Some(Posted { claim, .. }) = &self.seen else { return };
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
