//! The host: its state ([`facts`], read only) and the operations that change it ([`Host`]).

mod cgroup;
pub mod daemon;
mod fabric;
pub mod facts;
pub mod fake;
pub mod gpus;
pub mod holders;
pub mod in_use;
mod installed;
mod kernel;
pub mod kernel_call;
mod keys;
pub mod kmsg;
pub(crate) mod known_holders;
pub mod look;
pub mod module_files;
pub mod modules;
pub mod mounts;
pub mod nodes;
mod pci;
pub mod places;
pub(crate) mod process;
mod read;
pub mod real;
pub mod refusal;
mod security;
pub mod verbs;

pub use facts::HostFacts;
pub use real::RealHost;
pub use verbs::{Host, VerbError};
