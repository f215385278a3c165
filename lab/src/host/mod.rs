//! This machine: its programs, apt's archives, and a cache of products.

pub(crate) mod apt;
pub mod archives;
pub mod bounded_output;
pub mod cache;
pub mod checkout;
pub mod disk;
pub mod error;
pub mod process;
