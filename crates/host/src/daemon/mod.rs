//! Daemons of a driver, as processes of the host.
//!
//! A daemon is identified by a **mark**, a random word in the environment that it is started with.
//! Every process it forks inherits it, no other process on the host has it, and the kernel shows it
//! for as long as the process runs. So one word in the journal, written before the daemon is
//! started, proves to the successor of a killed agent which processes longshore started: there is
//! no PID, which may be reused by then, no PID file, and no moment in between without a record.

pub(crate) mod output;
pub mod process;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use derive_more::Display;
use longshore_core::digest::hex;
use longshore_core::paths::DAEMONS;
use serde::{Deserialize, Serialize};

/// Directory of further files of the subnet manager's package, named in its settings: nvlsm.conf
/// has `plugin_options -grpc_mgr --config_file /usr/share/nvidia/nvlsm/grpc_mgr.conf`, and without
/// that plugin nothing listens on its socket.
pub const SUBNET_SETTINGS: &str = "/usr/share/nvidia/nvlsm";
/// The environment variable that holds the mark.
pub const MARK_VARIABLE: &str = "LONGSHORE_DAEMON";

/// Socket on which clients expect nvidia-persistenced (its sources' nvpd_defs.h).
pub const PERSISTENCED_SOCKET: &str = "/run/nvidia-persistenced/socket";
/// Socket on which clients expect the fabric manager.
pub const FABRICMANAGER_SOCKET: &str = "/run/nvidia-fabricmanager/socket";

/// A daemon of the driver.
///
/// Two are equal if they run the same program the same way: the agent's time limits for it are not
/// compared.
#[derive(Debug, Clone, Eq, Display, Serialize, Deserialize)]
#[display("{name}")]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// Its name, for example `nvidia-persistenced`.
    pub name: String,
    /// Absolute path of its program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The directory of the driver's libraries.
    pub libraries: PathBuf,
    /// The socket that it answers on once it is ready.
    pub socket: PathBuf,
    /// The file of settings that is written for it before it starts.
    pub settings: Option<Settings>,
    /// The capabilities its processes keep, for example `CAP_SYS_ADMIN`.
    pub capabilities: Vec<String>,
    /// True if the driver is not ready without it.
    pub required: bool,
    /// Time limit until it answers, in seconds.
    pub ready_within: u64,
}

/// A file of `KEY=value` lines that a daemon reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The file that comes with the driver.
    pub template: PathBuf,
    /// Settings that differ from the template.
    pub set: Vec<(String, String)>,
    /// Path of the result, in a directory that others cannot write to; only the daemon reads it.
    pub file: PathBuf,
}

impl PartialEq for Daemon {
    fn eq(&self, other: &Self) -> bool {
        let what = |d: &Self| {
            let Daemon { name, program, arguments, libraries, socket, settings, .. } = d.clone();
            (name, program, arguments, libraries, socket, settings)
        };
        what(self) == what(other)
    }
}

impl Daemon {
    /// Returns the files that it has in the agent's private directory for daemons: its settings, and
    /// those that arguments and settings name.
    pub fn private_files(&self) -> Vec<&Path> {
        let settings = self.settings.iter();
        let words =
            settings.clone().flat_map(|settings| settings.set.iter().map(|(_, value)| value));
        let words = self.arguments.iter().chain(words).map(Path::new);
        let mut files: Vec<&Path> = settings.map(|it| it.file.as_path()).chain(words).collect();
        files.retain(|file| {
            let dir = file.parent().and_then(Path::file_name);
            file.is_absolute() && dir == Some(DAEMONS.as_ref())
        });
        files.sort();
        files.dedup();
        files
    }

    /// Time limit until it answers.
    pub fn start_limit(&self) -> Duration {
        Duration::from_secs(self.ready_within)
    }
}

/// Returns a new mark: 128 random bits of the kernel (getrandom(2)), which no other process can
/// guess.
///
/// # Errors
/// If the kernel has none, or a filter of system calls forbids it.
pub fn new_mark() -> io::Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(hex(&bits))
}

/// Observed state of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonStatus {
    /// The processes that have its mark, in the agent's PID namespace.
    pub processes: Vec<u32>,
    /// The process that answers on its socket.
    pub answers: Answers,
    /// Its last output, and its exit status, if known.
    pub last_output: Option<String>,
}

/// The process that answers on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// Nobody.
    Nobody,
    /// A process with the mark.
    Ours,
    /// Another process, with its pid (0 for one in another PID namespace).
    Other(u32),
}

/// A signal that ends a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// SIGTERM: it can clean up.
    Term,
    /// SIGKILL: it cannot.
    Kill,
}
