//! The record on disk of what was done to the host, for undoing it.
//!
//! `/run/nvidia/longshore/state.json`, written whole by temporary name, fsync and rename. Every
//! step's intent, with what was there before, is on disk before the step acts, so whoever finds
//! the file can undo what its writer did, wherever the writer died. That a step acted is written with
//! the next one's intent.

mod host_root;
mod lock;
mod record;
mod state_file;
mod transitions;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::config::Paths;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::lifecycle::phase::Phase;
use crate::store::write_remedy;

pub use host_root::HostRoot;
pub use lock::{Holder, Lock, holder};
pub use record::{Before, Entry, EntryState, FORMAT, NodeBefore, PlanSummary, Refused, State};
#[cfg(test)]
pub(crate) use state_file::Point;
use state_file::StateFile;

/// The state file, held open for changes by the one agent that holds the lock.
#[derive(Debug)]
pub struct Journal {
    state: State,
    place: Place,
    /// Whether the state has something that is not in the file: settled, or a write that failed.
    unwritten: bool,
}

#[derive(Debug)]
enum Place {
    Dir { file: StateFile, lock: Lock },
    Memory,
}

impl Journal {
    /// Takes the lock, then reads the state; entries of another boot are void and dropped.
    ///
    /// # Errors
    /// 15 where another agent holds the lock, the directory cannot be read or written, a newer
    /// longshore wrote the state, or its entries are below a host root that is not the one now; 13
    /// where the state cannot be understood.
    pub fn open(paths: &Paths) -> Result<Self, Failure> {
        Self::try_open(paths)?.map_err(|holder| holder.into_failure(&paths.state, Duration::ZERO))
    }

    /// As [`Journal::open`]; the inner error is who holds the lock.
    ///
    /// # Errors
    /// As there.
    pub fn try_open(paths: &Paths) -> Result<Result<Self, Holder>, Failure> {
        let dir = &paths.state;
        let file = StateFile::open(dir).map_err(|e| unwritable(dir, e))?;
        let lock = match Lock::take(dir)? {
            Ok(lock) => lock,
            Err(holder) => return Ok(Err(holder)),
        };
        let boot_id = boot_id(&paths.root);
        let mut state = read_state(dir)?.unwrap_or_else(|| State::fresh(boot_id.clone()));
        if state.is_of_another_boot(boot_id.as_deref()) {
            let void = state.entries.iter().filter(|entry| entry.is_live()).count();
            tracing::info!("the host was booted since: {void} entries of the last boot are void");
            state = State::fresh(boot_id.clone());
        }
        let host_root = HostRoot::of(paths);
        match &state.host_root {
            Some(then) if state.entries.iter().any(Entry::is_live) => {
                then.check(host_root.as_ref())?;
            }
            _ => state.host_root = host_root,
        }
        state.format = FORMAT;
        state.agent = std::process::id();
        state.boot_id = state.boot_id.or(boot_id);
        Ok(Ok(Self { state, place: Place::Dir { file, lock }, unwritten: false }))
    }

    /// The lock, for a child that is to hold it as long as this journal does, and longer where it
    /// hangs in the kernel. None where this journal is on no disk.
    pub fn share_lock(&self) -> Option<File> {
        let Place::Dir { lock, .. } = &self.place else { return None };
        lock.share().inspect_err(|e| tracing::warn!("sharing the lock: {e}")).ok()
    }

    /// A journal that is on no disk, for tests.
    pub fn in_memory() -> Self {
        Self { state: State::fresh(None), place: Place::Memory, unwritten: false }
    }

    /// What it holds.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        self.state.phase
    }

    /// Entries that may still have left something on the host, oldest first.
    pub fn live(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.state.entries.iter().filter(|e| e.is_live())
    }

    /// The number the next entry will get.
    pub fn next_seq(&self) -> u64 {
        self.state.entries.last().map_or(1, |e| e.seq + 1)
    }

    fn save(&mut self) -> Result<(), Failure> {
        let Place::Dir { file, .. } = &mut self.place else { return Ok(()) };
        self.unwritten = true;
        let path = file.path();
        let mut bytes = serde_json::to_vec_pretty(&self.state)
            .or_fail(ExitCode::Bug, || format!("writing {}", path.display()))?;
        bytes.push(b'\n');
        file.write(&bytes).map_err(|e| unwritable(&path, e))?;
        self.unwritten = false;
        Ok(())
    }

    /// Acts at every point of every write of the state file.
    #[cfg(test)]
    pub(crate) fn at_point(&mut self, act: state_file::AtPoint) {
        if let Place::Dir { file, .. } = &mut self.place {
            file.at_point(act);
        }
    }
}

/// Reads the state file in `dir` without taking the lock; None where there is none.
///
/// # Errors
/// As [`Journal::open`].
pub fn read_state(dir: &Path) -> Result<Option<State>, Failure> {
    match state_file::read(dir) {
        (path, Ok(Some(bytes))) => parse_state(&path, &bytes).map(Some),
        (_, Ok(None)) => Ok(None),
        (path, Err(e)) => Err(unread(&path, e)),
    }
}

/// When the state file in `dir` was last written; None where there is none.
pub fn written(dir: &Path) -> Option<jiff::Timestamp> {
    let time = fs::metadata(dir.join("state.json")).and_then(|meta| meta.modified()).ok()?;
    time.try_into().ok()
}

/// The running kernel's boot id, from a /proc below `root`.
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
        serde_json::from_slice(bytes).map_err(|e| unreadable(path).because(e))?;
    if format < 1 {
        return Err(unreadable(path).because(format!("there is no format {format}")));
    }
    if format > FORMAT {
        return Err(Failure::new(
            ExitCode::Preflight,
            format!(
                "{} has format {format}, and this longshore knows formats up to {FORMAT}",
                path.display()
            ),
        )
        .remedy("a newer longshore wrote it: use that one; nothing was touched"));
    }
    serde_json::from_slice(bytes).map_err(|e| unreadable(path).because(e))
}

fn unread(path: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--state-dir")
        .unwrap_or_else(|| "check the file system of --state-dir".to_owned());
    Failure::new(ExitCode::Preflight, format!("reading {}", path.display()))
        .because(error)
        .remedy(remedy)
}

fn unreadable(path: &Path) -> Failure {
    Failure::new(
        ExitCode::Verification,
        format!("{} cannot be understood as a longshore state file", path.display()),
    )
    .remedy(
        "it records what an agent did to this host, so it is not overwritten: look at what is \
         loaded and mounted, take it off by hand, move the file away and start again; a reboot \
         clears it, too",
    )
}

fn unwritable(path: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--state-dir").unwrap_or_else(|| {
        "--state-dir must be a directory on the host's /run that this process may write (mount \
         /run/nvidia into the container with rshared propagation)"
            .to_owned()
    });
    Failure::new(ExitCode::Preflight, format!("writing {}", path.display()))
        .because(error)
        .remedy(remedy)
}

#[cfg(test)]
mod tests;
