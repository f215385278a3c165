//! The driver's daemons: started last, ended first.

use std::time::Duration;

use super::act::exposing;
use super::{Engine, Going, undo};
use crate::cancel::CancelFlag;
use crate::daemons;
use crate::failure::{ExitCode, Failure};
use crate::host::VerbError;
use crate::host::daemon::{Answers, Daemon};
use crate::journal::{Before, Entry, EntryState, Journal};
use crate::step::{ModuleOrigin, Step};
use crate::telemetry::DaemonState;

/// Fraction of the uninstall's time limit that one daemon may have to end.
const SHARE: u32 = 4;

/// Lower bound of a daemon's time to end.
const LEAST: Duration = Duration::from_secs(1);

impl Engine<'_> {
    /// Returns the state before the daemon's start; None if another program's daemon serves
    /// already.
    pub(super) fn observe_daemon(&self, daemon: &Daemon) -> Result<Option<Before>, Failure> {
        let mark = crate::host::daemon::new_mark();
        let seen = self.host.daemon(daemon, &mark).map_err(exposing)?;
        if let Answers::Other(pid) = seen.answers {
            tracing::warn!(
                "{daemon}: pid {pid} answers on {} and is not ours: using that one",
                daemon.socket.display()
            );
            return Ok(None);
        }
        Ok(Some(Before::NoDaemon { mark }))
    }

    /// Starts the daemon. An optional one is retried later.
    pub(super) fn start_daemon(
        &self,
        daemon: &Daemon,
        mark: &str,
        cancel: &CancelFlag,
    ) -> Result<(), Failure> {
        self.tell(daemon, DaemonState::Starting);
        let error = match daemons::bring_up(self.host, daemon, mark, cancel) {
            Ok(()) => {
                self.tell(daemon, DaemonState::Live);
                return Ok(());
            }
            Err(error) => error,
        };
        self.tell(daemon, DaemonState::Failed);
        if !daemon.required {
            tracing::warn!("going on without {daemon}, retrying it later: {error}");
            return Ok(());
        }
        let remedy = format!(
            "its log is above, and its messages may be in the host's syslog; without {daemon} this \
             host's GPUs are not usable, or the configuration asks for it: see docs/daemons.md"
        );
        Err(Failure::new(ExitCode::Expose, format!("starting {daemon}"))
            .because(error)
            .remedy(remedy))
    }

    pub(super) fn end_daemon(&self, daemon: &Daemon, mark: &str) -> Result<(), VerbError> {
        let grace = (self.patience.deadline / SHARE).max(LEAST);
        daemons::stop(self.host, daemon, mark, grace)?;
        self.tell(daemon, DaemonState::Stopped);
        Ok(())
    }

    /// Ends the daemons that are `going`, or all of them if something that they run on goes: the
    /// one started last first. One that cannot be ended holds the driver, and is then named among
    /// its users.
    pub(super) fn end_daemons(&self, going: Going<'_>, journal: &mut Journal) {
        let driver_goes = journal.live().any(|entry| going(entry) && is_stood_on(&entry.step));
        let is_daemon =
            |e: &&Entry| matches!(e.step, Step::StartDaemon { .. }) && (driver_goes || going(e));
        let entries: Vec<Entry> = journal.live().rev().filter(is_daemon).cloned().collect();
        for entry in entries {
            match self.undo_entry(&entry, None) {
                Ok(state) => undo::record(journal, entry.seq, state),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    fn tell(&self, daemon: &Daemon, state: DaemonState) {
        self.telemetry.daemon(&daemon.name, daemon.required, state);
    }
}

/// True if daemons run on a step's effect: modules of the driver, nodes and mounts.
fn is_stood_on(step: &Step) -> bool {
    match step {
        Step::LoadModule { origin, .. } => matches!(origin, ModuleOrigin::Driver { .. }),
        Step::Bind { .. } | Step::MountTmpfs { .. } | Step::Share { .. } => true,
        Step::MakeNodes { .. } => true,
        _ => false,
    }
}

/// Returns the daemons that the journal has as ours to keep running.
pub(crate) fn kept(journal: &Journal) -> Vec<daemons::Kept> {
    let kept = |entry: &Entry| match (&entry.step, &entry.before, &entry.state) {
        (Step::StartDaemon { daemon }, Before::NoDaemon { mark }, EntryState::Done) => {
            Some(daemons::Kept { daemon: daemon.clone(), mark: mark.clone() })
        }
        _ => None,
    };
    journal.live().filter_map(kept).collect()
}

#[cfg(test)]
mod tests;
