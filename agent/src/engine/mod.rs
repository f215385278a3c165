//! Carries steps out, with the intent in the journal before the act, and undoes them.

mod act;
mod announced;
mod daemons;
mod exchange;
pub mod fake_images;
mod gone;
mod gpus;
pub mod image;
mod in_use;
mod in_use_wait;
mod not_undone;
mod standing;
mod undo;
mod unload;

pub(crate) use daemons::kept;
pub use exchange::{NotExchanged, verify_available, with_mounts_on};
pub use in_use::{Going, held_of};
pub use in_use_wait::InUseWait;
pub use not_undone::{Left, NotUndone};
pub use standing::{Instances, Lost, Standing};

use crate::engine::image::Images;
use crate::journal::Journal;
use crate::steps::{NEEDS_REBOOT, Step};
use crate::telemetry::{StepOutcome, Telemetry};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::Host;

/// Carries steps out on a host: takes module images from `images`, and waits for the driver's users
/// for as long as `in_use_wait` says.
#[derive(Clone, Copy)]
pub struct Engine<'a> {
    /// The host.
    pub host: &'a dyn Host,
    /// Source of module images.
    pub images: &'a dyn Images,
    /// Time limit for an undo to wait for a driver that is in use.
    pub in_use_wait: InUseWait,
    /// Records each step's outcome.
    pub telemetry: &'a Telemetry,
    /// Treats a driver that did not take every GPU as not installed.
    pub refuses_missing_gpus: bool,
}

/// Reason that not all steps were carried out. The host is then as it was before, or the failure
/// names what is left.
#[derive(Debug)]
pub enum Stopped {
    /// The cancel flag was set, and everything was undone.
    Cancelled,
    /// A step failed.
    Failed(Failure),
}

impl Engine<'_> {
    /// Carries `steps` out in order, then verifies all of them once more. A step whose effect is
    /// already there is skipped: it stays ours if the journal has it as ours, otherwise it belongs
    /// to another program and is not undone.
    ///
    /// Blocks; checks the cancel flag between steps.
    ///
    /// # Errors
    /// [`Stopped`], after everything this call did was undone.
    pub fn apply(
        &self,
        steps: &[Step],
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<(), Stopped> {
        let first = journal.next_seq();
        self.advance(steps, journal, cancel).map_err(|why| self.roll_back(why, first, journal))
    }

    fn advance(
        &self,
        steps: &[Step],
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<(), Stopped> {
        let walked = self.walk(steps, journal, cancel);
        // Also after a failed step: an undo writes only the entries that it reaches.
        let written = journal.flush().map_err(Stopped::Failed);
        if let (Err(_), Err(Stopped::Failed(failure))) = (&walked, &written) {
            tracing::warn!("{}", failure.one_line());
        }
        walked.and(written)?;
        self.verify(steps, journal).map_err(Stopped::Failed)?;
        self.check_gpus(steps).map_err(Stopped::Failed)
    }

    fn walk(
        &self,
        steps: &[Step],
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<(), Stopped> {
        for step in steps {
            if cancel.is_set() {
                return Err(Stopped::Cancelled);
            }
            match (self.act_and_tell(step, journal, cancel), step.properties().optional) {
                (Err(failure), Some(code)) => {
                    tracing::warn!(%code, "{code}: going on without it: {}", failure.one_line());
                }
                (acted, _) => acted.map_err(Stopped::Failed)?,
            }
        }
        if cancel.is_set() { Err(Stopped::Cancelled) } else { Ok(()) }
    }

    /// True if everything that `steps` make is there and whole; does not say why not.
    pub fn holds(&self, steps: &[Step], journal: &Journal) -> bool {
        let entries: Vec<_> = journal.live().cloned().collect();
        let is_optional = |step: &&Step| {
            let properties = step.properties();
            properties.verified && properties.optional.is_some()
        };
        let mut optional = steps.iter().filter(is_optional).filter(|step| self.can_act(step));
        self.verify(steps, journal).is_ok() && optional.all(|s| self.lost(s, &entries).is_none())
    }

    /// Acts, and logs the outcome in one line.
    fn act_and_tell(
        &self,
        step: &Step,
        journal: &mut Journal,
        cancel: &CancelFlag,
    ) -> Result<(), Failure> {
        let timer = self.telemetry.begin(step, false);
        let (kind, what, module) = (step.kind(), step.subject(), step.module());
        match self.act(step, journal, cancel) {
            Ok(outcome) => {
                let reported = StepOutcome::from(outcome);
                let seconds = timer.end(reported);
                tracing::info!(
                    step = kind, what, module, outcome = %reported, seconds, "{step}: {outcome} in {seconds:.3} s"
                );
                Ok(())
            }
            Err(failure) => {
                let reported = StepOutcome::Failed;
                let seconds = timer.end(reported);
                // The caller that ends with this failure reports its cause.
                tracing::warn!(
                    step = kind, what, module, outcome = %reported, seconds, "{step}: failed after {seconds:.3} s"
                );
                Err(failure)
            }
        }
    }

    fn roll_back(&self, why: Stopped, first: u64, journal: &mut Journal) -> Stopped {
        match &why {
            Stopped::Cancelled => tracing::info!("cancelled: undoing what was done"),
            Stopped::Failed(failure) => {
                tracing::warn!("a step failed, undoing what was done: {failure}");
            }
        }
        match self.undo_those(&|entry| entry.seq >= first, journal) {
            Ok(()) => why,
            Err(not) => Stopped::Failed(left_behind(why, &not)),
        }
    }
}

/// The error pair: the first failure, and the failure of its clean-up.
fn left_behind(why: Stopped, not: &NotUndone) -> Failure {
    let cause = match why {
        Stopped::Cancelled => "stopped on request".to_owned(),
        Stopped::Failed(failure) => failure.one_line(),
    };
    let remedy = if not.needs_reboot() {
        NEEDS_REBOOT
    } else {
        "run `longshore unload` once nothing holds the driver: the journal has what is left"
    };
    Failure::new(FailureKind::RolledBack, format!("{cause}; the clean-up then failed: {not}"))
        .remedy(remedy)
}

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
enum Outcome {
    #[display("done")]
    Done,
    #[display("already in effect, ours from before")]
    StillOurs,
    #[display("already in effect, not ours to undo")]
    NotOurs,
}

impl From<Outcome> for StepOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::Done,
            Outcome::StillOurs => Self::StillOurs,
            Outcome::NotOurs => Self::NotOurs,
        }
    }
}

#[cfg(test)]
mod tests;
