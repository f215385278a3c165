//! End of a run: the driver is uninstalled, left to the next agent, or left whole after a failure.

use std::time::Instant;

use super::{Agent, Context, on_engine, tell_phase};
use crate::engine::{Engine, NotUndone};
use crate::journal::Journal;
use crate::journal::phase::Phase;
use crate::steps::Announces;
use longshore_core::failure::{ExitCode, Failure, FailureKind};

impl Agent {
    /// Ends a failed run: the host is as it was before, or a driver that was Ready is left as it
    /// is. If neither is possible, the journal keeps the rest for the next run.
    pub(super) async fn fail(&mut self, failure: Failure) -> Failure {
        self.context.conduct.held.over();
        let state = self.journal.state();
        // These kinds mean that uninstalling was tried just now.
        let tried = matches!(failure.kind(), FailureKind::InUse | FailureKind::RolledBack);
        let undone = match state.whole || tried || self.journal.live().next().is_none() {
            true => Ok(()),
            false => self.undo_rest().await,
        };
        self.leave_not_ready().await;
        if self.journal.phase().next().contains(&Phase::Failed)
            && let Err(unwritten) = self.enter(Phase::Failed)
        {
            tracing::error!("{}", unwritten.one_line());
        }
        match undone {
            Ok(()) => failure,
            Err(left) => {
                let cause = format!(
                    "{}; the unfinished changes of an earlier agent could then not be undone: {}",
                    failure.one_line(),
                    left.one_line()
                );
                Failure::new(FailureKind::RolledBack, cause)
                    .remedy("run `longshore unload` once nothing holds the driver")
            }
        }
    }

    pub(super) async fn undo_rest(&mut self) -> Result<(), Failure> {
        tracing::info!("undoing the unfinished changes of an earlier agent");
        let undone = self.on_engine(|engine, journal| engine.undo(journal)).await?;
        undone.map_err(NotUndone::into_failure)
    }

    /// Undoes all entries of the journal.
    pub(super) async fn uninstall(&mut self) -> Result<ExitCode, Failure> {
        self.no_longer_postponed();
        // Also a change that is being tried: the removal may wait for the driver's users.
        self.context.conduct.held.over();
        let untouched = self.journal.live().next().is_none();
        if untouched && self.journal.phase().next().contains(&Phase::Removed) {
            self.enter(Phase::Removed)?;
            return Ok(ExitCode::Done);
        }
        if self.keeps_for_successor().await {
            return self.leave_to_successor().await;
        }
        // A disk that is full just now is no reason to leave the driver on the host: the host
        // itself shows later what was undone.
        if let Err(failure) = self.enter(Phase::Removing) {
            if failure.kind() == FailureKind::Bug {
                return Err(failure);
            }
            tracing::warn!("uninstalling all the same: {}", failure.one_line());
        }
        let journal = std::mem::replace(&mut self.journal, Journal::in_memory());
        let (journal, result) = remove(&self.context, journal).await;
        if let Some(journal) = journal {
            self.journal = journal;
        }
        match result {
            Err(failure) if failure.kind() == FailureKind::InUse && self.is_of_operator() => {
                let left = failure.one_line();
                tracing::info!("{left}; it is left to the operator's next driver pod");
                Ok(ExitCode::Done)
            }
            result => result,
        }
    }

    /// True if a whole driver is to stay for the pod that follows this one.
    async fn keeps_for_successor(&self) -> bool {
        let phase = self.journal.phase();
        let may_stay = phase == Phase::InUse || phase.next().contains(&Phase::InUse);
        if !self.context.conduct.keeps || !self.journal.state().whole || !may_stay {
            return false;
        }
        let successor = self.context.conduct.successors.ask().await;
        successor.log();
        successor.keeps_driver()
    }

    /// Leaves the driver as it is: the next agent adopts it, or exchanges it once its own is available.
    async fn leave_to_successor(&mut self) -> Result<ExitCode, Failure> {
        self.on_engine(|engine, journal| {
            engine.withdraw(Announces::Agent, journal);
            engine.rest_daemons(journal);
        })
        .await?;
        self.context.telemetry.kept();
        // The next agent finds the driver whole also where this cannot be written.
        if self.journal.phase() != Phase::InUse
            && let Err(failure) = self.enter(Phase::InUse)
        {
            tracing::warn!("{}", failure.one_line());
        }
        Ok(ExitCode::Done)
    }

    /// True in the driver pod of the GPU operator: its pods use the driver across the agent's end.
    pub(super) fn is_of_operator(&self) -> bool {
        self.context.conduct.parent.is_some()
    }
}

/// Undoes all entries of a journal in phase Removing, and enters the phase that follows. Returns
/// the journal unless the undo itself panicked.
pub(in crate::lifecycle) async fn remove(
    context: &Context,
    journal: Journal,
) -> (Option<Journal>, Result<ExitCode, Failure>) {
    let since = Instant::now();
    let undo = |engine: &Engine<'_>, journal: &mut Journal| {
        let undone = engine.undo(journal);
        if matches!(undone, Err(NotUndone::InUse(_))) {
            engine.withdraw(Announces::Agent, journal);
        }
        undone
    };
    let undone = on_engine(context, journal, undo).await;
    let (mut journal, undone) = match undone {
        Ok(undone) => undone,
        Err(bug) => return (None, Err(bug)),
    };
    let phase = match &undone {
        Ok(()) => Phase::Removed,
        Err(NotUndone::InUse(_)) => Phase::InUse,
        Err(NotUndone::Left(_)) => Phase::Failed,
    };
    let entered = journal.enter(phase);
    context.telemetry.enter(phase);
    tell_phase(phase, Phase::Removing, since);
    let result = undone.map_err(NotUndone::into_failure).and(entered).map(|()| ExitCode::Done);
    (Some(journal), result)
}
