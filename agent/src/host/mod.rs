//! The host: what it is ([`facts`], read only) and what can be done to it ([`Host`]).

pub mod facts;
mod kernel;
pub mod modules;
pub mod mounts;
mod pci;
mod process;
mod read;
pub mod root;
mod security;
pub mod verbs;

pub use facts::HostFacts;
pub use verbs::{Host, VerbError};
