//! Address of an agent's server, for `longshore status` to find: `STATE/serving.json`.

pub mod client;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::config::Listen;
use longshore_core::bounded_read;
use longshore_core::disk::Disk;
use longshore_host::verbs::DirId;

const NAME: &str = "serving.json";
const MOST_BYTES: u64 = 4 << 10;

/// Address of an agent's server, and the agent's identity: the same address can be another's by
/// now, or in another network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Address in the form of the setting `listen`, with the actual port.
    pub listen: String,
    /// Value of the header `longshore-agent` in every answer of that agent.
    pub agent: String,
}

impl Address {
    /// Reads the address that an agent has written into its state directory; None if there is none
    /// that can be parsed.
    pub fn read(state_dir: &Path) -> Option<Self> {
        let bytes = bounded_read::read(&state_dir.join(NAME), MOST_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Removes the address of an agent that has ended: it serves no more.
    pub fn forget(state_dir: &Path) {
        remove(state_dir);
    }

    /// Returns the address itself; None if it is invalid.
    pub fn place(&self) -> Option<Listen> {
        self.listen.parse().ok()
    }
}

/// Publication of the address, written as soon as both the address and the directory are known,
/// whichever comes first.
#[derive(Debug)]
pub(crate) struct Publication {
    agent: String,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    listen: Option<String>,
    /// Path of a socket that was made, and its device and inode.
    socket: Option<(PathBuf, DirId)>,
    /// The state directory, and the disk that it is on.
    dir: Option<(PathBuf, Disk)>,
}

impl Publication {
    pub(crate) fn new(agent: String) -> Self {
        Self { agent, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the address that the server listens on.
    pub(crate) fn bound(&self, listen: &Listen) {
        let mut known = self.known();
        known.listen = Some(listen.to_string());
        if let Listen::Unix(path) = listen {
            known.socket = file(path).map(|id| (path.clone(), id));
        }
        self.write(&known);
    }

    /// Sets the state directory, which is this agent's now, and its disk.
    pub(crate) fn publish(&self, dir: &Path, disk: Disk) {
        let mut known = self.known();
        known.dir = Some((dir.to_path_buf(), disk));
        // The address of an agent that was killed is of no use, also while this one has no address
        // yet.
        remove(dir);
        self.write(&known);
    }

    /// Removes the address as the server ends. The next agent may have begun, and written its own
    /// there.
    pub(crate) fn withdraw(&self) {
        let mut known = self.known();
        known.listen = None;
        if let Some((path, id)) = known.socket.take()
            && file(&path) == Some(id)
        {
            remove_file(&path);
        }
        if let Some((dir, _)) = known.dir.take()
            && Address::read(&dir).is_some_and(|address| address.agent == self.agent)
        {
            remove(&dir);
        }
    }

    fn write(&self, known: &Known) {
        let (Some(listen), Some((dir, disk))) = (&known.listen, &known.dir) else { return };
        let address = Address { listen: listen.clone(), agent: self.agent.clone() };
        let written = serde_json::to_vec(&address)
            .map_err(io::Error::other)
            .and_then(|bytes| disk.write_atomically(&dir.join(NAME), &bytes));
        if let Err(error) = written {
            tracing::warn!(
                "`longshore status` will not show the live state: writing {}: {error}",
                dir.join(NAME).display()
            );
        }
    }
}

/// Returns the device and inode of the file at a path.
fn file(path: &Path) -> Option<DirId> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn remove(dir: &Path) {
    remove_file(&dir.join(NAME));
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
mod tests {
    use super::*;

    fn listen(port: u16) -> Listen {
        format!("127.0.0.1:{port}").parse().expect("an address")
    }

    #[test]
    fn it_is_written_once_both_are_known_and_gone_in_the_end() {
        for address_first in [false, true] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let publication = Publication::new("1-2".into());
            let bind = || publication.bound(&listen(1));
            if address_first {
                bind();
            } else {
                publication.publish(dir.path(), Disk::default());
            }
            assert_eq!(Address::read(dir.path()), None);
            if address_first {
                publication.publish(dir.path(), Disk::default());
            } else {
                bind();
            }
            let address = Address::read(dir.path()).expect("written");
            assert_eq!(address.place(), "127.0.0.1:1".parse().ok());
            assert_eq!(address.agent, "1-2");
            publication.withdraw();
            assert_eq!(Address::read(dir.path()), None);
            // As of an agent that was killed.
            publication.bound(&listen(1));
            publication.publish(dir.path(), Disk::default());
            assert!(Address::read(dir.path()).is_some());
            Address::forget(dir.path());
            assert_eq!(Address::read(dir.path()), None);
        }
    }

    #[test]
    fn what_a_killed_agent_left_goes_and_what_the_next_one_wrote_stays() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let of = |agent: &str| Publication::new(agent.into());
        let (killed, ending, next) = (of("1-1"), of("1-2"), of("1-3"));
        killed.bound(&listen(1));
        killed.publish(dir.path(), Disk::default());
        ending.publish(dir.path(), Disk::default());
        assert_eq!(Address::read(dir.path()), None, "it has no address yet");
        ending.bound(&listen(2));
        next.bound(&listen(3));
        next.publish(dir.path(), Disk::default());
        ending.withdraw();
        let agent = Address::read(dir.path()).map(|address| address.agent);
        assert_eq!(agent.as_deref(), Some("1-3"));
    }

    #[test]
    fn garbage_is_no_address() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for text in ["", "{", "[1]", "{\"listen\":1}"] {
            fs::write(dir.path().join(NAME), text).expect("write");
            assert_eq!(Address::read(dir.path()), None, "{text}");
        }
    }
}
