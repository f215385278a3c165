//! Undoing from the journal, in reverse.
//!
//! The order is chosen so that stopping half-way is never needed. First the daemons end, which hold
//! the driver; then its modules are checked for users, and unloaded: only that can be refused, and
//! while it is refused nothing else was touched. Only when no module of ours is left are mounts,
//! nodes, parameters and directories removed, in reverse: none of them matters to unloading a
//! module, while a driver without its nodes and libraries would be of no use to the processes that
//! hold it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;

use super::in_use::Going;
use super::patience::Wait;
use super::{Engine, Patience};
use crate::failure::{ExitCode, Failure};
use crate::host::in_use::InUse;
use crate::host::verbs::{Stage, TMPFS_SOURCE};
use crate::host::{Host, VerbError};
use crate::journal::{Before, Entry, EntryState, Journal, NodeBefore};
use crate::step::{ModuleOrigin, Step};
use crate::telemetry::StepOutcome;

/// Something that could not be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The remainder, named as the step that made it.
    pub what: String,
    /// The cause.
    pub why: String,
    /// True if it hangs in the kernel, so that only a reboot removes it for certain.
    pub wedged: bool,
}

/// Remedy for a module that hangs in the kernel.
pub(super) const NEEDS_REBOOT: &str = "drain this host and reboot it: a call that hangs in the \
    kernel cannot be ended; the kernel's log (dmesg) may show what it waits for. If it returns \
    after all, `longshore unload` does the rest";

/// Reason that not everything was undone. The journal has the rest.
#[derive(Debug)]
pub enum NotUndone {
    /// The driver is in use; driver, mounts, nodes and journal are as they were.
    InUse(InUse),
    /// These were left behind.
    Left(Vec<Left>),
}

impl NotUndone {
    /// True if something hangs in the kernel.
    pub fn needs_reboot(&self) -> bool {
        matches!(self, NotUndone::Left(left) if left.iter().any(|left| left.wedged))
    }

    /// Returns the failure to end with: exit code 20 or 21.
    pub fn into_failure(self) -> Failure {
        let text = self.to_string();
        match self {
            NotUndone::InUse(_) => Failure::new(ExitCode::InUse, text)
                .remedy("stop its users, then run `longshore unload`; the driver stays usable"),
            NotUndone::Left(left) => Failure::new(ExitCode::RolledBack, text).remedy(
                if left.iter().any(|left| left.wedged) {
                    NEEDS_REBOOT
                } else {
                    "remove the cause, then run `longshore unload`"
                },
            ),
        }
    }
}

impl fmt::Display for NotUndone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotUndone::InUse(in_use) => write!(f, "the driver is in use: {in_use}"),
            NotUndone::Left(left) => {
                let all: Vec<_> = left.iter().map(|l| format!("{}: {}", l.what, l.why)).collect();
                let reboot = if self.needs_reboot() { "the host needs a reboot: " } else { "" };
                write!(f, "{reboot}not undone: {}", all.join("; "))
            }
        }
    }
}

impl Engine<'_> {
    /// Undoes every live entry of the journal; may be called again after any outcome.
    ///
    /// # Errors
    /// [`NotUndone::InUse`] where the driver was in use until the deadline: nothing was changed.
    /// [`NotUndone::Left`] where something could not be undone.
    pub fn undo(&self, journal: &mut Journal) -> Result<(), NotUndone> {
        self.undo_those(&|_| true, journal)
    }

    /// Undoes the live entries that are `going`. An entry that stays counts as a user of those that
    /// go: a module that stays and holds one that is to be unloaded is named as its holder.
    ///
    /// # Errors
    /// As [`Engine::undo`].
    pub fn undo_those(&self, going: Going<'_>, journal: &mut Journal) -> Result<(), NotUndone> {
        let since = Instant::now();
        self.end_daemons(going, journal);
        let deadline = self.patience.deadline.saturating_sub(since.elapsed());
        let rest = Self { patience: Patience { deadline, ..self.patience }, ..*self };
        let mut left = rest.take_out(going, journal)?;
        let wedged = !left.is_empty();
        let entries: Vec<Entry> = journal.live().rev().filter(|e| going(e)).cloned().collect();
        for entry in entries {
            // The modules that a wedged module depends on cannot be unloaded either.
            if wedged && matches!(entry.step, Step::LoadModule { .. }) {
                continue;
            }
            match self.undo_entry(&entry, None) {
                // An entry may be kept only because something of ours could not be undone just now:
                // the next undo decides anew.
                Ok(EntryState::Kept(_)) if !left.is_empty() => {}
                Ok(state) => record(journal, entry.seq, state),
                Err(e) => left.push(Left::of(&entry.step, &e)),
            }
        }
        if left.is_empty() { Ok(()) } else { Err(NotUndone::Left(left)) }
    }

    /// Undoes one entry, and logs the outcome in one line.
    pub(super) fn undo_entry(
        &self,
        entry: &Entry,
        wait: Option<&Wait>,
    ) -> Result<EntryState, VerbError> {
        let step = &entry.step;
        let doing = self.telemetry.begin(step, true);
        let undone = self.undo_with_retries(entry, wait);
        let outcome = match &undone {
            Ok(EntryState::Kept(_)) => StepOutcome::Kept,
            Ok(_) => StepOutcome::Undone,
            Err(_) => StepOutcome::NotUndone,
        };
        let seconds = doing.end(outcome);
        let (kind, what) = (step.kind(), step.subject());
        tracing::info!(
            step = kind, what, %outcome, seconds, "undo: {step}: {outcome} in {seconds:.3} s"
        );
        undone
    }

    /// Undoes one step; leaves alone anything that is not (or no longer) as the step left it.
    pub(super) fn undo_step(&self, entry: &Entry) -> Result<EntryState, VerbError> {
        let host = self.host;
        match (&entry.step, &entry.before) {
            (Step::LoadModule { name, origin, .. }, _) => {
                return self.undo_load(entry, name, origin);
            }
            (Step::WriteParameter { path, value }, Before::Value { value: was }) => {
                let now = host.parameter(path)?;
                if now.as_ref() == Some(value) {
                    host.write_parameter(path, was)?;
                } else if now.as_ref() != Some(was) {
                    return Ok(EntryState::Kept("another program changed it after us".to_owned()));
                }
            }
            (Step::Bind { source, target }, Before::Mounts { count }) => {
                if host.mounts_on(target)? == count + 1 && is_another(host, source, target)? {
                    return Ok(mounted_by_others(target));
                }
                undo_mount(host, target, *count)?;
            }
            (Step::Share { target, .. }, Before::Mounts { count }) => {
                undo_mount(host, target, *count)?;
            }
            (Step::StartDaemon { daemon }, Before::NoDaemon { mark }) => {
                self.end_daemon(daemon, mark)?;
            }
            (Step::MountTmpfs { target }, Before::Mounts { count }) => {
                let source = host.mount_source(target)?;
                if host.mounts_on(target)? == count + 1 && source.as_deref() != Some(TMPFS_SOURCE) {
                    return Ok(mounted_by_others(target));
                }
                undo_mount(host, target, *count)?;
            }
            (Step::MakeNodes { .. }, Before::Nodes { missing_dirs, nodes }) => {
                nodes.iter().rev().try_for_each(|node| undo_node(host, node))?;
                return undo_dirs(host, missing_dirs);
            }
            (Step::RemoveLeftover { .. }, _) => {}
            (_, Before::MissingDirs { dirs }) => return undo_dirs(host, dirs),
            // Without `before` in the message: it may be a daemon's mark.
            (step, _) => {
                tracing::warn!(
                    "{step}: the recorded state before it does not fit, undoing nothing"
                );
            }
        }
        Ok(EntryState::Undone)
    }

    fn undo_load(
        &self,
        entry: &Entry,
        name: &str,
        origin: &ModuleOrigin,
    ) -> Result<EntryState, VerbError> {
        let Some(state) = self.host.module(name)? else { return Ok(EntryState::Undone) };
        if !self.is_ours(entry, &state) {
            let why = "another program loaded it since";
            tracing::warn!("{name} stays loaded: {why}");
            return Ok(EntryState::Kept(why.to_owned()));
        }
        match self.host.unload_module(name) {
            Ok(()) => Ok(EntryState::Undone),
            Err(e) if e.errno == Errno::ENOENT => Ok(EntryState::Undone),
            // A module of the kernel's own that another program came to use, or that cannot be
            // unloaded at all (EBUSY): it does no harm, and unloading it would.
            Err(e)
                if matches!(origin, ModuleOrigin::Kernel { .. })
                    && matches!(e.errno, Errno::EAGAIN | Errno::EBUSY)
                    && state.stage == Stage::Live =>
            {
                let why = match self.held(name, &BTreeSet::new())? {
                    Some(held) => held.to_string(),
                    None => e.to_string(),
                };
                tracing::warn!("{name} stays loaded: {why}");
                Ok(EntryState::Kept(why))
            }
            Err(e) => Err(e),
        }
    }
}

impl Left {
    pub(super) fn of(step: &Step, error: &VerbError) -> Self {
        let wedged = error.unanswered.is_some();
        Self { what: step.to_string(), why: error.to_string(), wedged }
    }
}

/// Failure of a query to the host before anything was undone.
pub(super) fn not_looked(error: &VerbError) -> NotUndone {
    let what = "everything (cannot tell whether the driver is in use)".to_owned();
    NotUndone::Left(vec![Left { what, why: error.to_string(), wedged: false }])
}

/// Marks an entry; only warns where that cannot be written: the next undo finds the step undone.
/// The end of the agent run writes the state once more, and fails with the cause.
pub(super) fn record(journal: &mut Journal, seq: u64, state: EntryState) {
    if let Err(failure) = journal.mark(seq, state) {
        tracing::warn!("{}", failure.one_line());
    }
}

fn mounted_by_others(target: &Path) -> EntryState {
    let why = "another program mounted something else in its place";
    tracing::warn!("{} stays mounted: {why}", target.display());
    EntryState::Kept(why.to_owned())
}

/// True if the directory at `target` is another one than `source`; false if the source is gone,
/// which leaves nothing to compare.
pub(super) fn is_another(host: &dyn Host, source: &Path, target: &Path) -> Result<bool, VerbError> {
    Ok(host.dir(source)?.is_some_and(|wanted| host.dir(target).is_ok_and(|d| d != Some(wanted))))
}

fn undo_mount(host: &dyn Host, target: &Path, count: usize) -> Result<(), VerbError> {
    match host.mounts_on(target)?.checked_sub(count) {
        None | Some(0) => Ok(()),
        Some(1) => match host.unmount(target) {
            Err(e) if e.errno == Errno::EBUSY => {
                tracing::warn!("{e}: detaching it lazily, it disappears with its last user");
                host.detach(target)
            }
            result => result,
        },
        // Another program mounted over ours: the topmost mount is not ours to unmount.
        Some(_) => Err(VerbError::new(
            "unmount (something else is mounted on top of it)",
            target.display().to_string(),
            Errno::EBUSY,
        )),
    }
}

fn undo_node(host: &dyn Host, node: &NodeBefore) -> Result<(), VerbError> {
    let there = host.node(&node.path)?;
    match (there, node.was) {
        // Only its permissions were changed, and are restored unless another program changed them
        // after us.
        (Some(there), Some(was)) if was.same_device(&node.made) => {
            let ours = there != was && there.is_between(&was, &node.made);
            return if ours { host.set_node(&node.path, was) } else { Ok(()) };
        }
        (None, Some(was)) if was.same_device(&node.made) => return Ok(()),
        (Some(there), _) if there.same_device(&node.made) => host.remove_file(&node.path)?,
        (Some(_), _) => return Ok(()),
        (None, _) => {}
    }
    node.was.map_or(Ok(()), |was| host.make_node(&node.path, was))
}

/// Removes the directories we made, innermost first; keeps one that others put something into or
/// mounted something on.
fn undo_dirs(host: &dyn Host, dirs: &[PathBuf]) -> Result<EntryState, VerbError> {
    for dir in dirs.iter().rev() {
        if !host.has_dir(dir)? {
            continue;
        }
        let theirs = [Errno::ENOTEMPTY, Errno::EEXIST, Errno::EBUSY, Errno::ENOTDIR];
        match host.remove_dir(dir) {
            // In it, on it, or (a link) in its place.
            Err(e) if theirs.contains(&e.errno) => {
                tracing::warn!("{} stays: another program uses it", dir.display());
                return Ok(EntryState::Kept(e.to_string()));
            }
            result => result?,
        }
    }
    Ok(EntryState::Undone)
}
