//! Sets of kernel modules of NVIDIA's driver, and the places that they are kept in and come from.
//!
//! An [`artifact`] is a set with its key: driver, flavour, kernel, headers, compiler. [`kernel`] reads modules as
//! the kernel does (modinfo, dependencies, symbols), [`module_signing`] the signatures that it requires of them;
//! [`signed_sets`] adds such signatures to a set. Sets are kept in a store ([`sets`]), in OCI image layouts
//! ([`layout`]) and in OCI registries ([`registry`]); [`signature`] verifies who signed one, with cosign's keys, and
//! [`provenance`] describes what one was made of.

pub mod artifact;
pub mod kernel;
pub mod layout;
pub mod module_signing;
pub mod provenance;
pub mod registry;
pub mod sets;
pub mod signature;
pub mod signed_sets;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
