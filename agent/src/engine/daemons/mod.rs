//! The driver's daemons: started last, ended first.

use std::time::Duration;

use super::{Engine, Going, undo};
use crate::daemons::Kept;
use crate::journal::{EntryState, Journal, JournalEntry};
use crate::steps::{Daemons, Observed, Recorded, StartDaemon};
use crate::telemetry::DaemonState;
use longshore_core::cancel::CancelFlag;
use longshore_host::VerbError;
use longshore_host::daemon::Daemon;
use longshore_host::verbs::bring_up;

/// Fraction of the uninstall's time limit that one daemon may have to end.
const SHARE: u32 = 4;

/// Lower bound of a daemon's time to end.
const LEAST: Duration = Duration::from_secs(1);

impl Daemons for Engine<'_> {
    fn start(&self, daemon: &Daemon, mark: &str, cancel: &CancelFlag) -> Result<(), VerbError> {
        self.tell(daemon, DaemonState::Starting);
        let started = bring_up::bring_up(self.host, daemon, mark, cancel);
        let state = if started.is_ok() { DaemonState::Live } else { DaemonState::Failed };
        self.tell(daemon, state);
        started
    }

    fn end(&self, daemon: &Daemon, mark: &str) -> Result<(), VerbError> {
        let grace = (self.in_use_wait.deadline / SHARE).max(LEAST);
        bring_up::stop(self.host, daemon, mark, grace)?;
        self.tell(daemon, DaemonState::Stopped);
        Ok(())
    }
}

impl Engine<'_> {
    /// Ends the daemons that are `going`, or all of them if something that they run on goes: the
    /// one started last first. One that cannot be ended holds the driver, and is then named among
    /// its users.
    pub(super) fn end_daemons(&self, going: Going<'_>, journal: &mut Journal) {
        let driver_goes =
            journal.live().any(|entry| going(entry) && entry.step.properties().carries_daemons);
        let is_daemon = |e: &&JournalEntry| {
            StartDaemon::recorded(&e.step).is_some() && (driver_goes || going(e))
        };
        let entries: Vec<JournalEntry> = journal.live().rev().filter(is_daemon).cloned().collect();
        for entry in entries {
            match self.undo_entry(&entry, None) {
                Ok(state) => undo::record(journal, entry.seq, state),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    /// Ends all daemons, which would not outlive the agent's container, the one started last first. The
    /// record keeps them, as after an agent's death: the next agent starts them again.
    pub fn rest_daemons(&self, journal: &Journal) {
        for Kept { daemon, mark } in kept(journal).into_iter().rev() {
            if let Err(error) = self.end(&daemon, &mark) {
                tracing::warn!("{error}");
            }
        }
    }

    fn tell(&self, daemon: &Daemon, state: DaemonState) {
        self.telemetry.daemon(&daemon.name, daemon.required, state);
    }
}

/// Returns the daemons that the journal has as ours to keep running.
pub(crate) fn kept(journal: &Journal) -> Vec<Kept> {
    let kept = |entry: &JournalEntry| {
        let Recorded::StartDaemon(Observed { step, before }) = &entry.step else { return None };
        let kept = || Kept { daemon: step.daemon.clone(), mark: before.mark.clone() };
        (entry.state == EntryState::Done).then(kept)
    };
    journal.live().filter_map(kept).collect()
}

#[cfg(test)]
mod tests;
