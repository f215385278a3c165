//! Compiles NVIDIA's kernel modules, and lays out the user-mode files of its driver.
//!
//! [`source`] has the inputs: kernel headers, NVIDIA's .run files, driver packages, user-mode trees. [`mod@build`]
//! unpacks headers, compiler and tools into a hermetic root, runs make in a sandbox without network, applies
//! compatibility patches, and stores the set; the same inputs give the same set, which is built once.
//! [`builder`] names the builder in records, and [`diff`] reads and applies unified diffs.

pub mod build;
pub mod builder;
pub mod diff;
pub mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
