//! A claim, from the moment that it is written.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Board, Claim, MOST_TOLD, Posted, Stage, Times};
use crate::build::KnownFailure;
use crate::failure::{ExitCode, Failure};

/// This process's claim, under which it builds. It is written anew for as long as this lives, and given
/// back afterwards, also where whoever builds is dropped in the middle of it. A process that is killed
/// keeps the others waiting for one lease.
pub struct Held {
    /// Its end is what the keeper waits for, or how the build failed.
    owner: oneshot::Sender<KnownFailure>,
    keeper: JoinHandle<()>,
}

impl Held {
    /// Writes `claim` onto a board that was free at `asked`, and waits whether somebody writes over
    /// it; None then. Where the caller is dropped meanwhile, it is given back too.
    pub(super) async fn ask<B: Board>(
        board: Arc<B>,
        claim: Claim,
        asked: Instant,
        times: Times,
        held: &Claims,
    ) -> Result<Option<Self>, Failure> {
        let (owner, mut gone) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let counted = held.0.subscribe();
        let posted = Posted { mark: String::new(), claim };
        let mut keeper = Keeper { board, times, posted, lost: false, removes: true };
        // A task of its own: what is built may keep this one's thread busy, and may be dropped. And a
        // writing is never left in its middle: nobody would know the mark of what landed.
        let keeper = tokio::spawn(async move {
            let won = keeper.win(asked, &mut gone).await;
            let (keeps, failed) = (matches!(won, Ok(true)), won.is_err());
            // Whoever is gone needs no answer.
            let _ = tell.send(won);
            if keeps {
                keeper.keep(gone).await;
            } else if failed && !keeper.posted.mark.is_empty() {
                keeper.give_back(None).await;
            }
            drop(counted);
        });
        let ended = |e| Failure::new(ExitCode::Bug, "the keeper of a claim ended").because(e);
        let won = told.await.map_err(ended)??;
        Ok(won.then_some(Self { owner, keeper }))
    }

    /// Gives it back: whoever waits need not wait for the lease. What goes wrong is logged: the
    /// claim runs out then.
    pub async fn release(self) {
        drop(self.owner);
        // It fails only with the runtime, or where it panicked, which ends the process.
        let _ = self.keeper.await;
    }

    /// As [`Held::release`], and tells whoever waits, and whoever comes, that it fails.
    pub async fn fail(self, known: KnownFailure) {
        // A keeper that is gone has seen that somebody else builds too, who will tell.
        let _ = self.owner.send(known);
        let _ = self.keeper.await;
    }
}

/// The claims of this process. Who ends it has to wait for those whose builders were dropped.
#[derive(Debug, Clone, Default)]
pub struct Claims(Arc<watch::Sender<()>>);

impl Claims {
    /// Waits until all are given back, or for `patience`.
    pub async fn given_back(&self, patience: Duration) {
        if tokio::time::timeout(patience, self.0.closed()).await.is_err() {
            tracing::warn!("a claim could not be given back within {patience:?} and runs out");
        }
    }
}

struct Keeper<B> {
    board: Arc<B>,
    times: Times,
    posted: Posted,
    /// Somebody else builds too, having waited a lease in vain.
    lost: bool,
    /// Whether the board lets go of what is no longer needed.
    removes: bool,
}

impl<B: Board> Keeper<B> {
    /// Asks, and says whether this one builds now.
    async fn win(
        &mut self,
        asked: Instant,
        gone: &mut oneshot::Receiver<KnownFailure>,
    ) -> Result<bool, Failure> {
        let claim = self.posted.claim.clone();
        self.posted.mark = self.board.write(&claim).await?;
        let was_slow = asked.elapsed() > self.times.settle() / 2;
        let settle = if was_slow { self.times.settle_slowly() } else { self.times.settle() };
        tokio::select! {
            biased;
            _ = gone => {
                self.give_back(None).await;
                return Ok(false);
            }
            () = tokio::time::sleep(settle) => {}
        }
        match self.board.read().await? {
            Some(there) if there.claim.is_of(&claim) => {}
            _ => return Ok(false),
        }
        self.put(claim.next(Stage::Building)).await?;
        Ok(true)
    }

    /// Writes the claim anew until its owner is `gone`, and gives it back.
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
        self.give_back(failed).await;
    }

    /// Writes the claim anew, unless somebody else builds already.
    async fn renew(&mut self) -> Result<(), Failure> {
        let ours = self.posted.claim.clone();
        if let Some(other) = self.board.read().await?.map(|p| p.claim)
            && !other.is_of(&ours)
            && other.stage == Stage::Building
        {
            tracing::warn!("{} builds the same too, having taken over", other.builder);
            self.lost = true;
            return Ok(());
        }
        self.put(ours.next(Stage::Building)).await
    }

    /// Writes `claim` in the place of the one before, and removes that, so that they do not pile up.
    async fn put(&mut self, claim: Claim) -> Result<(), Failure> {
        let mark = self.board.write(&claim).await?;
        let before = std::mem::replace(&mut self.posted, Posted { mark, claim });
        if self.removes {
            self.removes = self.board.withdraw(&before.mark).await.unwrap_or(false);
        }
        Ok(())
    }

    async fn give_back(&mut self, failed: Option<KnownFailure>) {
        if let Err(failure) = self.release(failed).await {
            tracing::warn!(
                "the claim could not be given back and runs out: {}",
                failure.one_line()
            );
        }
    }

    async fn release(&mut self, failed: Option<KnownFailure>) -> Result<(), Failure> {
        if self.lost {
            return Ok(());
        }
        let mut claim = self.posted.claim.next(Stage::Done);
        claim.failures.extend(failed);
        let too_many = claim.failures.len().saturating_sub(MOST_TOLD);
        claim.failures.drain(..too_many);
        let tells = !claim.failures.is_empty();
        if !tells && self.removes && self.board.withdraw(&self.posted.mark).await? {
            return Ok(());
        }
        let there = self.board.read().await?.map(|posted| posted.claim);
        // Who only asks will read once more.
        let may_write =
            |there: Claim| there.is_of(&claim) || (tells && there.stage == Stage::Asking);
        if there.is_some_and(may_write) {
            self.put(claim).await?;
        }
        Ok(())
    }
}
