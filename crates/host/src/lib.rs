//! A Linux host with NVIDIA GPUs: its state, and the few operations that change it.
//!
//! [`facts`] are read from /proc, /sys and /lib/modules below a root, so a captured tree is as good as a
//! machine. The trait [`Host`] has a verb for each change: load a module, mount, make a node, start a daemon.
//! [`RealHost`] asks the kernel, through a child process where a call can hang ([`kernel_call`]); the feature
//! `fake` has a host in memory that fails, or dies, at the n-th verb.

mod cgroup;
pub mod conflicting;
pub mod daemon;
mod fabric;
pub mod facts;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod gpus;
pub mod holders;
pub mod in_use;
mod installed;
pub mod installed_kernels;
mod kernel;
pub mod kernel_call;
pub mod kernel_image;
mod keys;
pub mod kmsg;
pub(crate) mod known_holders;
mod labels;
pub mod look;
pub mod module_files;
pub mod modules;
pub mod mount_from_host;
pub mod mounts;
pub mod nodes;
pub mod pci;
pub mod places;
mod platform;
pub mod process;
pub mod published;
mod read;
pub mod real;
pub mod refusal;
mod security;
pub mod selinux;
pub mod shared_dir;
pub mod status_file;
pub mod verbs;
mod vgpu;

pub use facts::HostFacts;
pub use real::RealHost;
pub use verbs::{Host, VerbError};
