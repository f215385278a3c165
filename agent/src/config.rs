//! Configuration: fragments from file, environment and flags, merged and validated into [`Config`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::artifact::Flavour;

/// A validated configuration; every path is absolute.
#[derive(Debug, Clone)]
pub struct Config {
    /// The driver wanted.
    pub driver: DriverConfig,
    /// Debian-format archives, in order of preference.
    pub archives: ArchiveConfig,
    /// Directories holding prebuilt module sets (OCI image layouts).
    pub prebuilt: Vec<PathBuf>,
    /// Whether compiling is allowed when nothing built is at hand.
    pub compile: bool,
    /// Number of parallel compile jobs; all cores where None.
    pub jobs: Option<usize>,
    /// Where things lie.
    pub paths: Paths,
    /// How long SIGTERM may take until a driver in use is left as it is.
    pub unload_deadline: Duration,
}

/// The driver wanted.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Upstream version (`535.261.03`), a branch (`535`), or None for the newest the sources have.
    pub version: Option<String>,
    /// Flavour; None is auto.
    pub flavour: Option<Flavour>,
    /// Modules to load beyond nvidia, nvidia_uvm and nvidia_modeset, in kernel names.
    pub extra_modules: Vec<String>,
    /// Kernel name -> parameters as on insmod's command line.
    pub parameters: BTreeMap<String, String>,
}

/// Debian-format archives.
#[derive(Debug, Clone)]
pub struct ArchiveConfig {
    /// Archives named in the configuration.
    pub sources: Vec<ArchiveSource>,
    /// Whether the host's own apt sources are read too.
    pub use_host_apt: bool,
    /// Components wanted of the host's apt sources beyond those they name, for example `non-free`.
    pub host_components: Vec<String>,
    /// Suites wanted of the host's apt sources beyond those they name, for example `trixie-security`.
    pub host_suites: Vec<String>,
    /// Accept metadata past its Valid-Until: the archive is a frozen mirror on purpose.
    pub frozen: bool,
}

/// One archive: base URL, suites, components, keyring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSource {
    /// Base URL: http, https or file.
    pub url: String,
    /// Suites, for example `bookworm`, `bookworm-updates`.
    pub suites: Vec<String>,
    /// Components, for example `main`, `non-free`.
    pub components: Vec<String>,
    /// OpenPGP keyring (binary or armored) whose keys may sign InRelease.
    pub keyring: PathBuf,
}

/// Where things lie.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Content-addressed store; default `/var/lib/longshore`.
    pub store: PathBuf,
    /// Lock, state and journal; default `/run/nvidia/longshore`.
    pub state: PathBuf,
    /// Driver root; default `/run/nvidia/driver`.
    pub driver_root: PathBuf,
    /// Root of the tree that /proc and /sys are read from; `/` but for captured trees.
    pub root: PathBuf,
    /// Root of the host's own file system (its /lib/modules, /etc, /dev): `/` on the host itself,
    /// `/proc/1/root` in a container that shares the host's PID namespace.
    pub host_root: PathBuf,
}
