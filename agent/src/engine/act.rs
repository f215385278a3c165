//! Carrying out of one step: observe, record the intent, act, verify.

use super::{Engine, Outcome, gone};
use crate::journal::{EntryState, Journal, JournalEntry};
use crate::steps::{Intent, LoadModule, Recorded, Step, Tools};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::verbs::refusal;

impl Engine<'_> {
    /// Carries out one step; its completion is [recorded](Journal::record).
    pub(super) fn act(
        &self,
        step: &Step,
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<Outcome, Failure> {
        // If another program removed the effect of an earlier entry, the step is done anew as an
        // entry of its own: undoing both, newest first, ends where undoing one would. Nothing is left
        // of a mount or a module that is gone, so its entry ends.
        let mut over = None;
        let ours = journal.live().rfind(|e| e.step.is_same(step)).cloned();
        if let Some(entry) = ours {
            if self.is_there(&entry)? {
                self.record_found(&entry, journal)?;
                return Ok(Outcome::StillOurs);
            }
            if step.properties().resumed {
                // It has no intent of its own, and may take long.
                journal.flush()?;
                return self.carry_out(&entry.step, entry.seq, journal, cancel);
            }
            over = Some(entry);
        }
        let Some(recorded) = step.observe(self.host)? else {
            return Ok(Outcome::NotOurs);
        };
        let seq = journal.intend(recorded.clone())?;
        if let Some(over) = over {
            gone::end(&over, journal);
        }
        self.carry_out(&recorded, seq, journal, cancel)
    }

    /// Carries out the step of the entry `seq`, which is intended.
    pub(super) fn carry_out(
        &self,
        step: &Recorded,
        seq: u64,
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<Outcome, Failure> {
        let applied = step.apply(&self.tools(cancel), Intent::new(journal, seq))?;
        Ok(if applied.is_owned() { Outcome::Done } else { Outcome::NotOurs })
    }

    /// Returns everything that steps use to change the host.
    pub(super) fn tools<'a>(&'a self, cancel: &'a CancelFlag) -> Tools<'a> {
        Tools { host: self.host, images: self.images, daemons: self, cancel }
    }

    /// Records the outcome of an entry whose effect is there.
    fn record_found(&self, entry: &JournalEntry, journal: &mut Journal) -> Result<(), Failure> {
        if let Some(why) = entry.step.properties().for_good {
            journal.record(entry.seq, EntryState::Kept(why.to_owned()));
        } else if entry.state != EntryState::Done {
            journal.record_done(entry.seq, self.instance(&entry.step)?);
        }
        Ok(())
    }

    /// Returns the number of this loading of the step's module.
    fn instance(&self, step: &Recorded) -> Result<Option<u64>, Failure> {
        let Some(LoadModule { name, .. }) = LoadModule::recorded(step) else { return Ok(None) };
        let state = self.host.module(name).map_err(|e| refusal::explain(name, &e))?;
        Ok(state.and_then(|state| state.instance))
    }

    /// True if the entry's effect is (still) there and whole.
    pub(super) fn is_there(&self, entry: &JournalEntry) -> Result<bool, Failure> {
        entry.step.is_there(&entry.progress(), self.host)
    }

    /// Checks that everything the steps made is there and whole: nodes with the right numbers,
    /// mounts, parameters, modules.
    pub(super) fn verify(&self, steps: &[Step], journal: &Journal) -> Result<(), Failure> {
        let is_verified = |step: &&Step| {
            let properties = step.properties();
            properties.verified && properties.optional.is_none()
        };
        for step in steps.iter().filter(is_verified) {
            let ours = match journal.live().rfind(|e| e.step.is_same(step)) {
                Some(entry) => self.is_there(entry)?,
                None => false,
            };
            if !ours && step.observe(self.host)?.is_some_and(|now| is_gone(&now)) {
                let cause = format!("{step}: succeeded, but its effect has disappeared since");
                return Err(Failure::new(FailureKind::Expose, cause)
                    .remedy("something else on this host changes the same: see its log"));
            }
        }
        Ok(())
    }
}

/// True if a step's effect is gone, by the state observed now; warns of harmless changes to it.
fn is_gone(now: &Recorded) -> bool {
    let seen = now.seen();
    for change in &seen.changed {
        tracing::warn!("{now}: {change}");
    }
    seen.gone.is_some()
}
