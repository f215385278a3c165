//! Transitions of the record: from phase to phase, and through the states of each entry.

use super::{EntryState, Journal, JournalEntry, PlanSummary, Refused};
use crate::journal::phase::{IllegalTransition, Phase};
use crate::steps::{Announces, Entries, Recorded, Step, WriteStatus};
use longshore_core::failure::{Failure, FailureKind, OrFail};

impl Journal {
    /// Begins an agent run in `phase`, in whichever phase the last one died; drops undone entries.
    ///
    /// # Errors
    /// 70 if no agent run begins in that phase; 15 if the state cannot be written.
    pub fn begin(&mut self, phase: Phase) -> Result<(), Failure> {
        if !phase.begins_a_life() {
            let bug = IllegalTransition { from: self.state.phase, to: phase };
            return Err(Failure::new(FailureKind::Bug, "beginning an agent run").with_source(bug));
        }
        self.state.entries.retain(JournalEntry::is_live);
        self.state.phase = phase;
        self.follow(phase);
        self.save()
    }

    /// Applies a phase to the entries.
    fn follow(&mut self, phase: Phase) {
        let state = &mut self.state;
        match phase {
            Phase::Ready => {
                state.whole = true;
                state.previous.clear();
                state.refused = None;
                state.entries.retain(JournalEntry::is_live);
            }
            // If an agent died during a change, the steps that it was to reinstall stay recorded.
            Phase::Changing if state.whole => {
                let live = state.entries.iter().filter(|entry| entry.is_live());
                let steps = live.map(|entry| entry.step.step()).filter(belongs_to_driver);
                state.previous = steps.collect();
            }
            // A driver that is to be removed is not reinstalled, and one that is whole need not be.
            Phase::Removing => {
                state.previous.clear();
                state.refused = None;
            }
            Phase::InUse | Phase::Failed if state.whole => state.previous.clear(),
            _ => {}
        }
    }

    /// Records that a driver was refused as the replacement of the installed one.
    ///
    /// # Errors
    /// 15 if the state cannot be written.
    pub fn refuse(&mut self, refused: Refused) -> Result<(), Failure> {
        self.state.refused = Some(refused);
        self.save()
    }

    /// Records that the driver from before a change is installed again, whole.
    ///
    /// # Errors
    /// 15 if the state cannot be written.
    pub fn restored(&mut self) -> Result<(), Failure> {
        self.state.whole = true;
        self.state.previous.clear();
        self.state.entries.retain(JournalEntry::is_live);
        self.save()
    }

    /// Enters the next phase.
    ///
    /// # Errors
    /// 70 if the transition is illegal; 15 if the state cannot be written.
    pub fn enter(&mut self, phase: Phase) -> Result<(), Failure> {
        let next =
            self.state.phase.to(phase).or_fail(FailureKind::Bug, || format!("entering {phase}"))?;
        self.state.phase = next;
        self.follow(phase);
        self.save()
    }

    /// Records the plan of the entries to come.
    ///
    /// # Errors
    /// 15 if the state cannot be written.
    pub fn carry_out(&mut self, plan: PlanSummary) -> Result<(), Failure> {
        self.state.plan = Some(plan);
        self.save()
    }

    /// Records an intent, and returns its number. The step may act only after this returned.
    ///
    /// # Errors
    /// 15 if the state cannot be written, 70 if this program never records such a step; nothing is
    /// recorded then.
    pub fn intend(&mut self, step: Recorded) -> Result<u64, Failure> {
        self.check(&step)?;
        let seq = self.next_seq();
        self.state.whole &= self.is_beside(&step);
        let state = EntryState::Intended;
        self.state.entries.push(JournalEntry { seq, step, state, instance: None });
        if let Err(failure) = self.save() {
            self.state.entries.pop();
            return Err(failure);
        }
        Ok(seq)
    }

    /// Records an entry's state.
    ///
    /// # Errors
    /// 15 if the state cannot be written; in memory it is recorded all the same.
    pub fn mark(&mut self, seq: u64, state: EntryState) -> Result<(), Failure> {
        self.record(seq, state);
        self.save()
    }

    /// Records an entry's state in memory, for the next write to put on disk: that of the next
    /// step's intent, or [`Journal::flush`]. A reader of the file before that finds the entry
    /// intended, and inspects the host for the result, as after a death right after the act.
    pub fn record(&mut self, seq: u64, state: EntryState) {
        let is_it = |entry: &&JournalEntry| entry.seq == seq;
        let is_beside =
            self.state.entries.iter().find(is_it).is_some_and(|entry| self.is_beside(&entry.step));
        self.state.whole &= is_beside || matches!(state, EntryState::Done);
        let entry = self.state.entries.iter_mut().find(|e| e.seq == seq);
        if let Some(entry) = entry {
            entry.state = state;
        }
        self.unwritten = true;
    }

    /// Like [`Journal::record`]: records that an entry acted, and for a module the number of its
    /// loading.
    pub fn record_done(&mut self, seq: u64, instance: Option<u64>) {
        if let Some(entry) = self.state.entries.iter_mut().find(|e| e.seq == seq) {
            entry.instance = instance;
        }
        self.record(seq, EntryState::Done);
    }

    /// True for a step without which the driver is whole: an announcement, and an optional step while
    /// the driver itself is neither replaced nor removed.
    fn is_beside(&self, step: &Recorded) -> bool {
        let driver_stays = !matches!(self.state.phase, Phase::Changing | Phase::Removing);
        announces(step) || (driver_stays && step.properties().optional.is_some())
    }

    /// Drops the steps by which an earlier agent announced itself from those to carry out again: its
    /// container has ended.
    ///
    /// # Errors
    /// 15 if the state cannot be written.
    pub fn forget_announced(&mut self) -> Result<(), Failure> {
        let before = self.state.previous.len();
        let stays = |step: &Step| step.properties().announces != Announces::Agent;
        self.state.previous.retain(stays);
        if self.state.previous.len() == before { Ok(()) } else { self.save() }
    }

    /// Writes changes that are recorded only in memory.
    ///
    /// # Errors
    /// 15 if the state cannot be written.
    pub fn flush(&mut self) -> Result<(), Failure> {
        if self.unwritten { self.save() } else { Ok(()) }
    }
}

/// False for the announcement that the driver is not ready: a driver that is carried out again is.
fn belongs_to_driver(step: &Step) -> bool {
    WriteStatus::from_step(step).is_none_or(WriteStatus::is_final)
}

/// True for an announcement: the driver is whole without it.
fn announces(step: &Recorded) -> bool {
    step.properties().announces != Announces::Nothing
}

impl Entries for Journal {
    fn record(&mut self, seq: u64, state: EntryState) {
        Journal::record(self, seq, state);
    }

    fn record_done(&mut self, seq: u64, instance: Option<u64>) {
        Journal::record_done(self, seq, instance);
    }

    fn mark(&mut self, seq: u64, state: EntryState) -> Result<(), Failure> {
        Journal::mark(self, seq, state)
    }
}
