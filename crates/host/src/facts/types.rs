//! Types of single facts, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::probe::Probe;
use super::selinux::Selinux;
use crate::values::FileId;
use longshore_core::flavour::Flavour;
use longshore_core::kernel_id::KernelId;

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

impl Kernel {
    /// Identity of the kernel. The version of one that does not run here may be unknown (empty): then
    /// any build fits.
    pub fn id(&self) -> KernelId<'_> {
        let version = Some(self.version.as_str()).filter(|version| !version.is_empty());
        KernelId { version, ..self.any_build() }
    }

    /// True if clang built the kernel, by /proc/version: gcc's modules do not fit it.
    pub fn is_built_by_clang(&self) -> bool {
        self.compiler.as_deref().is_some_and(|compiler| compiler.contains("clang"))
    }

    /// The same kernel in any build.
    pub fn any_build(&self) -> KernelId<'_> {
        KernelId { release: &self.release, version: None, arch: &self.arch }
    }
}

/// The fields of os-release that longshore uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsRelease {
    /// `ID`, for example `debian`.
    pub id: String,
    /// `ID_LIKE`: distributions that this one is built from, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub id_like: Vec<String>,
    /// `VERSION_ID`, for example `12`.
    pub version_id: Option<String>,
    /// `VERSION_CODENAME`, for example `bookworm`.
    pub codename: Option<String>,
    /// `PRETTY_NAME`.
    pub pretty_name: Option<String>,
    /// `VARIANT_ID`, for example `coreos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant_id: Option<String>,
    /// `BUILD_ID` of an image, for example that of Container-Optimized OS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// `OSTREE_VERSION` of Red Hat Enterprise Linux CoreOS: the tag of its driver toolkit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ostree_version: Option<String>,
    /// `OPENSHIFT_VERSION`, for example `4.19`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openshift_version: Option<String>,
}

/// Machine whose GPU nvidia.ko of a data-centre driver does not drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Platform {
    /// A WSL 2 machine: Windows has the driver.
    Wsl,
    /// An SoC with an integrated GPU, by its name in the device tree, for example `nvidia,tegra234`.
    Tegra(String),
}

/// Kind of an NVIDIA PCI function.
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
    /// True for a vGPU of a virtual machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vgpu: bool,
    /// The 24-bit class code.
    pub class: u32,
    /// Name of the driver bound to it, if any.
    pub driver: Option<String>,
}

/// A network device that manages NVLink5 switches: its vital product data contains `SW_MNG`.
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
    /// Parameters that one of NVIDIA's modules reports, with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// The NVIDIA driver loaded now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDriver {
    /// Its version.
    pub version: String,
    /// Its flavour, if reported.
    pub flavour: Option<Flavour>,
}

/// The kernel's rules about modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// UEFI Secure Boot.
    pub secure_boot: Probe<bool>,
    /// /sys/kernel/security/lockdown: `none`, `integrity` or `confidentiality`.
    pub lockdown: Probe<String>,
    /// /sys/module/module/parameters/sig_enforce.
    pub sig_enforce: Probe<bool>,
    /// State of module loading in this kernel.
    pub module_loading: Probe<ModuleLoading>,
    /// True if LoadPin is enforced: modules are accepted from one file system only, on an image's host its root.
    #[serde(default = "not_read")]
    pub load_pin: Probe<bool>,
    /// Public keys of the certificates in the kernel's keyrings, all keyrings together.
    pub keys: Probe<Vec<KernelKey>>,
    /// True if the firmware's certificates may be in `.platform` alone: that keyring has some, and `.machine`, by
    /// which mainline kernels verify modules, is absent or empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_platform_keys: bool,
    /// SELinux; None where no policy is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux: Option<Selinux>,
}

fn not_read() -> Probe<bool> {
    Probe::Unreadable("not read".to_owned())
}

/// Public key of a certificate in one of the kernel's keyrings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelKey {
    /// The certificate's subject, as the kernel prints it.
    pub name: String,
    /// The id by which the kernel finds it (hex): the subject key identifier, or the serial number.
    pub id: String,
}

/// State of module loading in this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModuleLoading {
    /// Modules can be loaded.
    Allowed,
    /// /proc/sys/kernel/modules_disabled is 1, until the next boot.
    Disabled,
    /// The kernel was built without CONFIG_MODULES.
    Unsupported,
}

/// Propagation type of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Propagation {
    /// Shared with a peer group.
    Shared,
    /// Receives events only.
    Slave,
    /// No propagation.
    Private,
    /// Private and cannot be bind mounted.
    Unbindable,
}

/// One line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Mount point.
    pub target: PathBuf,
    /// Device number of its files (`st_dev`), major and minor.
    pub device: (u64, u64),
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

/// A driver installed on the host itself, without its modules: those are in `available`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDriver {
    /// Its version, by the names of its libraries.
    pub version: Option<String>,
    /// libcuda and libnvidia-ml, absolute.
    pub libraries: Vec<PathBuf>,
    /// Modules that DKMS compiles for each new kernel, for example `nvidia-current`.
    pub dkms: Vec<String>,
    /// Its enabled services, for example `nvidia-persistenced.service`.
    pub services: Vec<String>,
}

/// Modules that the host loads by itself, or is configured not to load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autoload {
    /// Modules blocked by modprobe.d or the kernel's command line, by kernel name.
    pub kept_out: BTreeSet<String>,
    /// Module parameters set in modprobe.d.
    pub options: Vec<LoadRule>,
    /// Modules named in lists that are loaded at boot.
    pub at_boot: Vec<LoadRule>,
}

/// One line of configuration about loading a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadRule {
    /// Kernel name.
    pub module: String,
    /// The line.
    pub text: String,
    /// Its file.
    pub file: PathBuf,
}

/// State of the paths that the configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverRootState {
    /// File type of the driver root's path, links not followed.
    pub kind: RootKind,
    /// Liveness of NVIDIA's driver container.
    pub installer: Installer,
    /// Mounts on the driver root; mounts below it only if nothing is mounted on it.
    pub mounts: Vec<RootMount>,
    /// Files of NVIDIA's container beside the driver root, in the order to remove them.
    pub files: Vec<PlacedFile>,
    /// The kernel's firmware path, if it is set and longshore's journal does not record it.
    pub firmware_path: Option<String>,
    /// Free space for the state; None for a captured tree, and where it is unknown.
    pub state_room: Option<FreeSpace>,
    /// The same for the store.
    pub store_room: Option<FreeSpace>,
}

/// A file, with its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedFile {
    /// Absolute path.
    pub path: PathBuf,
    /// Its identity.
    pub id: FileId,
}

/// File type of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootKind {
    /// Nothing.
    #[default]
    Absent,
    /// A directory.
    Directory,
    /// A symlink to this path.
    Symlink(PathBuf),
    /// Another file type.
    Other,
}

/// Liveness of NVIDIA's driver container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Installer {
    /// No evidence of a running container.
    #[default]
    NotSeen,
    /// The container runs; this is the evidence.
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
    /// Its owner.
    pub owner: RootMountOwner,
    /// Device and inode of the directory visible there, for a foreign mount on the driver root.
    pub dir: Option<(u64, u64)>,
}

/// Owner of a mount on the driver root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootMountOwner {
    /// longshore.
    Ours,
    /// NVIDIA's driver container, running or dead.
    Installer,
    /// Another program, or undetermined.
    Unknown,
}

/// Free space on the file system of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeSpace {
    /// The path.
    pub path: PathBuf,
    /// Bytes.
    pub free_bytes: u64,
    /// Inodes, if its file system counts them.
    pub free_inodes: Option<u64>,
}
