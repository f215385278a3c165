//! A claim that its owner builds under.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::{Board, Claim, Posted, Stage, Times};
use crate::failure::Failure;

/// This process's claim. It is written anew for as long as this lives: whoever drops it, or is
/// killed, keeps the others waiting for one lease.
pub struct Held<B> {
    ours: Arc<Ours<B>>,
    renewing: JoinSet<()>,
}

struct Ours<B> {
    board: Arc<B>,
    times: Times,
    state: Mutex<State>,
}

struct State {
    posted: Posted,
    /// Somebody else builds too, having waited a lease in vain.
    lost: bool,
    /// Whether the board lets go of what is no longer needed.
    removes: bool,
}

impl<B: Board> Held<B> {
    pub(super) fn new(board: Arc<B>, posted: Posted, times: Times) -> Self {
        let state = Mutex::new(State { posted, lost: false, removes: true });
        let ours = Arc::new(Ours { board, times, state });
        let mut renewing = JoinSet::new();
        let renewer = Arc::clone(&ours);
        // A task of its own: what is built may keep this one's thread busy.
        renewing.spawn(async move { renewer.renew_on().await });
        Self { ours, renewing }
    }

    /// Gives it back: whoever waits need not wait for the lease. What goes wrong is logged: the
    /// claim runs out then.
    pub async fn release(mut self) {
        self.renewing.shutdown().await;
        if let Err(failure) = self.ours.release().await {
            tracing::warn!(
                "the claim could not be given back and runs out: {}",
                failure.one_line()
            );
        }
    }
}

impl<B: Board> Ours<B> {
    async fn renew_on(&self) {
        loop {
            tokio::time::sleep(self.times.renew()).await;
            match self.renew().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => {
                    tracing::warn!("the claim could not be renewed: {}", failure.one_line());
                }
            }
        }
    }

    /// Writes the claim anew, unless somebody else builds already; false then.
    async fn renew(&self) -> Result<bool, Failure> {
        let mut state = self.state.lock().await;
        let ours = state.posted.claim.clone();
        if let Some(other) = self.board.read().await?.map(|p| p.claim)
            && !other.is_of(&ours)
            && other.stage == Stage::Building
        {
            tracing::warn!("{} builds the same too, having taken over", other.builder);
            state.lost = true;
            return Ok(false);
        }
        let claim = ours.next(Stage::Building);
        let mark = self.board.write(&claim).await?;
        let before = std::mem::replace(&mut state.posted, Posted { mark, claim });
        self.tidy(&mut state, &before.mark).await;
        Ok(true)
    }

    /// Removes what the new claim has taken the place of, so that it does not pile up.
    async fn tidy(&self, state: &mut State, before: &str) {
        if state.removes {
            state.removes = self.board.withdraw(before).await.unwrap_or(false);
        }
    }

    async fn release(&self) -> Result<(), Failure> {
        let state = self.state.lock().await;
        if state.lost || (state.removes && self.board.withdraw(&state.posted.mark).await?) {
            return Ok(());
        }
        let ours = &state.posted.claim;
        let there = self.board.read().await?;
        if there.is_some_and(|posted| Claim::is_of(&posted.claim, ours)) {
            self.board.write(&ours.next(Stage::Done)).await?;
        }
        Ok(())
    }
}
