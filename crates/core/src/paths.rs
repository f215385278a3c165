//! Directories and files that the agent works with.

use std::path::{Path, PathBuf};

use crate::root::Root;

/// Default driver root.
pub const DRIVER_ROOT: &str = "/run/nvidia/driver";
/// Default directory of the record.
pub const STATE: &str = "/run/longshore";
/// Default store.
pub const STORE: &str = "/var/lib/longshore";
/// Name of the directory with the files of the driver's daemons.
pub const DAEMONS: &str = "daemons";

/// Directories of longshore and of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Content-addressed store; default `/var/lib/longshore`.
    pub store: PathBuf,
    /// Lock, state and journal; default the host's `/run/longshore`, where that is reachable.
    pub state: PathBuf,
    /// True if others can write to `state`, so that the record there is sealed.
    pub sealed: bool,
    /// Directory that an earlier agent may have left its record in.
    pub earlier_state: Option<PathBuf>,
    /// Driver root; default `/run/nvidia/driver`.
    pub driver_root: PathBuf,
    /// Root of the tree that /proc and /sys are read from; `/` except for captured trees.
    pub root: PathBuf,
    /// Root of the host's own file system (its /lib/modules, /etc, /dev): `/` on the host itself,
    /// `/proc/1/root` in a container that shares the host's PID namespace.
    pub host_root: PathBuf,
    /// True to accept any entry in a record: for tests whose steps are not those of a real host.
    #[cfg(any(test, feature = "testing"))]
    pub any_entry: bool,
}

impl Paths {
    /// Returns the paths with those of the record as seen from outside of a captured tree.
    #[must_use]
    pub fn record_below(&self, root: &Root) -> Self {
        Self {
            state: root.display(&self.state),
            earlier_state: self.earlier_state.as_ref().map(|dir| root.display(dir)),
            ..self.clone()
        }
    }

    /// Returns the default paths of the host whose file system begins at `host_root`, and whose
    /// /proc and /sys are below `root`.
    pub fn new(root: &Path, host_root: &Path) -> Self {
        Self {
            store: STORE.into(),
            state: STATE.into(),
            sealed: false,
            earlier_state: None,
            driver_root: DRIVER_ROOT.into(),
            root: root.to_path_buf(),
            host_root: host_root.to_path_buf(),
            #[cfg(any(test, feature = "testing"))]
            any_entry: false,
        }
    }

    /// Returns paths that are all below `dir`, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn below(dir: &Path) -> Self {
        Self {
            store: dir.join("store"),
            state: dir.join("run"),
            driver_root: dir.join("driver"),
            any_entry: true,
            ..Self::new(dir, dir)
        }
    }

    /// Returns the directory of the settings and state files of the driver's daemons, which only root
    /// reaches: below the record's, or below the store's where others can write to the record's. A
    /// daemon does not get through /proc/1/root, either: that takes CAP_SYS_PTRACE
    /// (fs/proc/base.c, `proc_pid_get_link`), which none has.
    pub fn daemons(&self) -> PathBuf {
        let is_reachable = !self.sealed && !self.state.starts_with("/proc");
        let dir = if is_reachable { &self.state } else { &self.store };
        dir.join(DAEMONS)
    }

    /// True if the facts come from a captured tree instead of this machine.
    pub fn is_captured(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Returns the root of the apt sources of the host; None for a captured tree without any, for which those of this
    /// machine are read.
    pub fn apt_root(&self) -> Option<&Path> {
        let apt = self.host_root.join("etc/apt");
        let has_sources = ["sources.list", "sources.list.d"].iter().any(|n| apt.join(n).exists());
        (!self.is_captured() || has_sources).then_some(&self.host_root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::of_the_host("/run/longshore", false, "/run/longshore/daemons")]
    #[case::through_the_hosts_root("/proc/1/root/run/longshore", false, "/store/daemons")]
    #[case::shared_with_containers("/run/nvidia/longshore", true, "/store/daemons")]
    fn files_of_daemons_are_where_a_daemon_gets_and_no_container_does(
        #[case] state: &str,
        #[case] sealed: bool,
        #[case] wanted: &str,
    ) {
        let root = Path::new("/");
        let paths =
            Paths { state: state.into(), sealed, store: "/store".into(), ..Paths::new(root, root) };
        assert_eq!(paths.daemons(), Path::new(wanted));
    }
}
