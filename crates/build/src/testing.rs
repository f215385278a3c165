//! Helpers of the tests of several crates.

use std::path::Path;

use jiff::Timestamp;

use crate::build::KnownFailure;
use crate::build::shared_failure::About;
use crate::source::userspace::manifest::{Manifest, measure};

/// A failure whose inputs differ by one letter.
pub fn known(inputs: char) -> KnownFailure {
    KnownFailure {
        inputs: inputs.to_string().repeat(64),
        at: Timestamp::now(),
        cause: "the kernel has another pci_resize_resource".into(),
        remedy: Some("choose a newer driver".into()),
        about: About::here("interface-changed", longshore_modules::testing::set().key),
    }
}

/// The manifest of a tree of 535.261.03 with the files below `root`.
///
/// # Panics
/// If they cannot be read.
pub fn manifest(root: &Path) -> Vec<u8> {
    let entries = measure(root).expect("measured");
    let manifest = Manifest { entries, ..Manifest::new("535.261.03", "x86_64") };
    serde_json::to_vec_pretty(&manifest).expect("json")
}
