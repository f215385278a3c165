//! Types of the specification (specs-go/config.go), of versions 0.3.0 to 1.1.0.
//!
//! A field that a file lacks is empty, as it is for a reader; [`Spec::check`] refuses it where it is
//! needed. An empty one is not written. An unknown field is refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Specification of the devices of one kind: the contents of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Spec {
    /// Version of the specification that it is written in, for example `0.5.0`.
    pub cdi_version: String,
    /// `vendor/class`, for example `nvidia.com/gpu`.
    pub kind: String,
    /// Texts for people and programs; containers do not see them (0.6.0).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices; at least one.
    pub devices: Vec<Device>,
    /// Edits of every container that gets one of the devices.
    #[serde(skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// A device that a container can be given by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Device {
    /// Name within the kind, for example `0`.
    pub name: String,
    /// Texts for people and programs; containers do not see them (0.6.0).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Edits of a container that gets it; at least one.
    pub container_edits: ContainerEdits,
}

/// Changes to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContainerEdits {
    /// Variables, `NAME=VALUE`; each replaces the image's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network devices (1.1.0).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Programs of the host that the runtime starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Cache and memory bandwidth (0.7.0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Further groups of the container's process (0.7.0).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

impl ContainerEdits {
    /// True if they change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A device node of the host that the container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the host, where it is another (0.5.0).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// `b`, `c`, `u` or `p`; empty for that of the host's node.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub node_type: String,
    /// Major number; 0 for that of the host's node.
    #[serde(skip_serializing_if = "is_zero")]
    pub major: i64,
    /// Minor number; together with a major of 0, that of the host's node.
    #[serde(skip_serializing_if = "is_zero")]
    pub minor: i64,
    /// Permission bits; None for those of the host's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Access that the cgroup allows: of `r`, `w` and `m`, or `none`; empty for all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// Owner; None for that of the container's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group; None for that of the container's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A file or directory of the host that the container sees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Options of mount(8), for example `ro` and `rbind`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// File system (0.4.0).
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub fs_type: String,
}

/// A program of the host that the runtime starts at one point of a container's course.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Hook {
    /// The point, for example `createContainer`.
    pub hook_name: String,
    /// Path of the program on the host.
    pub path: String,
    /// Its arguments, from its own name on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which the runtime ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A network device of the host that is moved into the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetDevice {
    /// Name on the host.
    pub host_interface_name: String,
    /// Name in the container.
    pub name: String,
}

/// Intel's Resource Director Technology.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IntelRdt {
    /// Class of service.
    #[serde(rename = "closID", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    /// Share of the L3 cache.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    /// Share of the memory bandwidth.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    /// Lines of resctrl's schemata (1.1.0).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// True for a monitoring group of its own (1.1.0).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}
