//! Record on disk of the changes to the host, for undoing them.
//!
//! `state.json` in the record's directory (docs/internals/decisions/record-place.md), written whole by
//! temporary name, fsync and rename. Every step's intent, with the state before it, is on disk
//! before the step acts, so that the file's next reader can undo everything its writer did, at
//! whatever point the writer died. A step's completion is written with the next step's intent.

mod believed;
mod host_root;
mod lock;
pub mod phase;
pub(crate) mod private_dir;
mod record;
mod seal;
mod state_file;
mod table;
mod transitions;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::journal::phase::Phase;
use crate::steps::{Recorded as RecordedStep, WriteParameter, WriteStatus};
use longshore_core::disk::Disk;
use longshore_core::durable::write_remedy;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::Paths;
use longshore_core::root::Root;
use longshore_host::facts::places::{FIRMWARE_PATH, Recorded};

use private_dir::{NotOurs, PrivateDir};
use seal::Key;
use table::Table;

pub use crate::steps::EntryState;
use believed::{FoundRecord, VouchedRecord};
pub use host_root::HostRoot;
pub use lock::{Holder, Lock, holder};
pub use record::{FORMAT, JournalEntry, MadeFor, PlanSummary, Refused, State};
#[cfg(test)]
pub(crate) use state_file::Point;
use state_file::StateFile;

/// The state file, held open for changes by the one agent that holds the lock.
#[derive(Debug)]
pub struct Journal {
    state: State,
    place: Backing,
    /// True if the state has something that is not in the file: an outcome, or a write that
    /// failed.
    unwritten: bool,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
enum Backing {
    Dir { file: StateFile, key: Option<Key>, lock: Lock, table: Table, earlier: Option<Lock> },
    Memory,
}

impl Journal {
    /// Takes the lock, then reads the state, which is on `disk`; drops entries of another boot,
    /// which are void.
    ///
    /// # Errors
    /// 15 if another agent holds the lock, the directory cannot be read or written, a newer
    /// longshore wrote the state, or its entries are below a host root that is not the present one;
    /// 13 if the state cannot be parsed, or others can have written it.
    pub fn open(paths: &Paths, disk: Disk) -> Result<Self, Failure> {
        Self::try_open(paths, disk)?
            .map_err(|holder| holder.into_failure(&paths.state, Duration::ZERO))
    }

    /// Like [`Journal::open`]; the inner error is the lock's holder.
    ///
    /// # Errors
    /// As there.
    pub fn try_open(paths: &Paths, disk: Disk) -> Result<Result<Self, Holder>, Failure> {
        let dir = &paths.state;
        let file = StateFile::open(dir, disk).map_err(|e| not_opened(dir, e))?;
        let lock = match Lock::take(dir)? {
            Ok(lock) => lock,
            Err(holder) => return Ok(Err(holder)),
        };
        let mut found = believed::find(paths)?;
        let mut earlier = None;
        if let (Some(FoundRecord { earlier: true, .. }), Some(dir)) = (&found, &paths.earlier_state)
        {
            // The agent that wrote it may be running.
            match Lock::take(dir) {
                Ok(Ok(lock)) => earlier = Some(lock),
                Ok(Err(holder)) => return Ok(Err(holder)),
                // The file in the place of its lock is no agent's.
                Err(failure) => tracing::warn!("{}", failure.one_line()),
            }
            found = if earlier.is_some() { believed::find(paths)? } else { None };
        }
        if believed::is_unsealed(paths)? {
            file.set_aside().map_err(|e| unwritable(dir, e))?;
        }
        if found.is_none() {
            warn_of_passed_over(paths);
        }
        let key = key(paths, disk)?;
        let moved = found.as_ref().is_some_and(|found| found.earlier);
        let state = resumed(found.map(|found| found.state), paths)?;
        let table = Table::new(&state, paths);
        let place = Backing::Dir { file, key, lock, table, earlier };
        let mut journal = Self { state, place, unwritten: false };
        if let (true, Some(dir)) = (moved, &paths.earlier_state) {
            journal.save()?;
            remove_taken_over(dir, state_file::NAME);
        }
        Ok(Ok(journal))
    }

    /// Takes over a record without the right seal, for a person who vouches for it; false if there is
    /// none. Nothing of another boot, and nothing beyond closed lists, is taken.
    ///
    /// # Errors
    /// 15 if this journal has entries to undo, another agent holds the record's lock, or the record
    /// cannot be read or written; 13 if it has an entry that is in no list.
    pub fn take_over_unsealed(&mut self, paths: &Paths) -> Result<bool, Failure> {
        if self.live().next().is_some() {
            let why = "taking over an unsealed record: the agent's own record is not undone yet";
            return Err(Failure::new(FailureKind::Preflight, why).remedy("run `longshore unload`"));
        }
        let lock = match &paths.earlier_state {
            Some(dir) if !paths.sealed && dir.is_dir() => {
                Some(Lock::take(dir)?.map_err(|holder| holder.into_failure(dir, Duration::ZERO))?)
            }
            _ => None,
        };
        let Some(VouchedRecord { state, dir, name }) = believed::vouched(paths)? else {
            return Ok(false);
        };
        let state = resumed(Some(state), paths)?;
        if let Backing::Dir { table, earlier, .. } = &mut self.place {
            *table = Table::new(&state, paths);
            *earlier = lock;
        }
        self.state = state;
        self.save()?;
        remove_taken_over(&dir, name);
        Ok(true)
    }

    /// Returns the lock, for a child that is to hold it as long as this journal does, and longer if
    /// the child hangs in the kernel. None if this journal is not on disk.
    pub fn share_lock(&self) -> Option<File> {
        let Backing::Dir { lock, .. } = &self.place else { return None };
        lock.share().inspect_err(|e| tracing::warn!("sharing the lock: {e}")).ok()
    }

    /// Returns a journal that is not on disk, for tests.
    pub fn in_memory() -> Self {
        Self { state: State::fresh(None), place: Backing::Memory, unwritten: false }
    }

    /// Gives the disk that the state is written to another deadline from now on.
    pub fn follow_disk(&mut self, disk: Disk) {
        if let Backing::Dir { file, .. } = &mut self.place {
            file.disk = disk;
        }
    }

    /// Returns the state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the phase.
    pub fn phase(&self) -> Phase {
        self.state.phase
    }

    /// Returns the entries that may still have an effect on the host, oldest first.
    pub fn live(&self) -> impl DoubleEndedIterator<Item = &JournalEntry> {
        self.state.entries.iter().filter(|e| e.is_live())
    }

    /// Returns the number of the next entry.
    pub fn next_seq(&self) -> u64 {
        self.state.entries.last().map_or(1, |e| e.seq + 1)
    }

    /// Refuses a step that this program never records: the next agent would not trust it.
    fn check(&self, step: &RecordedStep) -> Result<(), Failure> {
        let Backing::Dir { table, .. } = &self.place else { return Ok(()) };
        table.entry(step).map_err(|why| {
            Failure::new(FailureKind::Bug, format!("recording the intent of a step: {why}"))
        })
    }

    fn save(&mut self) -> Result<(), Failure> {
        let Backing::Dir { file, key, .. } = &mut self.place else { return Ok(()) };
        self.unwritten = true;
        let path = file.path();
        let mut bytes = serde_json::to_vec_pretty(&self.state)
            .or_fail(FailureKind::Bug, || format!("writing {}", path.display()))?;
        bytes.push(b'\n');
        if let Some(key) = key {
            bytes = key.seal(bytes);
        }
        file.write(&bytes).map_err(|e| unwritable(&path, e))?;
        self.unwritten = false;
        Ok(())
    }

    /// Calls `act` at every point of every write of the state file.
    #[cfg(test)]
    pub(crate) fn at_point(&mut self, act: state_file::AtPoint) {
        if let Backing::Dir { file, .. } = &mut self.place {
            file.at_point(act);
        }
    }
}

/// Removes a record that is in its new place by now.
fn remove_taken_over(dir: &Path, name: &str) {
    match PrivateDir::open(dir).and_then(|dir| dir.remove(name)) {
        Ok(()) => tracing::info!("took over the last agent's record from {}", dir.display()),
        // From now on only the new one is read.
        Err(error) => tracing::warn!("removing the record in {}: {error}", dir.display()),
    }
}

/// Warns of a record that is passed over because it has no seal by this store's key.
pub fn warn_of_passed_over(paths: &Paths) {
    if let Some(failure) = believed::passed_over(paths) {
        let remedy = failure.remedy_text().unwrap_or_default();
        tracing::warn!("{}; {remedy}", failure.one_line());
    }
}

/// Returns the state for an agent to continue with; a state of another boot is void.
fn resumed(found: Option<State>, paths: &Paths) -> Result<State, Failure> {
    let boot_id = boot_id(&paths.root);
    let mut state = found.unwrap_or_else(|| State::fresh(boot_id.clone()));
    if state.is_of_another_boot(boot_id.as_deref()) {
        let void = state.entries.iter().filter(|entry| entry.is_live()).count();
        tracing::info!("the host was booted since: {void} entries of the last boot are void");
        state = State::fresh(boot_id.clone());
    }
    let host_root = HostRoot::look_up(paths);
    match &state.host_root {
        Some(then) if state.entries.iter().any(JournalEntry::is_live) => {
            then.check(host_root.as_ref())?;
        }
        _ => state.host_root = host_root,
    }
    state.format = FORMAT;
    state.agent = std::process::id();
    state.boot_id = state.boot_id.or(boot_id);
    state.follow_places(paths);
    Ok(state)
}

/// Returns the key to seal the record with; None if it needs no seal.
fn key(paths: &Paths, disk: Disk) -> Result<Option<Key>, Failure> {
    if !paths.sealed {
        return Ok(None);
    }
    let made = Key::find_or_make(&paths.store, disk);
    made.map(Some).map_err(|e| believed::no_key(&paths.store, e))
}

/// Reads the state without taking the lock; None if there is none.
///
/// # Errors
/// Like [`Journal::open`].
pub fn read_state(paths: &Paths) -> Result<Option<State>, Failure> {
    Ok(believed::find(paths)?.map(|found| found.state))
}

/// Changes to the driver root that the record of this boot has. A record that cannot be read counts as
/// none here: opening the journal fails on it.
pub fn recorded(paths: &Paths) -> Recorded {
    let Ok(root) = Root::open(&paths.root) else { return Recorded::default() };
    let state = read_state(&paths.record_below(&root)).ok().flatten();
    let boot = boot_id(&paths.root);
    let state = state.filter(|state| !state.is_of_another_boot(boot.as_deref()));
    let entries = state.map(|state| state.entries).unwrap_or_default();
    let mut recorded = Recorded::default();
    for entry in entries.into_iter().filter(JournalEntry::is_live) {
        let point = entry.step.mounted().and_then(|mount| mount.point());
        recorded.mounts.extend(point.map(Path::to_path_buf));
        if let Some(WriteStatus { path, confirmed_by, .. }) = WriteStatus::recorded(&entry.step) {
            recorded.files.extend([path].into_iter().chain(confirmed_by).cloned());
        }
        let written = WriteParameter::recorded(&entry.step);
        recorded.firmware_path |= written.is_some_and(|it| it.path == Path::new(FIRMWARE_PATH));
    }
    recorded
}

/// Returns the time of the last write of the state file in `dir`; None if there is none.
pub fn written(dir: &Path) -> Option<jiff::Timestamp> {
    let time = fs::metadata(dir.join("state.json")).and_then(|meta| meta.modified()).ok()?;
    time.try_into().ok()
}

/// Returns the running kernel's boot id, from a /proc below `root`.
pub fn boot_id(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned())
}

fn parse_state(path: &Path, bytes: &[u8]) -> Result<State, Failure> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let Format { format } =
        serde_json::from_slice(bytes).map_err(|e| unreadable(path).with_source(e))?;
    if format < 1 {
        return Err(unreadable(path).with_source(format!("there is no format {format}")));
    }
    if format > FORMAT {
        return Err(Failure::new(
            FailureKind::Preflight,
            format!(
                "{} has format {format}, and this longshore knows formats up to {FORMAT}",
                path.display()
            ),
        )
        .remedy("a newer longshore wrote it: use that one; nothing was changed"));
    }
    if let Some(why) = record::mismatch(bytes) {
        return Err(believed::forged(path, &why));
    }
    serde_json::from_slice(bytes).map_err(|e| unreadable(path).with_source(e))
}

fn unreadable(path: &Path) -> Failure {
    Failure::new(
        FailureKind::Verification,
        format!("{} cannot be understood as a longshore state file", path.display()),
    )
    .remedy(
        "it records what an agent did to this host, so it is not overwritten: look at what is \
         loaded and mounted, remove it by hand, move the file away and start again; a reboot \
         clears it, too",
    )
}

fn not_opened(dir: &Path, error: io::Error) -> Failure {
    if NotOurs::is_cause_of(&error) {
        return believed::forged(dir, &error.to_string());
    }
    unwritable(dir, error)
}

fn unwritable(path: &Path, error: io::Error) -> Failure {
    let remedy = "--state-dir must be a directory on the host's /run that this process may write \
                  (mount /run/longshore into the container, -v /run/longshore:/run/longshore)";
    inaccessible(format!("writing {}", path.display()), error, "--state-dir", remedy)
}

/// Failure of an access to the directory that the setting `flag` names.
fn inaccessible(cause: String, error: io::Error, flag: &str, remedy: &str) -> Failure {
    let remedy = write_remedy(&error, flag).unwrap_or_else(|| remedy.to_owned());
    Failure::new(FailureKind::Preflight, cause).with_source(error).remedy(remedy)
}

#[cfg(test)]
mod tests;
