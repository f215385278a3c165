//! Sources of a guest's driver, and further things that are made or run on this machine for one guest.

pub(crate) mod cluster;
pub(crate) mod distributions;
pub(crate) mod registry;
pub(crate) mod relay;
pub(crate) mod run_file;
pub mod seed;
pub(crate) mod source_tree;
pub(crate) mod stand_in;
