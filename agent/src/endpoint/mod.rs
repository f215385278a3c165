//! Places that an agent serves on, for `longshore status` and probes to find: `agent.sock` and `serving.json` in
//! its state directory, which only root can enter.

pub mod client;
mod socket;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::config::{Listen, SOCKET};
use crate::journal::Lock;
use crate::journal::private_dir::PrivateDir;
use longshore_core::disk::Disk;
use longshore_host::values::DirId;

const NAME: &str = "serving.json";
const MOST_BYTES: u64 = 4 << 10;

/// Identity of the agent that serves in a state directory, and the further address of its metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// Value of the header `longshore-agent` in every answer of that agent.
    pub agent: String,
    /// Address of its metrics in the form of the setting `listen`, with the actual port; None while it listens
    /// on none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
}

impl Serving {
    /// Reads what an agent has written into its state directory; None if there is nothing that can be parsed.
    ///
    /// # Errors
    /// The directory cannot be opened or read, or others can have written there.
    pub fn read(state_dir: &Path) -> io::Result<Option<Self>> {
        match PrivateDir::open(state_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            dir => Self::read_in(&dir?),
        }
    }

    fn read_in(dir: &PrivateDir) -> io::Result<Option<Self>> {
        Ok(dir.read(NAME, MOST_BYTES)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}

/// Removes what an agent that has ended served with. The caller holds the lock of the state directory.
pub fn forget(state_dir: &Path) {
    for name in [NAME, SOCKET] {
        remove_file(&state_dir.join(name));
    }
}

/// Publication of an agent's places in its state directory, from the moment at which the directory is its own.
#[derive(Debug)]
pub(crate) struct Publication {
    agent: String,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    listen: Option<String>,
    /// Path of a further socket that was made, and its device and inode.
    further: Option<(PathBuf, DirId)>,
    /// The state directory, and the disk that it is on.
    dir: Option<(PathBuf, Disk)>,
    /// Device and inode of the agent's socket.
    socket: Option<DirId>,
}

impl Publication {
    pub(crate) fn new(agent: String) -> Self {
        Self { agent, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the further address that metrics are served on.
    pub(crate) fn listening(&self, listen: &Listen) {
        let mut known = self.known();
        known.listen = Some(listen.to_string());
        if let Listen::Unix(path) = listen {
            known.further = file(path).map(|id| (path.clone(), id));
        }
        self.write(&known);
    }

    /// Sets the state directory, which is this agent's now, and its disk. What an agent that was killed left
    /// there goes.
    pub(crate) fn publish(&self, dir: &Path, disk: Disk) {
        forget(dir);
        let mut known = self.known();
        known.dir = Some((dir.to_path_buf(), disk));
        self.write(&known);
    }

    /// Makes the agent's socket in the state directory `dir`, in place of that of an agent that has ended:
    /// this one holds the lock.
    ///
    /// # Errors
    /// The directory is not this user's alone, or the socket cannot be made.
    pub(crate) fn bind(&self, dir: &Path) -> io::Result<UnixListener> {
        let (listener, id) = socket::bind(&PrivateDir::open(dir)?)?;
        self.known().socket = Some(id);
        Ok(listener)
    }

    /// Removes all of it once the server has ended. The next agent may have begun, and made its own in its place:
    /// then it holds the lock, and nothing is removed.
    pub(crate) fn withdraw(&self) {
        let mut known = self.known();
        known.listen = None;
        if let Some((path, id)) = known.further.take()
            && file(&path) == Some(id)
        {
            remove_file(&path);
        }
        let Some((dir, _)) = known.dir.take() else { return };
        let Ok(Ok(_lock)) = Lock::take(&dir) else { return };
        if Serving::read(&dir).is_ok_and(|found| found.is_some_and(|it| it.agent == self.agent)) {
            remove_file(&dir.join(NAME));
        }
        if known.socket.take().is_some_and(|id| file(&dir.join(SOCKET)) == Some(id)) {
            remove_file(&dir.join(SOCKET));
        }
    }

    fn write(&self, known: &Known) {
        let Some((dir, disk)) = &known.dir else { return };
        let serving = Serving { agent: self.agent.clone(), listen: known.listen.clone() };
        let written = serde_json::to_vec(&serving)
            .map_err(io::Error::other)
            .and_then(|bytes| disk.write_atomically(&dir.join(NAME), &bytes));
        if let Err(error) = written {
            tracing::warn!(
                "`longshore status` will not show the live state, and probes fail: writing {}: {error}",
                dir.join(NAME).display()
            );
        }
    }
}

/// Returns the device and inode of the file at a path.
fn file(path: &Path) -> Option<DirId> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn remove_file(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!("removing {}: {error}", path.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
