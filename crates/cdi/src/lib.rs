//! Container Device Interface (CDI): devices that container runtimes add to a container by name.
//!
//! A [`Spec`] describes the devices of one kind, `vendor.com/class`, with the edits that each of them
//! makes to a container. Runtimes read specs from the directories `/etc/cdi` and `/var/run/cdi`, and a
//! user asks for `vendor.com/class=name`.
//!
//! A reader skips a file that it refuses and reports only "unresolvable CDI devices", so
//! [`Spec::check`] refuses what a reader does, with the reason. Source: specs-go/config.go,
//! specs-go/version.go, pkg/cdi/spec.go, pkg/cdi/container-edits.go and pkg/parser of
//! cncf-tags/container-device-interface.
//!
//! JSON alone is read and written here. Readers take YAML, of which JSON is a part; a library for the
//! rest of it would be the largest dependency of this crate.

mod check;
mod identifiers;
mod json;
mod spec;
mod spec_version;

pub use check::Refusal;
pub use json::NotJson;
pub use spec::{ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec};
