//! User-mode trees that are mounted in any mount namespace.
//!
//! The agent mounts a tree on the driver root. A container that was started with it keeps its own
//! mount, of the whole tree or of single files (CDI), even after the driver root has changed to
//! another tree.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Component, Path};

use longshore_core::root::Root;
use longshore_host::facts::mounts;

/// Returns the names of the trees that are mounted, wholly or in part, in any mount namespace that
/// `root`'s /proc shows: with the host's PID namespace those of the host and of every container,
/// else only one's own.
pub(super) fn trees(root: &Path) -> BTreeSet<String> {
    let Ok(root) = Root::open(root) else { return BTreeSet::new() };
    let mut seen = BTreeSet::new();
    let mut found = BTreeSet::new();
    let processes = root.read_dir("proc").unwrap_or_default();
    for process in processes.iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit())) {
        // Many processes share one namespace; processes that end meanwhile need nothing.
        let namespace = root.read_link(format!("proc/{process}/ns/mnt"));
        if namespace.is_ok_and(|namespace| !seen.insert(namespace)) {
            continue;
        }
        let Ok(text) = root.read(format!("proc/{process}/mountinfo")) else { continue };
        found.extend(mounts::parse(&text).iter().filter_map(|mount| tree_of(&mount.root)));
    }
    found
}

/// `NAME` of `.../userspace/NAME/root` and of every path below: the store may be anywhere in its
/// file system.
fn tree_of(mounted: &Path) -> Option<String> {
    let parts: Vec<&OsStr> = mounted
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let tree = parts.windows(3).find(|three| three[0] == "userspace" && three[2] == "root")?;
    tree[1].to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_is_found_whole_or_in_part_in_any_namespace() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let process = |pid: &str, namespace: &str, mountinfo: &str| {
            let proc = dir.path().join("proc").join(pid);
            fs::create_dir_all(proc.join("ns")).expect("directories");
            symlink(format!("mnt:[{namespace}]"), proc.join("ns/mnt")).expect("link");
            fs::write(proc.join("mountinfo"), mountinfo).expect("mountinfo");
        };
        let line = |root: &str| format!("21 1 8:1 {root} /x rw - ext4 /dev/sda1 rw\n");
        process("1", "1", &(line("/") + &line("/var/lib/longshore/userspace/whole/root")));
        process("70", "2", &line("/lib/s\\040t/userspace/file.2/root/usr/lib/libcuda.so.1"));
        // One of a namespace that was read already, one of no process.
        process("71", "2", &line("/userspace/not-read/root"));
        process("self", "3", &line("/userspace/itself/root"));
        process("80", "4", "cut of");
        process("81", "5", &line("/var/lib/longshore/userspace/beside/manifest.json"));
        assert_eq!(trees(dir.path()), ["whole", "file.2"].map(str::to_owned).into());
        assert!(trees(&dir.path().join("absent")).is_empty());
    }
}
