//! The agent's image in podman's storage, as an ext4 image for the guests; for other engines the
//! image's archive is beside it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::cache::Cache;
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};

/// Name of the image, as scripts/image gives it.
pub(crate) const NAME: &str = concat!("localhost/longshore:", env!("CARGO_PKG_VERSION"));

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

/// Programs that compile or link, of which the image has none: all come from the archive of the kernel's distribution.
const COMPILING: [&str; 20] = [
    "as", "c++", "c89", "c99", "cc", "cc1", "cc1plus", "clang", "collect2", "cpp", "g++", "gcc",
    "gmake", "ld", "ld.bfd", "ld.gold", "ld.lld", "make", "rustc", "tcc",
];
/// The one program that the image is for.
const AGENT: &str = "longshore";

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
/// The archive cannot be read, has no image of that name, or one with a compiler, or podman, skopeo or mke2fs failed.
pub(crate) fn load(cache: &Cache, archive: &Path, for_others: bool) -> Result<Image, Error> {
    let sha256 = File::open(archive)
        .and_then(longshore_core::digest::digest_of)
        .at("read the agent's image", archive)?;
    let archive = archive.canonicalize().at("find", archive)?;
    let mut inputs = vec![sha256.as_str(), LOAD];
    inputs.extend(COMPILING);
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
    check(&containers)?;
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

/// Checks that the image's files, somewhere below `storage`, have the agent and nothing that compiles.
fn check(storage: &Path) -> Result<(), Error> {
    let (mut has_agent, mut compiling) = (false, Vec::new());
    let mut dirs = vec![storage.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).at("list", &dir)? {
            let entry = entry.at("list", &dir)?;
            if entry.file_type().at("look at", &entry.path())?.is_dir() {
                dirs.push(entry.path());
                continue;
            }
            let name = entry.file_name();
            has_agent |= name == AGENT;
            if is_compiling(&name.to_string_lossy()) {
                compiling.push(entry.path().display().to_string());
            }
        }
    }
    match (has_agent, compiling.as_slice()) {
        (true, []) => Ok(()),
        (false, _) => Err(Error::Unexpected(format!("the image has no file {AGENT}"))),
        (true, some) => {
            Err(Error::Unexpected(format!("the image has a compiler: {}", some.join(", "))))
        }
    }
}

/// True for a program that compiles or links, also with a triplet before its name and a version after it.
fn is_compiling(name: &str) -> bool {
    let is_version = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let base =
        name.rsplit_once('-').filter(|(_, end)| is_version(end)).map_or(name, |(base, _)| base);
    COMPILING.iter().any(|tool| {
        base.strip_suffix(tool).is_some_and(|before| before.is_empty() || before.ends_with('-'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::the_agent(&["local/bin/longshore", "bin/busybox", "lib/ld-linux-x86-64.so.2", "lib/libgcc_s.so.1"], None)]
    #[case::none(&["bin/busybox"], Some("no file longshore"))]
    #[case::compiler(&["local/bin/longshore", "bin/x86_64-linux-gnu-gcc-12"], Some("gcc-12"))]
    #[case::part_of_one(&["local/bin/longshore", "libexec/gcc/x86_64-linux-gnu/12/cc1"], Some("cc1"))]
    #[case::assembler(&["local/bin/longshore", "bin/as"], Some("bin/as"))]
    #[case::linker(&["local/bin/longshore", "bin/ld.bfd"], Some("ld.bfd"))]
    #[case::make(&["local/bin/longshore", "bin/make"], Some("make"))]
    fn an_image_with_the_agent_and_without_a_compiler_is_accepted(
        #[case] files: &[&str],
        #[case] refused: Option<&str>,
    ) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join("storage/vfs/dir/layer/usr").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let said = check(dir.path()).err().map(|error| error.to_string());
        match refused {
            None => assert_eq!(said, None),
            Some(part) => {
                assert!(said.as_ref().is_some_and(|said| said.contains(part)), "{said:?}")
            }
        }
    }

    #[test]
    fn a_link_to_a_compiler_counts() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(AGENT), "").unwrap();
        std::os::unix::fs::symlink("/etc/alternatives/cc", dir.path().join("cc")).unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("cc"));
    }
}
