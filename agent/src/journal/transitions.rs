//! How the record goes on: from phase to phase, and through the states of each entry.

use super::{Before, Entry, EntryState, Journal, PlanSummary, Refused};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::journal::phase::{IllegalTransition, Phase};
use crate::step::Step;

impl Journal {
    /// Begins an agent's life in `phase`, whatever the last one died in; forgets what is undone.
    ///
    /// # Errors
    /// 70 where no life begins so; 15 where the state cannot be written.
    pub fn begin(&mut self, phase: Phase) -> Result<(), Failure> {
        if !phase.begins_a_life() {
            let bug = IllegalTransition { from: self.state.phase, to: phase };
            return Err(Failure::new(ExitCode::Bug, "beginning an agent's life").because(bug));
        }
        self.state.entries.retain(Entry::is_live);
        self.state.phase = phase;
        self.follow(phase);
        self.save()
    }

    /// What a phase says of the entries.
    fn follow(&mut self, phase: Phase) {
        let state = &mut self.state;
        match phase {
            Phase::Ready => {
                state.whole = true;
                state.previous.clear();
                state.refused = None;
                state.entries.retain(Entry::is_live);
            }
            // Where an agent died in the midst of a change, what it was to bring back stands.
            Phase::Changing if state.whole => {
                let live = state.entries.iter().filter(|entry| entry.is_live());
                state.previous = live.map(|entry| entry.step.clone()).collect();
            }
            // What is asked to be removed does not come back, and what is whole need not.
            Phase::Removing => {
                state.previous.clear();
                state.refused = None;
            }
            Phase::InUse | Phase::Failed if state.whole => state.previous.clear(),
            _ => {}
        }
    }

    /// Records that a driver was refused in the place of the one that is live.
    ///
    /// # Errors
    /// 15 where the state cannot be written.
    pub fn refuse(&mut self, refused: Refused) -> Result<(), Failure> {
        self.state.refused = Some(refused);
        self.save()
    }

    /// Records that the driver that was there before a change is there again, whole.
    ///
    /// # Errors
    /// 15 where the state cannot be written.
    pub fn restored(&mut self) -> Result<(), Failure> {
        self.state.whole = true;
        self.state.previous.clear();
        self.state.entries.retain(Entry::is_live);
        self.save()
    }

    /// Goes on to the next phase.
    ///
    /// # Errors
    /// 70 where the transition is illegal; 15 where the state cannot be written.
    pub fn enter(&mut self, phase: Phase) -> Result<(), Failure> {
        let next =
            self.state.phase.to(phase).or_fail(ExitCode::Bug, || format!("entering {phase}"))?;
        self.state.phase = next;
        self.follow(phase);
        self.save()
    }

    /// Records which plan the entries to come belong to.
    ///
    /// # Errors
    /// 15 where the state cannot be written.
    pub fn carry_out(&mut self, plan: PlanSummary) -> Result<(), Failure> {
        self.state.plan = Some(plan);
        self.save()
    }

    /// Records an intent, and returns its number. The act may follow only after this returned.
    ///
    /// # Errors
    /// 15 where the state cannot be written, 70 where no record has such a step; nothing is recorded then.
    pub fn intend(&mut self, step: Step, before: Before) -> Result<u64, Failure> {
        self.check(&step, &before)?;
        let seq = self.next_seq();
        self.state.whole = false;
        let state = EntryState::Intended;
        self.state.entries.push(Entry { seq, step, before, state, instance: None });
        if let Err(failure) = self.save() {
            self.state.entries.pop();
            return Err(failure);
        }
        Ok(seq)
    }

    /// Records how far an entry came.
    ///
    /// # Errors
    /// 15 where the state cannot be written; in memory it is recorded all the same.
    pub fn mark(&mut self, seq: u64, state: EntryState) -> Result<(), Failure> {
        self.settle(seq, state);
        self.save()
    }

    /// Records in memory how far an entry came, for the next write to put on disk: that of the next
    /// step's intent, or [`Journal::flush`]. Whoever reads the file before finds the entry intended, and
    /// looks at the host for what became of it, as where its writer died right after the act.
    pub fn settle(&mut self, seq: u64, state: EntryState) {
        self.state.whole &= matches!(state, EntryState::Done);
        if let Some(entry) = self.state.entries.iter_mut().find(|e| e.seq == seq) {
            entry.state = state;
        }
        self.unwritten = true;
    }

    /// As [`Journal::settle`]: that an entry acted; of a module, which loading of it that was.
    pub fn settle_done(&mut self, seq: u64, instance: Option<u64>) {
        if let Some(entry) = self.state.entries.iter_mut().find(|e| e.seq == seq) {
            entry.instance = instance;
        }
        self.settle(seq, EntryState::Done);
    }

    /// Writes what is recorded in memory alone.
    ///
    /// # Errors
    /// 15 where the state cannot be written.
    pub fn flush(&mut self) -> Result<(), Failure> {
        if self.unwritten { self.save() } else { Ok(()) }
    }
}
