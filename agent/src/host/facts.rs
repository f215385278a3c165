//! What a host is, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::gpus::Gpu;
use super::module_files::ModuleFiles;
use crate::flavour::Flavour;
use crate::host::verbs::FileId;

/// A fact that may not have been readable: "could not check" is not "no".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known<T> {
    /// It was read.
    Yes(T),
    /// It could not be read, and why.
    Unknown(String),
}

/// Everything longshore wants to know about a host before it decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The running kernel.
    pub kernel: Kernel,
    /// The host's distribution.
    pub os: OsRelease,
    /// NVIDIA GPUs and NVSwitches on the PCI bus, by address.
    pub devices: Vec<PciDevice>,
    /// The GPUs among them that nvidia.ko may drive, and which driver has each.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// Modules loaded, by kernel name.
    pub loaded: BTreeMap<String, LoadedModule>,
    /// The driver's modules that an agent of this store's has loaded, by its journal: kernel name ->
    /// the parameters it gave. Others are not ours to unload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ours: BTreeMap<String, String>,
    /// The NVIDIA driver loaded now, as /proc/driver/nvidia/version names it.
    pub live_driver: Option<LiveDriver>,
    /// Modules built into the kernel, by kernel name.
    pub builtin: BTreeSet<String>,
    /// Modules the kernel ships as files.
    pub available: ModuleFiles,
    /// What the kernel enforces about modules.
    pub security: Security,
    /// The mounts this process sees.
    pub mounts: Vec<Mount>,
    /// Names of the capabilities this process may put on (its permitted ones), for example
    /// `CAP_SYS_MODULE`.
    pub capabilities: Known<BTreeSet<String>>,
    /// Effective user id of this process.
    pub euid: Known<u32>,
    /// Whether this process is in the initial user namespace: elsewhere no capability counts for
    /// modules and device nodes.
    pub initial_user_namespace: Known<bool>,
    /// Process 1, as seen from here, is another container's and so not the host's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_first_process: bool,
    /// Devices that manage NVLink5 switches, and that a subnet manager has to speak to.
    #[serde(default)]
    pub switch_managers: Vec<SwitchManager>,
    /// Sockets of somebody else's daemons of the driver that are there on the host, for example
    /// `/run/nvidia-persistenced/socket`.
    #[serde(default)]
    pub foreign_daemons: Vec<PathBuf>,
    /// Peer groups of the mounts process 1 sees: a mount event travels to the host only within one.
    pub host_peer_groups: Known<BTreeSet<u32>>,
    /// A driver installed on the host itself.
    pub installed: HostDriver,
    /// What the host loads, or keeps from being loaded, by itself.
    pub autoload: Autoload,
    /// The driver root and the room where longshore writes; empty until they are looked at.
    pub places: Places,
    /// Sources of the lists above that could not be read, and why: the list they fill is then
    /// unknown, not empty. Keys: `pci`, `loaded`, `builtin`, `available`, `mounts`, `os-release`, `installed`, `autoload`, `places`, `switch-managers`, `gpus`.
    pub unread: BTreeMap<String, String>,
}

/// The running kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// `uname -m`.
    pub arch: String,
    /// The compiler /proc/version names, for example `gcc-12 (Debian 12.2.0-14) 12.2.0`.
    pub compiler: Option<String>,
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: Option<String>,
}

/// The fields of os-release that matter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsRelease {
    /// `ID`, for example `debian`.
    pub id: String,
    /// `VERSION_ID`, for example `12`.
    pub version_id: Option<String>,
    /// `VERSION_CODENAME`, for example `bookworm`.
    pub codename: Option<String>,
    /// `PRETTY_NAME`.
    pub pretty_name: Option<String>,
}

/// What an NVIDIA PCI function is to a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Class 0x0300 or 0x0302.
    Gpu,
    /// Class 0x0680.
    NvSwitch,
}

/// One NVIDIA PCI function, from /sys/bus/pci/devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDevice {
    /// For example `0000:01:00.0`.
    pub address: String,
    /// GPU or NVSwitch.
    pub kind: DeviceKind,
    /// PCI device id, for example 0x1eb8 (T4).
    pub device: u16,
    /// PCI subsystem device id.
    pub subsystem_device: u16,
    /// The 24-bit class code.
    pub class: u32,
    /// Name of the driver bound to it, if any.
    pub driver: Option<String>,
}

/// A network device that manages NVLink5 switches: its vital product data says `SW_MNG`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchManager {
    /// Its name below /sys/class/infiniband, for example `mlx5_4`.
    pub name: String,
    /// The GUID of its first port, for example `0xb83fd20300aabbcc`.
    pub port: String,
}

/// A module in /sys/module that has a refcount (so is not merely built in).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedModule {
    /// refcnt.
    pub refcount: Option<i64>,
    /// Modules that hold it.
    pub holders: Vec<String>,
    /// `live`, `coming` or `going`.
    pub state: Option<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// srcversion.
    pub srcversion: Option<String>,
    /// The parameters that one of NVIDIA's modules shows, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// The NVIDIA driver loaded now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDriver {
    /// Its version.
    pub version: String,
    /// Its flavour, where it says so.
    pub flavour: Option<Flavour>,
}

/// The kernel's rules about modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// UEFI Secure Boot.
    pub secure_boot: Known<bool>,
    /// /sys/kernel/security/lockdown: `none`, `integrity` or `confidentiality`.
    pub lockdown: Known<String>,
    /// /sys/module/module/parameters/sig_enforce.
    pub sig_enforce: Known<bool>,
    /// Whether the kernel loads modules at all.
    pub module_loading: Known<ModuleLoading>,
    /// The certificates' keys that the kernel has, in whatever keyring.
    pub keys: Known<Vec<KernelKey>>,
}

/// A certificate's key that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelKey {
    /// The certificate's subject, as the kernel names it.
    pub name: String,
    /// What the kernel tells it by (hex): the subject key identifier, or the serial number.
    pub id: String,
}

/// Whether the kernel loads modules at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModuleLoading {
    /// It does.
    Allowed,
    /// /proc/sys/kernel/modules_disabled is 1, until the next boot.
    Disabled,
    /// The kernel was built without CONFIG_MODULES.
    Unsupported,
}

/// How mount events travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Propagation {
    /// Shared with a peer group.
    Shared,
    /// Receives only.
    Slave,
    /// Neither.
    Private,
    /// Private and cannot be bind mounted.
    Unbindable,
}

/// One line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Mount point.
    pub target: PathBuf,
    /// Root of the mount within its file system.
    pub root: PathBuf,
    /// Source as the kernel names it.
    pub source: String,
    /// File system type.
    pub fstype: String,
    /// Per-mount options.
    pub options: String,
    /// Propagation.
    pub propagation: Propagation,
    /// The peer group of a shared mount (`shared:N`).
    pub peer_group: Option<u32>,
}

/// A driver installed on the host itself, but for its modules: those are among the available ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDriver {
    /// Its version, by the names of its libraries.
    pub version: Option<String>,
    /// libcuda and libnvidia-ml, absolute.
    pub libraries: Vec<PathBuf>,
    /// What DKMS compiles for each new kernel, for example `nvidia-current`.
    pub dkms: Vec<String>,
    /// Services of it that are enabled, for example `nvidia-persistenced.service`.
    pub services: Vec<String>,
}

/// What the host loads, or keeps from being loaded, by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autoload {
    /// Modules kept out by modprobe.d or the kernel's command line, by kernel name.
    pub kept_out: BTreeSet<String>,
    /// Parameters that modprobe.d gives.
    pub options: Vec<LoadRule>,
    /// Modules named in lists that are loaded at boot.
    pub at_boot: Vec<LoadRule>,
}

/// A line about loading a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadRule {
    /// Kernel name.
    pub module: String,
    /// The line.
    pub text: String,
    /// Its file.
    pub file: PathBuf,
}

/// The places that the configuration names, as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// What is at the driver root's path, links not followed.
    pub kind: RootKind,
    /// Whether NVIDIA's driver container is alive.
    pub installer: Installer,
    /// What is mounted on the driver root; below it only where nothing is mounted on it.
    pub mounts: Vec<RootMount>,
    /// Files of NVIDIA's container beside the driver root, in the order to remove them.
    pub files: Vec<PlacedFile>,
    /// The kernel's firmware path, where it is set and our record does not have it.
    pub firmware_path: Option<String>,
    /// Free room where longshore writes: for the state, then for the store.
    pub room: Vec<Room>,
}

/// A file, and which one it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedFile {
    /// Absolute path.
    pub path: PathBuf,
    /// Which one.
    pub id: FileId,
}

/// What is at a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootKind {
    /// Nothing.
    #[default]
    Absent,
    /// A directory.
    Directory,
    /// A symlink to this.
    Symlink(PathBuf),
    /// Something else.
    Other,
}

/// Whether NVIDIA's driver container is alive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Installer {
    /// No sign of life was seen.
    #[default]
    NotSeen,
    /// It is, by this.
    Alive(String),
}

/// A mount on the driver root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMount {
    /// Mount point.
    pub target: PathBuf,
    /// Source as the kernel names it.
    pub source: String,
    /// File system type.
    pub fstype: String,
    /// Who mounted it.
    pub owner: RootMountOwner,
    /// The directory seen there, for a mount on the driver root that is not ours.
    pub dir: Option<(u64, u64)>,
}

/// Who mounted something on the driver root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootMountOwner {
    /// longshore.
    Ours,
    /// NVIDIA's driver container, alive or not.
    Installer,
    /// Somebody else, or it cannot be told.
    Unknown,
}

/// Free room on the file system of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The place.
    pub path: PathBuf,
    /// Bytes.
    pub free_bytes: u64,
    /// Inodes, where its file system counts them.
    pub free_inodes: Option<u64>,
}
