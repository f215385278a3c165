//! Helpers of the tests of several crates.

use jiff::Timestamp;
use longshore_core::failure::CompileClass;

use crate::KnownFailure;
use crate::shared_failure::About;

pub use crate::build_root::unpack_layers;

/// A failure whose inputs differ by one letter.
pub fn known(inputs: char) -> KnownFailure {
    let name = Some("pci_resize_resource".to_owned());
    let class = CompileClass { class: "interface-changed".to_owned(), name, of_inputs: true };
    KnownFailure {
        inputs: inputs.to_string().repeat(64),
        at: Timestamp::now(),
        cause: "the kernel has another pci_resize_resource".into(),
        remedy: Some("choose a newer driver".into()),
        about: About::here(class, longshore_modules::testing::set().key),
    }
}
