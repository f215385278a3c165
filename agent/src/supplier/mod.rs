//! Inventory of the host's facts and of what is available for it, and acquisition of what a plan
//! lacks. Everything here reads the host and writes only the store.

mod acquire;
mod attest;
mod awaited;
mod core_objects;
mod fits;
mod for_registry;
mod gather;
mod host_facts;
mod inventory;
mod missed;
mod mofed;
mod next_kernel;
mod obtain;
mod once;
mod open_archives;
mod other_kernel;
mod post_install;
mod provisioner;
mod publication;
mod run_files;
mod signing;
mod source;
mod sources;
mod store_access;

pub(crate) use attest::{attest_compiled, compile_record};
pub(crate) use awaited::OfferWait;
pub(crate) use core_objects::CorePush;
pub(crate) use for_registry::{ForRegistry, NotMade};
pub(crate) use host_facts::read_host_with;
pub use inventory::Inventory;
pub use next_kernel::HostKernels;
pub(crate) use next_kernel::at_boot_of;
pub use provisioner::Provisioner;

#[cfg(test)]
mod test_scene;
