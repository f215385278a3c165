//! A Linux host with NVIDIA GPUs: its state, and the few operations that change it.
//!
//! [`facts`] are read from /proc, /sys and /lib/modules below a root, so a captured tree is as good as a
//! machine. The trait [`Host`] has a verb for each change: load a module, mount, make a node, start a daemon.
//! [`RealHost`] asks the kernel, through a child process where a call can hang ([`real::kernel_call`]); the feature
//! `fake` has a host in memory that fails, or dies, at the n-th verb.

pub mod daemon;
pub mod facts;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod real;
pub mod values;
pub mod verbs;

pub use facts::HostFacts;
pub use real::RealHost;
pub use verbs::{Host, VerbError};
