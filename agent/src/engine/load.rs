//! Loading of a module, and the record of its owner.

use nix::errno::Errno;

use super::handover::NotTaken;
use super::undo::{NEEDS_REBOOT, record};
use super::{Engine, Outcome};
use crate::engine::readback;
use crate::failure::{ExitCode, Failure};
use crate::host::VerbError;
use crate::host::refusal;
use crate::host::verbs::ModuleState;
use crate::journal::{EntryState, Journal};
use crate::step::{ModuleOrigin, Step};

const UNLOADED_BY_OTHERS: &str = "find out what loads and unloads it on this host, and stop that";

impl Engine<'_> {
    /// Loads the module of the entry `seq`, which is intended, and compares the kernel's account of
    /// it with the wanted module.
    ///
    /// A module that the kernel refused is not ours, if another program loads it next; a load
    /// without an answer may still succeed, and stays intended.
    pub(super) fn load(
        &self,
        step: &Step,
        seq: u64,
        journal: &mut Journal,
    ) -> Result<Outcome, Failure> {
        let Step::LoadModule { name, origin, parameters, .. } = step else {
            return Err(Failure::new(ExitCode::Bug, format!("{step}: this loads no module")));
        };
        let taken = match self.hand_over(name, origin, parameters) {
            Ok(taken) => taken,
            Err(NotTaken::Absent(failure)) => {
                record(journal, seq, EntryState::Undone);
                return Err(failure);
            }
            Err(NotTaken::Refused(e)) if e.unanswered.is_some() => return Err(wedged(name, &e)),
            Err(NotTaken::Refused(e)) if e.errno == Errno::EEXIST => {
                return self.somebody_loaded(step, seq, journal);
            }
            Err(NotTaken::Refused(e)) => {
                record(journal, seq, EntryState::Undone);
                return Err(refusal::explain(name, &e));
            }
        };
        let state = self.host.module(name).map_err(|e| refusal::explain(name, &e))?;
        let Some(state) = state else {
            record(journal, seq, EntryState::Undone);
            let cause = format!("the kernel accepted {name}, but does not list it as loaded");
            return Err(Failure::new(ExitCode::KernelRefused, cause).remedy(UNLOADED_BY_OTHERS));
        };
        // Settled before any comparison: the module is ours even if it is not the wanted one. A
        // failure is written before anything is undone.
        journal.settle_done(seq, state.instance);
        taken.file.map_or(Ok(()), |file| file.check_unwritten())?;
        self.compare(step, &state, &taken.said)?;
        Ok(Outcome::Done)
    }

    /// Handles a module that another program, for example udev by its alias, loaded after it was
    /// found missing: it stays that program's, and is used if it is the wanted one.
    fn somebody_loaded(
        &self,
        step: &Step,
        seq: u64,
        journal: &mut Journal,
    ) -> Result<Outcome, Failure> {
        let Step::LoadModule { name, .. } = step else { return Ok(Outcome::NotOurs) };
        journal
            .mark(seq, EntryState::Kept("another program loaded it just before us".to_owned()))?;
        tracing::warn!("{name}: another program loaded it just before us");
        let state = self.host.module(name).map_err(|e| refusal::explain(name, &e))?;
        let Some(state) = state else {
            let cause = format!("{name}: another program loaded and unloaded it meanwhile");
            return Err(Failure::new(ExitCode::KernelRefused, cause).remedy(UNLOADED_BY_OTHERS));
        };
        self.compare(step, &state, &[])?;
        Ok(Outcome::NotOurs)
    }

    /// Checks that the loaded module is the wanted one; `said` is what the kernel logged meanwhile.
    fn compare(&self, step: &Step, state: &ModuleState, said: &[String]) -> Result<(), Failure> {
        readback::versions(step, state)?;
        match step {
            Step::LoadModule { name, origin: ModuleOrigin::Driver { .. }, parameters, .. } => {
                readback::parameters(self.host, name, parameters, said)
            }
            _ => Ok(()),
        }
    }
}

/// Failure of a load that did not return.
fn wedged(name: &str, error: &VerbError) -> Failure {
    Failure::new(ExitCode::KernelRefused, format!("{name}: its init function hangs"))
        .because(error.to_string())
        .remedy(NEEDS_REBOOT)
}
