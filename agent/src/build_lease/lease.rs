//! A claim held by this process, from its first write until it is released.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Claim, LeaseBackend, MOST_FAILURES, Stage, StoredClaim, Times};
use longshore_build::KnownFailure;
use longshore_core::failure::{Failure, FailureKind};

/// This process's claim, under which it builds. It is renewed for as long as this exists, and
/// released afterwards, also where the builder is dropped in the middle of its work. A killed
/// process blocks the others for one lease.
pub struct Lease {
    /// Dropped at the end of the build, or sends its failure; the keeper waits for either.
    owner: oneshot::Sender<KnownFailure>,
    keeper: JoinHandle<()>,
}

impl Lease {
    /// Writes `claim` to a backend that was free at `asked`, when it had the claim `over`, and waits
    /// to see if another agent overwrites it; returns None then. If the caller is dropped meanwhile,
    /// the claim is released too.
    pub(super) async fn ask<B: LeaseBackend>(
        backend: Arc<B>,
        claim: Claim,
        asked: Instant,
        over: Option<String>,
        times: Times,
        held: &Claims,
    ) -> Result<Option<Self>, Failure> {
        let (owner, mut gone) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        let counted = held.held.subscribe();
        let stored = StoredClaim { mark: String::new(), claim };
        let mut keeper = Keeper { backend, times, stored, lost: false, removes: true };
        // A task of its own: the build may block this one's thread, and may be dropped. And a write
        // is never cancelled half-way: the mark of the written claim would be lost.
        let keeper = tokio::spawn(async move {
            let won = keeper.win(asked, over, &mut gone).await;
            let (keeps, failed) = (matches!(won, Ok(true)), won.is_err());
            // A caller that is gone needs no answer.
            let _ = answer.send(won);
            if keeps {
                keeper.keep(gone).await;
            } else if failed && !keeper.stored.mark.is_empty() {
                keeper.release(None).await;
            }
            drop(counted);
        });
        let ended =
            |e| Failure::new(FailureKind::Bug, "the keeper of a claim ended").with_source(e);
        let won = answered.await.map_err(ended)??;
        Ok(won.then_some(Self { owner, keeper }))
    }

    /// Releases the claim, so that other agents need not wait for the lease. Errors are logged: the
    /// claim then expires.
    pub async fn release(self) {
        drop(self.owner);
        // This fails only if the runtime ends, or if the task panicked, which ends the process.
        let _ = self.keeper.await;
    }

    /// Like [`Lease::release`], and reports the failure to waiting and later agents.
    pub async fn fail(self, known: KnownFailure) {
        // A keeper that is gone has found another builder, which will report its own failure.
        let _ = self.owner.send(known);
        let _ = self.keeper.await;
    }
}

/// The claims of this process. Before it exits, it must wait for those of dropped builders.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    held: Arc<watch::Sender<()>>,
    /// Last reason for which the cluster was not used.
    reported: Arc<Mutex<Option<String>>>,
}

impl Claims {
    /// Logs that the cluster is not used for claims: as a warning where the last reason was another.
    pub fn report_unused(&self, failure: &Failure) {
        let why = failure.one_line();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.as_ref() == Some(&why) {
            tracing::debug!("{why}; claims in the registry are used instead");
        } else {
            tracing::warn!("{why}; claims in the registry are used instead (reported once)");
            *reported = Some(why);
        }
    }

    /// Waits until all are released, or for `limit`.
    pub async fn all_released(&self, limit: Duration) {
        if tokio::time::timeout(limit, self.held.closed()).await.is_err() {
            tracing::warn!("a claim could not be released within {limit:?} and will expire");
        }
    }
}

struct Keeper<B> {
    backend: Arc<B>,
    times: Times,
    stored: StoredClaim,
    /// True if another agent builds too, after its wait for the lease timed out.
    lost: bool,
    /// True if the backend supports removal.
    removes: bool,
}

impl<B: LeaseBackend> Keeper<B> {
    /// Writes the claim, and returns true if this agent builds now.
    async fn win(
        &mut self,
        asked: Instant,
        over: Option<String>,
        gone: &mut oneshot::Receiver<KnownFailure>,
    ) -> Result<bool, Failure> {
        if B::COMPARES {
            let claim = Claim { stage: Stage::Building, ..self.stored.claim.clone() };
            return self.put(claim, over).await;
        }
        let claim = self.stored.claim.clone();
        self.put(claim.clone(), over).await?;
        let was_slow = asked.elapsed() > self.times.settling_time() / 2;
        let settling_time = if was_slow {
            self.times.settling_time_after_slow_write()
        } else {
            self.times.settling_time()
        };
        tokio::select! {
            biased;
            _ = gone => {
                self.release(None).await;
                return Ok(false);
            }
            () = tokio::time::sleep(settling_time) => {}
        }
        match self.backend.read().await? {
            Some(there) if there.claim.is_of(&claim) => {
                self.put(claim.next(Stage::Building), Some(there.mark)).await
            }
            _ => Ok(false),
        }
    }

    /// Renews the claim until its owner is `gone`, and releases it.
    async fn keep(mut self, mut gone: oneshot::Receiver<KnownFailure>) {
        let mut failed = None;
        while !self.lost {
            tokio::select! {
                biased;
                ended = &mut gone => {
                    failed = ended.ok();
                    break;
                }
                () = tokio::time::sleep(self.times.renew()) => {}
            }
            if let Err(failure) = self.renew().await {
                tracing::warn!("the claim could not be renewed: {}", failure.one_line());
            }
        }
        self.release(failed).await;
    }

    /// Renews the claim, unless another agent builds already.
    async fn renew(&mut self) -> Result<(), Failure> {
        let ours = self.stored.claim.clone();
        let there = self.backend.read().await?;
        if let Some(other) = there.as_ref().map(|there| &there.claim)
            && !other.is_of(&ours)
            && other.stage == Stage::Building
        {
            tracing::warn!("{} builds the same too: it took over the claim", other.builder);
            self.lost = true;
            return Ok(());
        }
        let over = there.map(|there| there.mark);
        if !self.put(ours.next(Stage::Building), over).await? {
            tracing::info!("another agent wrote the claim meanwhile; it is read again");
        }
        Ok(())
    }

    /// Replaces the claim with mark `over` by `claim`; false where another agent was faster. Removes
    /// the previous one of a backend in which they would accumulate.
    async fn put(&mut self, claim: Claim, over: Option<String>) -> Result<bool, Failure> {
        let written = self.backend.write(&claim, over.as_deref()).await?;
        let Some(mark) = written else { return Ok(false) };
        let before = std::mem::replace(&mut self.stored, StoredClaim { mark, claim });
        if self.removes && !B::COMPARES && !before.mark.is_empty() {
            self.removes = self.backend.withdraw(&before.mark).await.unwrap_or(false);
        }
        Ok(true)
    }

    async fn release(&mut self, failed: Option<KnownFailure>) {
        if let Err(failure) = self.try_release(failed).await {
            tracing::warn!(
                "the claim could not be released and will expire: {}",
                failure.one_line()
            );
        }
    }

    async fn try_release(&mut self, failed: Option<KnownFailure>) -> Result<(), Failure> {
        if self.lost {
            return Ok(());
        }
        let mut claim = self.stored.claim.next(Stage::Done);
        claim.failures.extend(failed);
        let too_many = claim.failures.len().saturating_sub(MOST_FAILURES);
        claim.failures.drain(..too_many);
        let tells = !claim.failures.is_empty();
        if !tells && self.removes && self.backend.withdraw(&self.stored.mark).await? {
            return Ok(());
        }
        let Some(there) = self.backend.read().await? else { return Ok(()) };
        // An agent that is only asking will read again.
        if there.claim.is_of(&claim) || (tells && there.claim.stage == Stage::Asking) {
            self.put(claim, Some(there.mark)).await?;
        }
        Ok(())
    }
}
