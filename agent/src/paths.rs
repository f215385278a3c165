//! Directories and files that the agent works with.

use std::path::{Path, PathBuf};

use crate::root::Root;

/// The driver root where nothing else is said.
pub(crate) const DRIVER_ROOT: &str = "/run/nvidia/driver";
/// The store where nothing else is said.
pub(crate) const STORE: &str = "/var/lib/longshore";

/// Where things lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Content-addressed store; default `/var/lib/longshore`.
    pub store: PathBuf,
    /// Lock, state and journal; by default the host's `/run/longshore`, where that can be had.
    pub state: PathBuf,
    /// Whether others can write to the state's directory, so that the record there has a seal.
    pub sealed: bool,
    /// Where an earlier agent may have left its record.
    pub earlier_state: Option<PathBuf>,
    /// Driver root; default `/run/nvidia/driver`.
    pub driver_root: PathBuf,
    /// Root of the tree that /proc and /sys are read from; `/` but for captured trees.
    pub root: PathBuf,
    /// Root of the host's own file system (its /lib/modules, /etc, /dev): `/` on the host itself,
    /// `/proc/1/root` in a container that shares the host's PID namespace.
    pub host_root: PathBuf,
    /// Whether a record may have any entry, in tests whose steps are none of a real host.
    #[cfg(test)]
    pub any_entry: bool,
}

impl Paths {
    /// The same with the record's places as they are seen from outside of a captured tree.
    #[must_use]
    pub fn record_below(&self, root: &Root) -> Self {
        Self {
            state: root.display(&self.state),
            earlier_state: self.earlier_state.as_ref().map(|dir| root.display(dir)),
            ..self.clone()
        }
    }

    /// All of them below `dir`, for tests.
    #[cfg(test)]
    pub(crate) fn below(dir: &Path) -> Self {
        Self {
            store: dir.join("store"),
            state: dir.join("run"),
            sealed: false,
            earlier_state: None,
            driver_root: dir.join("driver"),
            root: dir.to_path_buf(),
            host_root: dir.to_path_buf(),
            any_entry: true,
        }
    }

    /// Whether the facts come from a captured tree instead of the machine this runs on.
    pub fn is_captured(&self) -> bool {
        self.root != Path::new("/")
    }
}
