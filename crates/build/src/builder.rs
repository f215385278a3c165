//! Description of a running build, for processes that wait for it on the same host or on others.

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Length to which names from other processes are cut.
const MOST_SHOWN: usize = 128;

/// A process that builds.
#[derive(Debug, Clone, PartialEq, Eq, Display, Serialize, Deserialize)]
#[display(
    "{} (pid {pid}, since {}), which builds {}",
    self.shown_host(), since.strftime("%Y-%m-%d %H:%M:%S UTC"), shown(what)
)]
pub struct Builder {
    /// Host name (`uname -n`): in a container that of the container or the pod.
    pub host: String,
    /// Process id in its own PID namespace.
    pub pid: u32,
    /// Start time by its own clock: for people only.
    pub since: Timestamp,
    /// Name of the build, for example `535.261.03-open-6.1.0-50-amd64-x86_64`.
    pub what: String,
}

impl Builder {
    /// Returns a description of this process, starting now.
    pub fn here(what: impl Into<String>) -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        Self {
            host: host.to_string_lossy().into_owned(),
            pid: std::process::id(),
            since: Timestamp::now(),
            what: what.into(),
        }
    }

    /// Returns the host's name, escaped and shortened, because another process wrote it.
    pub fn shown_host(&self) -> String {
        shown(&self.host)
    }
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_builder_is_told_by_host_process_time_and_work() {
        let since = Timestamp::from_second(1_790_000_000).expect("a time");
        let (host, what) = ("node-\x1b[2J3".to_owned(), "w".repeat(200));
        let shown = Builder { host, pid: 812, since, what }.to_string();
        let wanted = "node-[2J3 (pid 812, since 2026-09-21 14:13:20 UTC), which builds w";
        assert!(shown.starts_with(wanted), "{shown}");
        assert!(shown.len() < 220 && !shown.contains('\x1b'), "{shown}");
    }
}
