//! The host: what it is ([`facts`], read only) and what can be done to it ([`Host`]).

mod cgroup;
mod fabric;
pub mod facts;
pub mod fake;
pub mod gpus;
pub mod holders;
mod installed;
mod kernel;
pub mod kernel_call;
mod keys;
pub mod kmsg;
pub mod look;
pub mod module_files;
pub mod modules;
pub mod mounts;
mod pci;
pub mod places;
pub(crate) mod process;
mod read;
pub mod real;
pub mod root;
mod security;
pub mod verbs;

pub use facts::HostFacts;
pub use real::RealHost;
pub use verbs::{Host, VerbError};
