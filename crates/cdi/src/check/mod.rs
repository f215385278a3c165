//! The check that a reader makes of every spec (pkg/cdi/spec.go, pkg/cdi/container-edits.go).

mod annotations;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::identifiers::{is_device, is_vendor_or_class, vendor_and_class};
use super::spec::{ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec};
use super::spec_version::rank;

/// Reason for which readers refuse a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A version that no reader knows.
    #[error("cdiVersion {0:?} is none that readers know")]
    UnknownVersion(String),
    /// A version that does not have all fields of the spec.
    #[error("cdiVersion {declared} is lower than {needed}, which its fields or names need")]
    LowVersion {
        /// The spec's own.
        declared: String,
        /// See [`Spec::needs_version`].
        needed: &'static str,
    },
    /// A kind that is not `vendor/class`.
    #[error("kind {0:?} is not VENDOR/CLASS, each of letters, digits, '.', '-' and '_'")]
    Kind(String),
    /// A key of an annotation that is no qualified name.
    #[error("the key {0:?} of an annotation is not NAME or DOMAIN/NAME, as in Kubernetes")]
    AnnotationKey(String),
    /// Annotations above the limit.
    #[error("the annotations have {0} bytes, and 262144 are the most")]
    LargeAnnotations(usize),
    /// A spec without devices.
    #[error("it has no devices")]
    NoDevices,
    /// A device's name with other characters.
    #[error(
        "{0:?} is not the name of a device: letters and digits, with '.', '-', '_' and ':' inside"
    )]
    DeviceName(String),
    /// A device that is there twice.
    #[error("the device {0:?} is there twice")]
    DuplicateDevice(String),
    /// A device that changes nothing.
    #[error("it has no edits")]
    NoEdits,
    /// A variable without a name or without `=`.
    #[error("env {0:?} is not NAME=VALUE")]
    Env(String),
    /// A required field that is empty.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// A type of device node that there is not.
    #[error("device node {path:?} has type {node_type:?}, which is none of b, c, u and p")]
    NodeType {
        /// Path of the node in the container.
        path: String,
        /// Its type.
        node_type: String,
    },
    /// Device numbers below zero, which a cgroup takes for all devices.
    #[error("device node {0:?} has a negative number")]
    NodeNumber(String),
    /// Access that a cgroup does not have.
    #[error("device node {path:?} has permissions {permissions:?}, which are not of r, w and m")]
    Permissions {
        /// Path of the node in the container.
        path: String,
        /// Its permissions.
        permissions: String,
    },
    /// A point at which no hook is started.
    #[error("{0:?} is the name of no hook")]
    HookName(String),
    /// A program that a runtime would look for in its own directory.
    #[error("the path of hook {0:?} is not absolute")]
    HookPath(String),
    /// A network device that is there twice, under its name on the host or in the container.
    #[error("the network device {0:?} is there twice")]
    DuplicateNetDevice(String),
    /// A class of service that is no directory's name.
    #[error("closID {0:?} is not the name of a directory")]
    ClosId(String),
    /// A refusal of one device.
    #[error("device {device:?}: {reason}")]
    OfDevice {
        /// Its name.
        device: String,
        /// Reason.
        reason: Box<Refusal>,
    },
}

/// Points at which a runtime starts hooks (the runtime specification's config.md).
const HOOKS: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// Longest name of a file, with its end (PATH_MAX).
const LONGEST_CLOS_ID: usize = 4096;

impl Spec {
    /// Checks the spec as a reader does.
    ///
    /// # Errors
    /// The first reason for which readers would refuse it.
    pub fn check(&self) -> Result<(), Refusal> {
        self.check_version()?;
        self.check_kind()?;
        annotations::check(&self.annotations)?;
        self.container_edits.check()?;
        let mut names = BTreeSet::new();
        for device in &self.devices {
            device.check()?;
            if !names.insert(&device.name) {
                return Err(Refusal::DuplicateDevice(device.name.clone()));
            }
        }
        if names.is_empty() { Err(Refusal::NoDevices) } else { Ok(()) }
    }

    fn check_version(&self) -> Result<(), Refusal> {
        let declared = self.cdi_version.clone();
        let Some(rank_of_declared) = rank(&declared) else {
            return Err(Refusal::UnknownVersion(declared));
        };
        let needed = self.needs_version();
        if rank(needed).is_some_and(|needed| rank_of_declared < needed) {
            return Err(Refusal::LowVersion { declared, needed });
        }
        Ok(())
    }

    fn check_kind(&self) -> Result<(), Refusal> {
        let parts = vendor_and_class(&self.kind);
        let valid = |(vendor, class)| is_vendor_or_class(vendor) && is_vendor_or_class(class);
        if parts.is_some_and(valid) { Ok(()) } else { Err(Refusal::Kind(self.kind.clone())) }
    }
}

impl Device {
    fn check(&self) -> Result<(), Refusal> {
        if !is_device(&self.name) {
            return Err(Refusal::DeviceName(self.name.clone()));
        }
        let edits = &self.container_edits;
        let checked = annotations::check(&self.annotations).and_then(|()| match edits.is_empty() {
            true => Err(Refusal::NoEdits),
            false => edits.check(),
        });
        checked.map_err(|reason| Refusal::OfDevice {
            device: self.name.clone(),
            reason: Box::new(reason),
        })
    }
}

impl ContainerEdits {
    fn check(&self) -> Result<(), Refusal> {
        check_env(&self.env)?;
        self.device_nodes.iter().try_for_each(DeviceNode::check)?;
        self.hooks.iter().try_for_each(Hook::check)?;
        self.mounts.iter().try_for_each(Mount::check)?;
        self.intel_rdt.iter().try_for_each(IntelRdt::check)?;
        check_net_devices(&self.net_devices)
    }
}

fn check_env(env: &[String]) -> Result<(), Refusal> {
    let is_named = |variable: &String| variable.find('=').is_some_and(|at| at > 0);
    match env.iter().find(|variable| !is_named(variable)) {
        Some(variable) => Err(Refusal::Env(variable.clone())),
        None => Ok(()),
    }
}

fn filled(text: &str, field: &'static str) -> Result<(), Refusal> {
    if text.is_empty() { Err(Refusal::Empty(field)) } else { Ok(()) }
}

impl DeviceNode {
    fn check(&self) -> Result<(), Refusal> {
        filled(&self.path, "path of a device node")?;
        let path = self.path.clone();
        if !["", "b", "c", "u", "p"].contains(&self.node_type.as_str()) {
            return Err(Refusal::NodeType { path, node_type: self.node_type.clone() });
        }
        if self.major < 0 || self.minor < 0 {
            return Err(Refusal::NodeNumber(path));
        }
        let permissions = &self.permissions;
        // `none` is no access at all (container-edits.go, `NoPermissions`).
        if permissions != "none" && permissions.contains(|c| !"rwm".contains(c)) {
            return Err(Refusal::Permissions { path, permissions: permissions.clone() });
        }
        Ok(())
    }
}

impl Hook {
    fn check(&self) -> Result<(), Refusal> {
        if !HOOKS.contains(&self.hook_name.as_str()) {
            return Err(Refusal::HookName(self.hook_name.clone()));
        }
        filled(&self.path, "path of a hook")?;
        if !self.path.starts_with('/') {
            return Err(Refusal::HookPath(self.path.clone()));
        }
        check_env(&self.env)
    }
}

impl Mount {
    fn check(&self) -> Result<(), Refusal> {
        filled(&self.host_path, "hostPath of a mount")?;
        filled(&self.container_path, "containerPath of a mount")
    }
}

impl IntelRdt {
    /// Checks that the class is a directory below resctrl; `/` is resctrl itself.
    fn check(&self) -> Result<(), Refusal> {
        let id = self.clos_id.as_str();
        let is_name = id.len() < LONGEST_CLOS_ID && ![".", ".."].contains(&id);
        if id == "/" || (is_name && !id.contains(['/', '\n'])) {
            return Ok(());
        }
        Err(Refusal::ClosId(id.to_owned()))
    }
}

fn check_net_devices(devices: &[NetDevice]) -> Result<(), Refusal> {
    let (mut on_host, mut inside) = (BTreeSet::new(), BTreeSet::new());
    for NetDevice { host_interface_name, name } in devices {
        filled(host_interface_name, "hostInterfaceName of a network device")?;
        filled(name, "name of a network device")?;
        for (names, name) in [(&mut on_host, host_interface_name), (&mut inside, name)] {
            if !names.insert(name) {
                return Err(Refusal::DuplicateNetDevice(name.clone()));
            }
        }
    }
    Ok(())
}
