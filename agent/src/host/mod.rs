//! The host: what it is ([`facts`], read only) and what can be done to it ([`Host`]).

pub mod facts;
mod read;
pub mod verbs;

pub use facts::HostFacts;
pub use verbs::{Host, VerbError};
