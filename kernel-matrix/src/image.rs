//! The agent's image in podman's storage, as an ext4 image for the guests; for other engines the
//! image's archive is beside it.

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

/// File in /var/lib/containers that guests with other engines load the image from.
const FOR_OTHERS: &str = "agent.tar";

/// podman's storage with the image in it.
#[derive(Debug)]
pub struct Image {
    /// ext4 image for /var/lib/containers.
    pub disk: PathBuf,
    /// sha256 (hex) of the archive that it was loaded from.
    pub sha256: String,
}

/// Loads the OCI archive `archive`, or returns the cached result. With `for_others`, docker and
/// containerd can load it, too.
///
/// # Errors
/// The archive cannot be read, has no image of that name, or podman, skopeo or mke2fs failed.
pub fn load(cache: &Cache, archive: &Path, for_others: bool) -> Result<Image, Error> {
    let sha256 = File::open(archive)
        .and_then(longshore_core::digest::digest_of)
        .at("read the agent's image", archive)?;
    let archive = archive.canonicalize().at("find", archive)?;
    let mut inputs = vec![sha256.as_str(), LOAD];
    inputs.extend(for_others.then_some(FOR_OTHERS));
    let dir = cache.produce("image", &inputs, |dir| fill(dir, &archive, for_others))?;
    Ok(Image { disk: dir.join("containers.ext4"), sha256 })
}

fn fill(dir: &Path, archive: &Path, for_others: bool) -> Result<(), Error> {
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
    if for_others {
        convert(archive, &containers.join(FOR_OTHERS))?;
    }
    disk::make(&containers, &dir.join("containers.ext4"), 256)?;
    fs::remove_dir_all(&containers).at("remove", &containers)
}

/// Converts the OCI archive into the form that docker 20.10 and containerd load.
fn convert(archive: &Path, to: &Path) -> Result<(), Error> {
    let mut copy = Command::new("skopeo");
    copy.args(["copy", "--quiet", "--insecure-policy"])
        .arg(format!("oci-archive:{}", archive.display()))
        .arg(format!("docker-archive:{}:{NAME}", to.display()));
    run(&mut copy, LIMIT).map(drop)
}
