//! Checks of the host for later trouble: at the next boot, in containers, in downloads.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use jiff::Timestamp;
use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

use super::Look;
use crate::cdi;
use longshore_core::finding::{Code, Finding};
use longshore_host::facts::{DeviceKind, Probe};

/// 2026-01-01, the earliest possible release of longshore.
const RELEASED: i64 = 1_767_225_600;
/// The kernel's own drivers for NVIDIA's GPUs.
const IN_TREE: [&str; 2] = ["nouveau", "nova_core"];

/// Runs these checks.
pub(super) fn findings(look: &Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if !look.captured() {
        found.extend(clock(Timestamp::now()));
        found.extend(device_access(look));
    }
    if !look.hidden {
        found.extend(in_tree_at_boot(look));
        found.extend(stale_nodes(look));
        found.extend(dev_char(look));
        found.extend(cdi::rivals(look.host.path()));
    }
    found
}

fn clock(now: Timestamp) -> Option<Finding> {
    (now.as_second() < RELEASED)
        .then(|| Finding::warning(Code::ClockWrong, format!("the clock says {}", day(now))))
}

/// Formats a time for people.
pub(super) fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Checks access to devices: no container runtime allows /dev/kmsg by itself, so where it cannot be
/// opened in spite of the capability, the cgroup's device rules deny it.
fn device_access(look: &Look<'_>) -> Option<Finding> {
    let Probe::Read(have) = &look.facts.capabilities else { return None };
    let may = have.contains("CAP_SYSLOG") || have.contains("CAP_SYS_ADMIN");
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(look.root.display("dev/kmsg"));
    match opened {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && may => {
            let detail = format!("/dev/kmsg cannot be opened ({e}) though capabilities allow it");
            Some(Finding::warning(Code::DeviceAccessDenied, detail))
        }
        _ => None,
    }
}

fn in_tree_at_boot(look: &Look<'_>) -> Option<Finding> {
    let facts = look.facts;
    let has_gpu = facts.devices.iter().any(|d| d.kind == DeviceKind::Gpu);
    if !has_gpu || facts.unread.contains_key("autoload") {
        return None;
    }
    let free = |name: &&str| facts.available.has(name) && !facts.autoload.kept_out.contains(*name);
    let names: Vec<&str> = IN_TREE.into_iter().filter(free).collect();
    if names.is_empty() {
        return None;
    }
    let blacklist: Vec<String> = names.iter().map(|name| format!("`blacklist {name}`")).collect();
    let (names, blacklist) = (names.join(" and "), blacklist.join(" and "));
    let detail = format!("kernel {} has {names}, and no blacklist names it", facts.kernel.release);
    let remedy = format!("prevent it: {blacklist} in /etc/modprobe.d, then renew the initramfs");
    Some(Finding::note(Code::NouveauAtBoot, detail).remedy(remedy))
}

/// A device node of the driver: name, major and minor.
type Node = (String, u64, u64);

/// Returns the driver's nodes in the host's /dev.
pub(super) fn nodes(look: &Look<'_>) -> Vec<Node> {
    let dev: PathBuf = look.host.display("dev");
    let Ok(entries) = fs::read_dir(&dev) else { return Vec::new() };
    let node = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let found = entry.metadata().ok()?;
        let is_node = name.starts_with("nvidia") && found.file_type().is_char_device();
        is_node.then(|| (name, major(found.rdev()), minor(found.rdev())))
    };
    let mut nodes: Vec<Node> = entries.flatten().filter_map(node).collect();
    nodes.sort();
    nodes
}

fn names(nodes: &[Node]) -> String {
    let names: Vec<&str> = nodes.iter().map(|(name, ..)| name.as_str()).collect();
    names.join(", ")
}

fn stale_nodes(look: &Look<'_>) -> Option<Finding> {
    let nodes = nodes(look);
    (!nodes.is_empty() && !look.facts.loaded.contains_key("nvidia")).then(|| {
        let detail = format!("in the host's /dev, and no driver is loaded: {}", names(&nodes));
        Finding::note(Code::NodesStale, detail)
    })
}

fn dev_char(look: &Look<'_>) -> Option<Finding> {
    if !look.facts.loaded.contains_key("nvidia") {
        return None;
    }
    let mut nodes = nodes(look);
    let linked = |major, minor| {
        let link = look.host.display(format!("dev/char/{major}:{minor}"));
        fs::symlink_metadata(link).is_ok()
    };
    nodes.retain(|(_, major, minor)| !linked(*major, *minor));
    (!nodes.is_empty()).then(|| {
        let detail = format!("/dev/char has no link to {}", names(&nodes));
        Finding::note(Code::DevCharLinksMissing, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_before_the_release_is_wrong() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert!(clock(at(RELEASED)).is_none());
        let finding = clock(at(0)).unwrap();
        assert_eq!(finding.detail, "the clock says 1970-01-01 00:00:00 UTC");
    }
}
