//! Nodes and directories that an agent can have made: those of NVIDIA's devices.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::super::bounds::{Bounds, given, is_plain};
use super::NodeBefore;
use longshore_host::values::{Node, Owner};

/// NVIDIA's major number, and that of InfiniBand's user MADs
/// (Documentation/admin-guide/devices.txt).
const FIXED_MAJORS: [u32; 2] = [195, 231];
/// Majors that the kernel allocates (include/linux/fs.h, `CHRDEV_MAJOR_DYN_END` and beside it).
const GIVEN_MAJORS: [std::ops::RangeInclusive<u32>; 2] = [234..=254, 384..=511];

/// Accepts a node in one of the directories, and the one in its place before, which the undo makes
/// again: any that the host can have had if an agent is proved to have found it, else one of the
/// driver's own devices, root's, and open to no more users than the driver makes it.
pub(super) fn node(dirs: &[PathBuf], node: &NodeBefore, bounds: &Bounds) -> Result<(), String> {
    let NodeBefore { path, made, was } = node;
    let is_named = |dir: &PathBuf| path.strip_prefix(dir).is_ok_and(is_node_name);
    given(is_plain(path) && dirs.iter().any(is_named), path)?;
    let is_known = |node: &Node| {
        let given = || GIVEN_MAJORS.iter().any(|majors| majors.contains(&node.major));
        node.mode & !0o777 == 0 && (FIXED_MAJORS.contains(&node.major) || given())
    };
    let is_drivers = |node: &Node| {
        bounds.unproved.as_ref().is_none_or(|own| {
            own.majors.contains(&node.major)
                && node.mode & !own.mode == 0
                && node.owner == Owner::default()
        })
    };
    if is_known(made) && was.as_ref().is_none_or(|was| is_known(was) && is_drivers(was)) {
        return Ok(());
    }
    Err(format!("{} is no such device", path.display()))
}

/// Accepts a missing directory on the way to a node.
pub(super) fn missing_below(dirs: &[PathBuf], missing: &Path) -> Result<(), String> {
    let is_inside = |dir: &PathBuf| {
        missing
            .strip_prefix(dir)
            .is_ok_and(|name| name.components().count() == 1 && is_device_name(name.as_os_str()))
    };
    given(is_plain(missing) && dirs.iter().any(is_inside), missing)
}

/// True for `nvidia0`, `nvidia-caps/nvidia-cap1`, `nvidia-caps-imex-channels/channel0`,
/// `infiniband/umad0`.
pub(in super::super) fn is_node_name(name: &Path) -> bool {
    let parts: Vec<&OsStr> = name.components().map(Component::as_os_str).collect();
    match parts.as_slice() {
        [name] => is_device_name(name) && *name != OsStr::new("infiniband"),
        [dir, name] => is_device_name(dir) && is_word(name),
        _ => false,
    }
}

fn is_device_name(name: &OsStr) -> bool {
    is_word(name) && (name.as_bytes().starts_with(b"nvidia") || name == OsStr::new("infiniband"))
}

fn is_word(name: &OsStr) -> bool {
    let is_byte =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(byte);
    name.as_bytes().iter().all(is_byte)
}
