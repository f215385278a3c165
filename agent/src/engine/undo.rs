//! Undoing from the journal, in reverse.
//!
//! The order is chosen so that stopping half-way is never needed. First the daemons end, which hold
//! the driver; then its modules are checked for users, and removed: that is all that can be refused, and while it is refused
//! nothing else was touched. Only when no module of ours is left do mounts, nodes, parameters
//! and directories go, in reverse: none of them matters to the removal of a module, while a
//! driver without its nodes and libraries would be of no use to whoever holds it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;

use super::in_use::{Going, Held, InUse, is_ours, loads};
use super::{Engine, Patience};
use crate::failure::{ExitCode, Failure};
use crate::host::verbs::TMPFS_SOURCE;
use crate::host::{Host, VerbError};
use crate::journal::{Before, Entry, EntryState, Journal, NodeBefore};
use crate::step::{ModuleOrigin, Step};
use crate::telemetry::StepOutcome;

/// Something that could not be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// What is left, as the step that made it.
    pub what: String,
    /// Why.
    pub why: String,
}

/// Why not everything was undone. The journal has what is left.
#[derive(Debug)]
pub enum NotUndone {
    /// The driver is in use; driver, mounts, nodes and journal are as they were.
    InUse(InUse),
    /// These were left behind.
    Left(Vec<Left>),
}

impl NotUndone {
    /// The failure to end with: exit code 20 or 21.
    pub fn into_failure(self) -> Failure {
        let text = self.to_string();
        match self {
            NotUndone::InUse(_) => Failure::new(ExitCode::InUse, text)
                .remedy("stop who holds it, then run `longshore unload`; the driver stays usable"),
            NotUndone::Left(_) => Failure::new(ExitCode::RolledBack, text)
                .remedy("see what is in the way, then run `longshore unload`"),
        }
    }
}

impl fmt::Display for NotUndone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotUndone::InUse(in_use) => write!(f, "the driver is in use: {in_use}"),
            NotUndone::Left(left) => {
                let all: Vec<_> = left.iter().map(|l| format!("{}: {}", l.what, l.why)).collect();
                write!(f, "not undone: {}", all.join("; "))
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

    /// Undoes the live entries that are `going`. Who is not among them counts as a user of those
    /// that are: a module that stays and holds one that is to go is named as what holds it.
    ///
    /// # Errors
    /// As [`Engine::undo`].
    pub fn undo_those(&self, going: Going<'_>, journal: &mut Journal) -> Result<(), NotUndone> {
        let since = Instant::now();
        self.end_daemons(going, journal);
        let deadline = self.patience.deadline.saturating_sub(since.elapsed());
        let rest = Self { patience: Patience { deadline, ..self.patience }, ..*self };
        rest.wait_for_users(going, journal)?;
        self.unload_modules(going, journal)?;
        let entries: Vec<Entry> = journal.live().rev().filter(|e| going(e)).cloned().collect();
        let mut left = Vec::new();
        for entry in entries {
            match self.undo_entry(&entry) {
                // What stays may stay for something of ours that could not be undone just now:
                // the next undo judges anew.
                Ok(EntryState::Kept(_)) if !left.is_empty() => {}
                Ok(state) => record(journal, entry.seq, state),
                Err(e) => left.push(Left { what: entry.step.to_string(), why: e.to_string() }),
            }
        }
        if left.is_empty() { Ok(()) } else { Err(NotUndone::Left(left)) }
    }

    fn wait_for_users(&self, going: Going<'_>, journal: &Journal) -> Result<(), NotUndone> {
        let mut told = false;
        let look = || {
            let held = self.held_modules(journal, going)?;
            if !held.is_empty() && !told {
                let s = self.patience.deadline.as_secs();
                let in_use = self.in_use(held.clone());
                self.telemetry.holders(Some(&in_use));
                tracing::warn!("waiting up to {s} s for the driver's users: {in_use}");
                told = true;
            }
            Ok::<_, VerbError>((!held.is_empty()).then_some(held))
        };
        match self.patience.until_none(look) {
            Ok(None) => {
                self.telemetry.holders(None);
                Ok(())
            }
            Ok(Some(held)) => Err(self.held_by_others(held)),
            Err(e) => Err(not_looked(&e)),
        }
    }

    fn held_by_others(&self, held: Vec<Held>) -> NotUndone {
        let in_use = self.in_use(held);
        self.telemetry.holders(Some(&in_use));
        NotUndone::InUse(in_use)
    }

    /// Removes the modules we loaded, in reverse. Where one cannot go, those already gone are
    /// put back: somebody opened the driver just now, and a driver without nvidia-uvm is broken
    /// for them.
    fn unload_modules(&self, going: Going<'_>, journal: &mut Journal) -> Result<(), NotUndone> {
        let entries: Vec<Entry> = loads(journal, going).map(|(e, _, _)| e.clone()).rev().collect();
        let mut gone = Vec::new();
        for entry in &entries {
            match self.undo_entry(entry) {
                Ok(state) => {
                    record(journal, entry.seq, state);
                    gone.push(entry);
                }
                Err(error) => {
                    let mut left = self.put_back(&gone, journal);
                    return Err(self.stopped_at(entry, &error, &mut left, going, journal));
                }
            }
        }
        Ok(())
    }

    fn stopped_at(
        &self,
        entry: &Entry,
        error: &VerbError,
        left: &mut Vec<Left>,
        going: Going<'_>,
        journal: &Journal,
    ) -> NotUndone {
        if left.is_empty()
            && error.errno == Errno::EAGAIN
            && let Ok(held) = self.held_modules(journal, going)
            && !held.is_empty()
        {
            return self.held_by_others(held);
        }
        left.insert(0, Left { what: entry.step.to_string(), why: error.to_string() });
        NotUndone::Left(std::mem::take(left))
    }

    /// Loads again what this undo had removed, and says what could not be loaded.
    fn put_back(&self, gone: &[&Entry], journal: &mut Journal) -> Vec<Left> {
        let mut left = Vec::new();
        for entry in gone.iter().rev() {
            let is_kept = |e: &Entry| matches!(e.state, EntryState::Kept(_));
            if journal.state().entries.iter().any(|e| e.seq == entry.seq && is_kept(e)) {
                continue;
            }
            record(journal, entry.seq, EntryState::Intended);
            match self.load(&entry.step) {
                Ok(()) => record(journal, entry.seq, EntryState::Done),
                Err(failure) => {
                    let why = format!("was removed and cannot be put back: {}", failure.one_line());
                    left.push(Left { what: entry.step.to_string(), why });
                }
            }
        }
        left
    }

    /// Undoes one entry, and says in one line what became of it.
    pub(super) fn undo_entry(&self, entry: &Entry) -> Result<EntryState, VerbError> {
        let step = &entry.step;
        let doing = self.telemetry.begin(step, true);
        let undone = self.undo_step(entry);
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

    /// What is not (or no longer) as the step left it is not touched.
    fn undo_step(&self, entry: &Entry) -> Result<EntryState, VerbError> {
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
                    return Ok(EntryState::Kept("somebody changed it after us".to_owned()));
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
            (step, before) => {
                tracing::warn!(
                    "{step}: the journal has {before:?} before it, which undoes nothing"
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
        if !is_ours(entry, &state) {
            tracing::warn!("{name} stays loaded: it is another build than the one we loaded");
            return Ok(EntryState::Kept("somebody loaded another build in its place".to_owned()));
        }
        match self.host.unload_module(name) {
            Ok(()) => Ok(EntryState::Undone),
            Err(e) if e.errno == Errno::ENOENT => Ok(EntryState::Undone),
            // A module of the kernel's own that somebody else came to use, or that cannot be
            // unloaded at all (EBUSY): it does no harm, and taking it would.
            Err(e)
                if matches!(origin, ModuleOrigin::Kernel { .. })
                    && matches!(e.errno, Errno::EAGAIN | Errno::EBUSY) =>
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

/// A question to the host failed before anything was undone.
fn not_looked(error: &VerbError) -> NotUndone {
    let what = "everything, for it could not be seen whether the driver is in use".to_owned();
    NotUndone::Left(vec![Left { what, why: error.to_string() }])
}

/// What was undone stays undone where that cannot be written: the next undo finds it gone. Whoever
/// ends the life writes the state once more, and fails with what keeps it from being written.
pub(super) fn record(journal: &mut Journal, seq: u64, state: EntryState) {
    if let Err(failure) = journal.mark(seq, state) {
        tracing::warn!("{}", failure.one_line());
    }
}

fn mounted_by_others(target: &Path) -> EntryState {
    let why = "somebody mounted something else in its place";
    tracing::warn!("{} stays mounted: {why}", target.display());
    EntryState::Kept(why.to_owned())
}

/// Whether what is seen at `target` is another directory than `source`; where the source is gone
/// that cannot be told.
fn is_another(host: &dyn Host, source: &Path, target: &Path) -> Result<bool, VerbError> {
    Ok(host.dir(source)?.is_some_and(|wanted| host.dir(target).is_ok_and(|d| d != Some(wanted))))
}

fn undo_mount(host: &dyn Host, target: &Path, count: usize) -> Result<(), VerbError> {
    match host.mounts_on(target)?.checked_sub(count) {
        None | Some(0) => Ok(()),
        Some(1) => match host.unmount(target) {
            Err(e) if e.errno == Errno::EBUSY => {
                tracing::warn!("{e}: detaching it, it vanishes when its last user goes");
                host.detach(target)
            }
            result => result,
        },
        // Somebody mounted over ours: the topmost is not ours to take.
        Some(_) => Err(VerbError::new(
            "unmount (something else is mounted on top of it)",
            target.display().to_string(),
            Errno::EBUSY,
        )),
    }
}

fn undo_node(host: &dyn Host, node: &NodeBefore) -> Result<(), VerbError> {
    match host.node(&node.path)? {
        Some(there) if there.same_device(&node.made) => host.remove_file(&node.path)?,
        Some(_) => return Ok(()),
        None => {}
    }
    node.was.map_or(Ok(()), |was| host.make_node(&node.path, was))
}

/// Removes the directories we made, innermost first; one that others put something into or
/// mounted something on stays.
fn undo_dirs(host: &dyn Host, dirs: &[PathBuf]) -> Result<EntryState, VerbError> {
    for dir in dirs.iter().rev() {
        if !host.has_dir(dir)? {
            continue;
        }
        match host.remove_dir(dir) {
            Err(e) if matches!(e.errno, Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY) => {
                tracing::warn!("{} stays: others put something there", dir.display());
                return Ok(EntryState::Kept(e.to_string()));
            }
            result => result?,
        }
    }
    Ok(EntryState::Undone)
}
