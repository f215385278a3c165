//! Paths and programs of the driver's daemons, and daemons that another program runs.

use std::path::{Path, PathBuf};

use crate::config::{Config, Mode};
use longshore_core::machine::Machine;
use longshore_host::HostFacts;
use longshore_host::daemon::Daemon;
use longshore_sources::userspace::AvailableUserspace;

/// Location of the daemons' programs, and the settings of their start.
pub(super) struct DaemonPlace<'a> {
    pub(super) config: &'a Config,
    pub(super) tree: &'a AvailableUserspace,
    /// True if the driver is loaded already.
    pub(super) live: bool,
}

impl DaemonPlace<'_> {
    pub(super) fn driver_root(&self) -> &Path {
        &self.config.paths.driver_root
    }

    /// Returns the same path below the driver root.
    pub(super) fn in_root(&self, path: &Path) -> PathBuf {
        self.driver_root().join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn has(&self, program: &str) -> bool {
        self.tree.tools.iter().any(|tool| tool == program)
    }

    pub(super) fn daemon(&self, program: &str, socket: &str, mode: Mode) -> Daemon {
        let libraries = match Machine::named(&self.tree.arch) {
            Ok(machine) => self.driver_root().join("usr/lib").join(machine.triplet),
            Err(_) => self.driver_root().join("usr/lib"),
        };
        Daemon {
            name: program.to_owned(),
            program: self.driver_root().join("usr/bin").join(program),
            arguments: Vec::new(),
            libraries,
            socket: PathBuf::from(socket),
            settings: None,
            capabilities: Vec::new(),
            required: mode == Mode::On,
            ready_within: self.config.daemons.deadline.as_secs(),
        }
    }
}

/// True if a daemon that longshore did not start answers on this socket of the host.
pub(super) fn is_foreign(facts: &HostFacts, socket: &str) -> bool {
    facts.foreign_daemons.iter().any(|there| there == Path::new(socket))
}
