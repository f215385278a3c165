//! All facts of a host, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::conflicting::ConflictingModule;
use super::gpus::Gpu;
use super::module_files::ModuleFiles;
use super::probe::Probe;
use super::types::{
    Autoload, DriverRootState, HostDriver, Kernel, LiveDriver, LoadedModule, Mount, OsRelease,
    PciDevice, Platform, Security, SwitchManager,
};
use super::unread::Unread;
use longshore_core::day::Day;
use longshore_core::pci_id::PciId;

/// All facts of a host that a plan is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The running kernel.
    pub kernel: Kernel,
    /// The host's distribution.
    pub os: OsRelease,
    /// Machines whose GPU is not on the PCI bus as others' are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Cloud that the machine is in, by its firmware: `aws`, `azure`, `gcp` or `oracle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<String>,
    /// Day of the clock when the facts were read; None where a day does not count.
    #[serde(skip)]
    pub today: Option<Day>,
    /// Network cards on the PCI bus.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub network_cards: BTreeSet<PciId>,
    /// NVIDIA GPUs and NVSwitches on the PCI bus, by address.
    pub devices: Vec<PciDevice>,
    /// The GPUs among `devices` that nvidia.ko may drive, each with the driver bound to it.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// The kernel's own drivers that are bound to `devices`, by module.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conflicting: BTreeMap<String, ConflictingModule>,
    /// Loaded modules, by kernel name.
    pub loaded: BTreeMap<String, LoadedModule>,
    /// Driver modules that an agent with this store loaded, by its journal: kernel name -> the
    /// parameters given. Others are not longshore's to unload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ours: BTreeMap<String, String>,
    /// The NVIDIA driver loaded now, as /proc/driver/nvidia/version names it.
    pub live_driver: Option<LiveDriver>,
    /// Modules built into the kernel, by kernel name.
    pub builtin: BTreeSet<String>,
    /// Modules the kernel ships as files.
    pub available: ModuleFiles,
    /// Releases of the kernels that are installed, the running one included where its files are there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub installed_kernels: BTreeSet<String>,
    /// The kernel's rules for loading modules.
    pub security: Security,
    /// The mounts this process sees.
    pub mounts: Vec<Mount>,
    /// Names of the capabilities this process may raise (its permitted set), for example
    /// `CAP_SYS_MODULE`.
    pub capabilities: Probe<BTreeSet<String>>,
    /// Effective user id of this process.
    pub euid: Probe<u32>,
    /// True if this process is in the initial user namespace: in others no capability is valid for
    /// modules and device nodes.
    pub initial_user_namespace: Probe<bool>,
    /// True if process 1, in this PID namespace, belongs to another container and not to the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_first_process: bool,
    /// Devices that manage NVLink5 switches; a subnet manager has to talk to them.
    #[serde(default)]
    pub switch_managers: Vec<SwitchManager>,
    /// Sockets of driver daemons on the host that longshore did not start, for example
    /// `/run/nvidia-persistenced/socket`.
    #[serde(default)]
    pub foreign_daemons: Vec<PathBuf>,
    /// Peer groups of process 1's mounts: a mount event propagates to the host only within one of
    /// them.
    pub host_peer_groups: Probe<BTreeSet<u32>>,
    /// A driver installed on the host itself.
    pub installed: HostDriver,
    /// Modules that the host loads by itself, or is configured not to load.
    pub autoload: Autoload,
    /// The driver root, and free space in the directories longshore writes to; empty until read.
    pub places: DriverRootState,
    /// Reasons why some of the facts above could not be read.
    pub unread: Unread,
}
