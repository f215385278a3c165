//! The guests' real root file systems: a small Debian with container engines, as an ext4 image.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cell::guests::Guest;
use crate::host::apt::Root;
use crate::host::cache::Cache;
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};

/// Paths that are of no use in a guest.
const LEFT_OUT: &[&str] = &["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];

/// Makes the container roots.
const ROOTS: &str = include_str!("../guest/scripts/roots.sh");

/// Labels of a policy's own list.
const LABELS: &str = "/etc/selinux/default/contexts/files/file_contexts";

/// A finished root file system.
#[derive(Debug)]
pub struct Rootfs {
    /// ext4 image.
    pub image: PathBuf,
    /// Its busybox, statically linked, for the initramfs.
    pub busybox: PathBuf,
}

/// Makes the root file system, or returns the cached one. `versions` names the packages' versions
/// as the archive has them today, so that a newer archive gives a newer guest.
///
/// # Errors
/// No apt source serves the suite; mmdebstrap or mke2fs failed.
pub(crate) fn make(cache: &Cache, guest: &Guest, versions: &str) -> Result<Rootfs, Error> {
    let packages = guest.packages.join(",");
    let left_out = LEFT_OUT.join(",");
    let mut inputs = vec![guest.suite.as_str(), &packages, versions, &left_out];
    inputs.extend(guest.roots.then_some(ROOTS));
    inputs.extend(guest.has_policy().then_some(LABELS));
    let dir = cache.produce("rootfs", &inputs, |dir| fill(dir, guest, &packages))?;
    Ok(Rootfs { image: dir.join("rootfs.ext4"), busybox: dir.join("busybox") })
}

fn fill(dir: &Path, guest: &Guest, packages: &str) -> Result<(), Error> {
    let tree = dir.join("tree");
    // The tree is deleted once it is an image: it need not be synced to the disk.
    let unsynced = "--dpkgopt=force-unsafe-io".to_owned();
    let left_out = LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}"));
    let root = Root {
        suite: &guest.suite,
        frozen: guest.archive_frozen,
        variant: "minbase",
        packages,
        options: iter::once(unsynced).chain(left_out).collect(),
    };
    let sources = root.make(&tree)?;
    for mount_point in ["var/lib/containers", "var/lib/longshore", "usr/lib/modules"] {
        let path = tree.join(mount_point);
        fs::create_dir_all(&path).at("make", &path)?;
    }
    if guest.roots {
        let mut roots = Command::new("bash");
        roots.args(["-c", ROOTS, "roots"]).arg(tree.join("srv/roots")).arg(&sources);
        run(&mut roots, LIMIT)?;
    }
    if guest.has_policy() {
        let mut labels = Command::new("chroot");
        run(labels.arg(&tree).args(["setfiles", "-F", LABELS, "/"]), LIMIT)?;
    }
    let busybox = tree.join("usr/bin/busybox");
    fs::copy(&busybox, dir.join("busybox")).at("copy", &busybox)?;
    disk::make(&tree, &dir.join("rootfs.ext4"), 64)?;
    fs::remove_dir_all(&tree).at("remove", &tree)
}
