//! Daemons and their processes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

use nix::errno::Errno;

use super::RealHost;
use crate::daemon::output::LastLine;
use crate::daemon::process::IdentifiedProcess;
use crate::daemon::{Daemon, Settings, process};
use crate::verbs::VerbError;

impl RealHost {
    pub(super) fn lock_daemons(&self) -> MutexGuard<'_, BTreeMap<String, LastLine>> {
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the daemon with its paths below the root.
    pub(super) fn daemon_at(&self, daemon: &Daemon) -> Daemon {
        Daemon {
            program: self.at(&daemon.program),
            libraries: self.at(&daemon.libraries),
            socket: self.at(&daemon.socket),
            settings: daemon.settings.as_ref().map(|settings| Settings {
                template: self.at(&settings.template),
                file: self.at(&settings.file),
                set: settings.set.clone(),
            }),
            ..daemon.clone()
        }
    }

    /// Sets the processes that were last found with the mark.
    #[cfg(test)]
    pub(crate) fn remember(&self, mark: &str, found: &[IdentifiedProcess]) {
        let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(mark.to_owned(), copied(found).unwrap());
    }

    /// Returns the processes with the mark. If a hanging process prevents the search, returns those
    /// that were found last and still run.
    pub(super) fn marked(&self, mark: &str) -> Result<Vec<IdentifiedProcess>, VerbError> {
        let (root, wanted) = (self.processes.clone(), mark.to_owned());
        let looked = self.marks.look("marks", self.look, move || process::find(&root, &wanted));
        let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match looked {
            Ok(found) => {
                let found = found.map_err(|e| in_proc(&e))?;
                known.remove(mark);
                if !found.is_empty() {
                    known.insert(mark.to_owned(), copied(&found)?);
                }
                Ok(found)
            }
            Err(unseen) => {
                let last = copied(known.get(mark).map_or(&[], Vec::as_slice))?;
                let alive: Vec<_> =
                    last.into_iter().filter(|(_, fd)| process::is_alive(fd)).collect();
                if alive.is_empty() {
                    let subject = format!("the processes of a daemon in /proc ({unseen})");
                    return Err(VerbError::new("look for", subject, Errno::ETIMEDOUT));
                }
                tracing::warn!("searching for daemons: {unseen}; using those found before");
                Ok(alive)
            }
        }
    }
}

fn copied(found: &[IdentifiedProcess]) -> Result<Vec<IdentifiedProcess>, VerbError> {
    let copy = |(pid, fd): &IdentifiedProcess| Ok((*pid, fd.try_clone().map_err(|e| in_proc(&e))?));
    found.iter().map(copy).collect()
}

fn in_proc(error: &io::Error) -> VerbError {
    VerbError::on_path("read", Path::new("/proc"), error)
}
