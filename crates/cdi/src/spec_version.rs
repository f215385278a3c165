//! Versions of the specification, and the fields that each brought (specs-go/version.go).

use super::identifiers::vendor_and_class;
use super::spec::{ContainerEdits, Spec};

/// Released versions, oldest first. Readers refuse any other.
const VERSIONS: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// Version of a spec without any newer field.
const OLDEST: &str = "0.3.0";

/// Use of a field, or of a form of names, in a spec.
type Uses = fn(&Spec) -> bool;

/// Versions with the use that needs them, newest first.
const NEEDS: [(&str, Uses); 5] = [
    ("1.1.0", |spec| edits(spec).any(has_net_devices_or_schemata)),
    ("0.7.0", |spec| edits(spec).any(|e| e.intel_rdt.is_some() || !e.additional_gids.is_empty())),
    ("0.6.0", has_annotations_or_dotted_class),
    ("0.5.0", has_host_paths_or_numbers),
    ("0.4.0", |spec| edits(spec).flat_map(|e| &e.mounts).any(|mount| !mount.fs_type.is_empty())),
];

impl Spec {
    /// Returns the lowest version that has all fields of this spec. Many readers know only versions up
    /// to their own age, so a lower one is read by more of them.
    pub fn needs_version(&self) -> &'static str {
        NEEDS.iter().find(|(_, uses)| uses(self)).map_or(OLDEST, |(version, _)| version)
    }
}

/// Position of a version among all; None for an unknown one. Readers take a `v` before it.
pub(crate) fn rank(version: &str) -> Option<usize> {
    let version = version.strip_prefix('v').unwrap_or(version);
    VERSIONS.iter().position(|known| *known == version)
}

fn edits(spec: &Spec) -> impl Iterator<Item = &ContainerEdits> {
    spec.devices.iter().map(|device| &device.container_edits).chain([&spec.container_edits])
}

fn has_net_devices_or_schemata(edits: &ContainerEdits) -> bool {
    let rdt = edits.intel_rdt.as_ref();
    !edits.net_devices.is_empty()
        || rdt.is_some_and(|rdt| !rdt.schemata.is_empty() || rdt.enable_monitoring)
}

fn has_annotations_or_dotted_class(spec: &Spec) -> bool {
    !spec.annotations.is_empty()
        || spec.devices.iter().any(|device| !device.annotations.is_empty())
        || vendor_and_class(&spec.kind).is_some_and(|(_, class)| class.contains('.'))
}

fn has_host_paths_or_numbers(spec: &Spec) -> bool {
    let is_number = |name: &str| name.starts_with(|c: char| !c.is_ascii_alphabetic());
    spec.devices.iter().any(|device| is_number(&device.name))
        || edits(spec).flat_map(|e| &e.device_nodes).any(|node| !node.host_path.is_empty())
}
