//! Checks of the driver's nodes in the host's /dev.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use nix::sys::stat::{major, minor};

use super::{Checked, HIDDEN, Input, NOT_LOADED, found_or, passed, skipped};
use crate::doctor::Look;
use longshore_core::finding::{Code, Finding};

pub(super) fn stale(input: &Input<'_>) -> Checked {
    if input.look.hidden {
        return skipped(HIDDEN);
    }
    let nodes = nodes(input.look);
    match input.look.facts.loaded.contains_key("nvidia") {
        _ if nodes.is_empty() => passed("no nodes"),
        true => passed("none: the nodes are the loaded driver's"),
        false => {
            let detail = format!("in the host's /dev, and no driver is loaded: {}", names(&nodes));
            Checked::Found(vec![Finding::note(Code::NodesStale, detail)])
        }
    }
}

pub(super) fn links(input: &Input<'_>) -> Checked {
    let look = input.look;
    match look.facts.loaded.contains_key("nvidia") {
        _ if look.hidden => skipped(HIDDEN),
        true => found_or(missing_links(look), || "every node of the driver has one".to_owned()),
        false => skipped(NOT_LOADED),
    }
}

fn missing_links(look: &Look<'_>) -> Option<Finding> {
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

/// A device node of the driver: name, major and minor.
type Node = (String, u64, u64);

/// Returns the driver's nodes in the host's /dev.
fn nodes(look: &Look<'_>) -> Vec<Node> {
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
