//! Sources of drivers, headers and packages: Debian-format archives, .run files, driver packages.

pub mod apt_sources;
pub mod archive;
mod bounds;
mod cleartext;
pub mod compression;
mod control;
pub mod deb;
pub mod driver;
pub mod driver_root;
pub mod driver_source;
pub mod headers;
pub mod http;
pub mod keyring;
pub mod ldcache;
mod loading;
pub mod packages;
mod read_ahead;
pub mod relation;
pub mod release;
pub mod resolve;
mod rollback;
pub mod runfile;
#[cfg(test)]
pub(crate) mod sample_elf;
mod selection;
mod sink;
pub(crate) mod space;
mod tree;
pub mod userspace;
pub mod version;
