//! Checks of other drivers on the host, loaded and installed, and of their installers.

use super::{Checked, HIDDEN, Input, found_or, passed, skipped};
use crate::doctor::{Look, NOT_ASKED};
use crate::plan;
use longshore_core::finding::{Code, Finding};
use longshore_host::facts::DeviceKind;

/// The kernel's own drivers for NVIDIA's GPUs.
const IN_TREE: [&str; 2] = ["nouveau", "nova_core"];

pub(super) fn bound(input: &Input<'_>) -> Checked {
    let devices = input.look.facts.devices.iter();
    let mut drivers: Vec<&str> = devices.filter_map(|d| d.driver.as_deref()).collect();
    drivers.sort_unstable();
    drivers.dedup();
    if drivers.is_empty() { passed("none") } else { passed(drivers.join(", ")) }
}

pub(super) fn loaded(input: &Input<'_>) -> Checked {
    let live = input.look.facts.live_driver.as_ref();
    passed(live.map_or("none", |live| live.version.as_str()))
}

pub(super) fn of_distribution(input: &Input<'_>) -> Checked {
    let look = input.look;
    let os = &look.facts.os;
    match plan::brings_driver(os) {
        None if os.id.is_empty() => {
            let unread = look.facts.unread.os_release.as_deref();
            skipped(unread.unwrap_or("os-release has no ID"))
        }
        None => passed(format!("{} brings none by itself", os.id)),
        Some(name) if look.facts.loaded.contains_key("nvidia") => {
            passed(format!("{name} brings one, and a driver is loaded"))
        }
        Some(_) if !look.online && !look.config.registries.is_empty() => skipped(NOT_ASKED),
        Some(name) => passed(format!("{name} brings one, and the kernel accepts other modules")),
    }
}

pub(super) fn of_host(input: &Input<'_>) -> Checked {
    let unread = &input.look.facts.unread;
    match unread.installed.as_ref().or(unread.autoload.as_ref()).or(unread.available.as_ref()) {
        _ if input.look.hidden => skipped(HIDDEN),
        Some(why) => skipped(why),
        None => passed("none: no modules, libraries, DKMS or services"),
    }
}

pub(super) fn in_tree(input: &Input<'_>) -> Checked {
    let unread = &input.look.facts.unread;
    match unread.autoload.as_ref().or(unread.available.as_ref()) {
        _ if input.look.hidden => skipped(HIDDEN),
        Some(why) => skipped(why),
        None => {
            found_or(in_tree_at_boot(input.look), || "blacklisted, or not in the kernel".to_owned())
        }
    }
}

fn in_tree_at_boot(look: &Look<'_>) -> Option<Finding> {
    let facts = look.facts;
    if !facts.devices.iter().any(|d| d.kind == DeviceKind::Gpu) {
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

pub(super) fn mounts(input: &Input<'_>) -> Checked {
    match (input.unread_places(), input.look.facts.places.mounts.is_empty()) {
        (Some(why), _) => skipped(why),
        (None, true) => passed("none, and no leftover of NVIDIA's container"),
        (None, false) => passed("longshore's own"),
    }
}
