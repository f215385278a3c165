//! The agent's image in podman's storage, as an ext4 image for the guests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::disk;
use crate::error::{At, Error};
use crate::process::{LIMIT, run};

/// Name of the image in the guest.
pub const NAME: &str = "localhost/longshore:dev";

/// Runs podman in a mount namespace of its own, with its storage (`$1`) and its /run at the guests'
/// paths, because podman writes these paths down. podman refuses to start where both cgroup
/// versions are mounted.
const LOAD: &str = "
set -eu
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
mkdir -p /var/lib/containers
mount --bind \"$1\" /var/lib/containers
mount -t tmpfs run /run
exec podman --cgroup-manager cgroupfs --events-backend file --storage-driver vfs \
    load --quiet --input \"$2\"
";

/// podman's storage with the image in it.
#[derive(Debug)]
pub struct Image {
    /// ext4 image for /var/lib/containers.
    pub disk: PathBuf,
    /// sha256 (hex) of the archive that it was loaded from.
    pub sha256: String,
}

/// Loads the OCI archive `archive`, or returns the cached result.
///
/// # Errors
/// The archive cannot be read, has no image of that name, or podman or mke2fs failed.
pub fn load(cache: &Cache, archive: &Path) -> Result<Image, Error> {
    let sha256 = File::open(archive)
        .and_then(longshore_core::digest::digest_of)
        .at("read the agent's image", archive)?;
    let archive = archive.canonicalize().at("find", archive)?;
    let dir = cache.produce("image", &[&sha256, LOAD], |dir| fill(dir, &archive))?;
    Ok(Image { disk: dir.join("containers.ext4"), sha256 })
}

fn fill(dir: &Path, archive: &Path) -> Result<(), Error> {
    let containers = dir.join("containers");
    fs::create_dir(&containers).at("make", &containers)?;
    let loaded = run(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", LOAD, "load"])
            .arg(&containers)
            .arg(archive),
        LIMIT,
    )?;
    let said = loaded.join(" ");
    if !said.contains(NAME) {
        let path = archive.display();
        return Err(Error::Unexpected(format!("{path} holds {}, not {NAME}", said.trim())));
    }
    disk::make(&containers, &dir.join("containers.ext4"), 256)?;
    fs::remove_dir_all(&containers).at("remove", &containers)
}
