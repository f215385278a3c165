//! Where an agent serves, for `longshore status` to find: `STATE/serving.json`.

pub mod client;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::config::Listen;
use crate::host::verbs::DirId;
use crate::input;
use crate::landing::write_atomically;

const NAME: &str = "serving.json";
const MOST_BYTES: u64 = 4 << 10;

/// Where an agent serves, and which agent it is: the same address can be another's by now, or in
/// another network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// As the setting `listen`, with the port that was taken.
    pub listen: String,
    /// What every answer of that agent has as its header `longshore-agent`.
    pub agent: String,
}

impl Address {
    /// What an agent has written into its state directory; None where there is nothing that could
    /// be understood.
    pub fn read(state_dir: &Path) -> Option<Self> {
        let bytes = input::read(&state_dir.join(NAME), MOST_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Takes away what an agent that has ended left: nobody serves there.
    pub fn forget(state_dir: &Path) {
        remove(state_dir);
    }

    /// The address itself; None where it is none.
    pub fn place(&self) -> Option<Listen> {
        self.listen.parse().ok()
    }
}

/// Written as soon as both are known, the address and the directory, whichever comes first.
#[derive(Debug)]
pub(crate) struct Publication {
    agent: String,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    listen: Option<String>,
    /// The name of a socket that was made, and which file that is.
    socket: Option<(PathBuf, DirId)>,
    dir: Option<PathBuf>,
}

impl Publication {
    pub(crate) fn new(agent: String) -> Self {
        Self { agent, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server listens there.
    pub(crate) fn bound(&self, listen: &Listen) {
        let mut known = self.known();
        known.listen = Some(listen.to_string());
        if let Listen::Unix(path) = listen {
            known.socket = file(path).map(|id| (path.clone(), id));
        }
        self.write(&known);
    }

    /// The state directory is this agent's.
    pub(crate) fn publish(&self, dir: &Path) {
        let mut known = self.known();
        known.dir = Some(dir.to_path_buf());
        // What an agent left that was killed leads to nobody, also while this one has no address yet.
        remove(dir);
        self.write(&known);
    }

    /// The server ends. The next agent may have begun, and written its own address there.
    pub(crate) fn withdraw(&self) {
        let mut known = self.known();
        known.listen = None;
        if let Some((path, id)) = known.socket.take()
            && file(&path) == Some(id)
        {
            remove_file(&path);
        }
        if let Some(dir) = known.dir.take()
            && Address::read(&dir).is_some_and(|address| address.agent == self.agent)
        {
            remove(&dir);
        }
    }

    fn write(&self, known: &Known) {
        let (Some(listen), Some(dir)) = (&known.listen, &known.dir) else { return };
        let address = Address { listen: listen.clone(), agent: self.agent.clone() };
        let written = serde_json::to_vec(&address)
            .map_err(io::Error::other)
            .and_then(|bytes| write_atomically(&dir.join(NAME), &bytes));
        if let Err(error) = written {
            tracing::warn!(
                "`longshore status` will not show what is live: writing {}: {error}",
                dir.join(NAME).display()
            );
        }
    }
}

/// Which file has that name.
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
                publication.publish(dir.path());
            }
            assert_eq!(Address::read(dir.path()), None);
            if address_first {
                publication.publish(dir.path());
            } else {
                bind();
            }
            let address = Address::read(dir.path()).expect("written");
            assert_eq!(address.place(), "127.0.0.1:1".parse().ok());
            assert_eq!(address.agent, "1-2");
            publication.withdraw();
            assert_eq!(Address::read(dir.path()), None);
            // Of an agent that was killed.
            publication.bound(&listen(1));
            publication.publish(dir.path());
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
        killed.publish(dir.path());
        ending.publish(dir.path());
        assert_eq!(Address::read(dir.path()), None, "it has no address yet");
        ending.bound(&listen(2));
        next.bound(&listen(3));
        next.publish(dir.path());
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
