//! Sources of drivers, headers and packages: Debian-format archives, .run files, driver packages, packages
//! with finished modules.

pub mod driver;
pub mod driver_root;
pub mod driver_source;
pub mod finished;
pub mod headers;
pub mod ldcache;
pub mod packaging_patches;
pub mod runfile;
#[cfg(test)]
pub(crate) mod sample_elf;
pub mod userspace;
