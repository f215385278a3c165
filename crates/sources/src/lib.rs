//! Sources of drivers, of what they are compiled with and of their user-mode files: driver packages, NVIDIA's .run
//! files, trees of NVIDIA's open sources, packages with finished modules, kernel headers.
//!
//! [`diff`] reads and applies unified diffs: those of a driver's packaging, and the compatibility patches of
//! longshore-build.

pub mod diff;
pub mod driver;
pub mod driver_root;
pub mod driver_source;
pub mod finished;
pub mod headers;
pub mod ldcache;
pub mod packaging_patches;
mod parts;
pub mod pinned;
mod place;
pub mod runfile;
#[cfg(test)]
mod sample_elf;
pub mod source_tree;
mod tarball;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tree_entries;
pub mod userspace;
