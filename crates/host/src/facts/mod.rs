//! Facts of a host: read from /proc, /sys, /etc and /lib/modules below a root, as plain data.

mod cgroup;
mod cloud;
pub mod conflicting;
mod fabric;
pub mod gpus;
pub mod holders;
mod host_facts;
pub mod in_use;
mod installed;
pub mod installed_kernels;
mod kernel;
pub mod kernel_image;
mod keys;
pub mod kmsg;
pub(crate) mod known_holders;
pub mod module_files;
pub mod modules;
pub mod mounts;
mod network_cards;
pub mod nodes;
pub mod pci;
pub mod places;
mod platform;
mod probe;
pub mod process;
pub mod process_files;
mod read;
mod security;
pub mod selinux;
mod types;
mod unread;
mod vgpu;

pub use host_facts::HostFacts;
pub use probe::Probe;
pub use types::{
    Autoload, DeviceKind, DriverRootState, FreeSpace, HostDriver, Installer, Kernel, KernelKey,
    LiveDriver, LoadRule, LoadedModule, ModuleLoading, Mount, OsRelease, PciDevice, PlacedFile,
    Platform, Propagation, RootKind, RootMount, RootMountOwner, Security, SwitchManager,
};
pub use unread::Unread;
