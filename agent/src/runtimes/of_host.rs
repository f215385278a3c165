//! Files of the host, as distinct from those of a container's own file system.

use std::path::Path;

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::root::Root;
use longshore_host::facts::Mount;
use longshore_host::facts::{mounts, process};

/// File systems in memory: a container's own where one is mounted for it.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// True for a path of a container's own file system: this process has not the host's root, and no volume
/// has the path. Its file system tells nothing: containers have their roots on overlays, btrfs, zfs and
/// copies. A captured tree without a mountinfo is a host's.
pub(super) fn is_of_container(root: &Root, path: &Path) -> bool {
    if process::has_hosts_root(root.path()) {
        return false;
    }
    let is_captured = root.path() != Path::new("/");
    let Ok(mounts) = root.read("proc/self/mountinfo") else { return !is_captured };
    let mounts = mounts::parse(&mounts);
    let path = root.place(path).map_or_else(|_| path.to_path_buf(), |place| place.path);
    !mounts::containing(&mounts, &path).is_some_and(is_volume)
}

fn is_volume(mount: &Mount) -> bool {
    mount.target != Path::new("/") && !IN_MEMORY.contains(&mount.fstype.as_str())
}

pub(super) fn refused(path: &Path, why: &str) -> Failure {
    let cause = format!("{} is this container's own, {why}", path.display());
    Failure::new(FailureKind::Runtime, cause).remedy(
        "run it on the host as root, or give the container the host's PID namespace and CAP_SYS_PTRACE \
         (--pid host --privileged, or hostPID: true and privileged), or mount the host's / and set \
         host-root, or give it the host's directory of the configuration and /var/lib/longshore as volumes",
    )
}
