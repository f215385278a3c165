//! A claim that its owner builds under.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::{Board, Claim, Posted, Stage, Times};
use crate::failure::Failure;

/// This process's claim. It is written anew for as long as this lives, and given back afterwards,
/// also where whoever builds is dropped in the middle of it. A process that is killed keeps the others
/// waiting for one lease.
pub struct Held {
    /// Its end is what the keeper waits for.
    owner: oneshot::Sender<Infallible>,
    keeper: JoinHandle<()>,
}

impl Held {
    pub(super) fn new<B: Board>(
        board: Arc<B>,
        posted: Posted,
        times: Times,
        held: &Claims,
    ) -> Self {
        let (owner, gone) = oneshot::channel();
        let keeper = Keeper { board, times, posted, lost: false, removes: true };
        let counted = held.0.subscribe();
        // A task of its own: what is built may keep this one's thread busy, and may be dropped.
        let keeper = tokio::spawn(async move {
            keeper.keep(gone).await;
            drop(counted);
        });
        Self { owner, keeper }
    }

    /// Gives it back: whoever waits need not wait for the lease. What goes wrong is logged: the
    /// claim runs out then.
    pub async fn release(self) {
        drop(self.owner);
        // It fails only with the runtime, or where it panicked, which ends the process.
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
    /// Writes the claim anew until its owner is `gone`, and gives it back. A writing is never left in
    /// its middle: nobody would know the mark of what landed.
    async fn keep(mut self, mut gone: oneshot::Receiver<Infallible>) {
        while !self.lost {
            tokio::select! {
                biased;
                _ = &mut gone => break,
                () = tokio::time::sleep(self.times.renew()) => {}
            }
            if let Err(failure) = self.renew().await {
                tracing::warn!("the claim could not be renewed: {}", failure.one_line());
            }
        }
        if let Err(failure) = self.release().await {
            tracing::warn!(
                "the claim could not be given back and runs out: {}",
                failure.one_line()
            );
        }
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
        let claim = ours.next(Stage::Building);
        let mark = self.board.write(&claim).await?;
        let before = std::mem::replace(&mut self.posted, Posted { mark, claim });
        self.tidy(&before.mark).await;
        Ok(())
    }

    /// Removes what the new claim has taken the place of, so that it does not pile up.
    async fn tidy(&mut self, before: &str) {
        if self.removes {
            self.removes = self.board.withdraw(before).await.unwrap_or(false);
        }
    }

    async fn release(&self) -> Result<(), Failure> {
        if self.lost || (self.removes && self.board.withdraw(&self.posted.mark).await?) {
            return Ok(());
        }
        let ours = &self.posted.claim;
        let there = self.board.read().await?;
        if there.is_some_and(|posted| Claim::is_of(&posted.claim, ours)) {
            self.board.write(&ours.next(Stage::Done)).await?;
        }
        Ok(())
    }
}
