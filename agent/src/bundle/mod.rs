//! Bundles: one file with all contents that one driver needs on one or more kernels, for hosts
//! without a network.
//!
//! A bundle is an OCI image layout in a tar file (what skopeo calls `oci-archive`):
//!
//! ```text
//! oci-layout             {"imageLayoutVersion":"1.0.0"}
//! index.json             sets of modules, user-mode trees, and the signatures of each
//! blobs/sha256/HEX       manifests, their configs, modules, the trees' files
//! ```
//!
//! Sets are the same as in registries, with the same digests. A tree's config is its manifest in
//! the store, its layers are its files. Every manifest is signed by itself, as cosign does it. The
//! same content gives the same bytes.

mod contents;
mod import;
mod kinds;
mod staging;
mod write;

pub use contents::Contents;
pub use import::{Imported, import};
pub use write::{check_destination, write};

#[cfg(test)]
mod tests;
