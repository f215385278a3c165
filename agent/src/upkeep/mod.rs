//! Upkeep of the store: removal of unneeded files, and verification of the rest.
//!
//! [`inventory`] lists its items, [`gc`] removes unneeded ones, [`check`] finds damaged ones;
//! [`history`] records what ran on this host, `mounted` finds the trees in use, `next_kernel` what the next
//! boot needs.

pub mod check;
pub mod gc;
pub mod history;
pub mod inventory;
mod mounted;
mod next_kernel;
