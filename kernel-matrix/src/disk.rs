//! ext4 images of directory trees. They are sparse; guests get snapshots of them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use longshore_core::deadlines::Deadlines;
use longshore_core::disk::Disk;

use crate::error::{At, Error};
use crate::process::{LIMIT, run};

const MIB: u64 = 1 << 20;

/// Files that a guest may add to a file system if it makes no build root.
const SPARE_FILES: u64 = 4096;

/// The disk of this machine, under its stores and reports: waited for as long as the agent does by
/// default.
pub fn of_this_machine() -> Disk {
    Disk::within(Deadlines::default().disk)
}

/// Makes `image` from `tree`, with `spare` MiB for the guest to write to.
///
/// # Errors
/// mke2fs is missing or failed.
pub fn make(tree: &Path, image: &Path, spare: u64) -> Result<(), Error> {
    make_for(tree, image, spare, SPARE_FILES)
}

/// Like [`make`], with room for `files` more files.
///
/// # Errors
/// As [`make`].
pub fn make_for(tree: &Path, image: &Path, spare: u64, files: u64) -> Result<(), Error> {
    let size = Size::of(tree)?;
    // Inodes (256 bytes) and metadata; a quarter more has always been enough.
    let mib = (size.bytes + size.files * 512) * 5 / 4 / MIB + 16 + spare;
    run(
        Command::new("mke2fs")
            // No journal and no checksums: nothing reads the image after the guest.
            .args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal,^metadata_csum"])
            .arg("-N")
            .arg((size.files * 5 / 4 + files).to_string())
            .arg("-d")
            .arg(tree)
            .arg(image)
            .arg(format!("{mib}M")),
        LIMIT,
    )?;
    Ok(())
}

/// Copies an image for a guest that may lose its power: the copy gets a journal.
///
/// # Errors
/// cp or tune2fs failed.
pub fn copy(image: &Path, to: &Path) -> Result<(), Error> {
    run(Command::new("cp").arg("--sparse=always").arg(image).arg(to), LIMIT)?;
    run(Command::new("tune2fs").args(["-O", "has_journal"]).arg(to), LIMIT)?;
    Ok(())
}

/// Makes `to`, a disk with the contents of the raw `image`, whose cache loses unflushed writes when
/// its VM is killed. QEMU writes the location of a new cluster only when the guest flushes, so that
/// an unflushed write to one is lost; clusters are as small as the file system's blocks, so that
/// nearly every block that was not written before is a new cluster. Blocks that existed already are
/// written in place and stay, as some of a cache may.
///
/// # Errors
/// qemu-img is missing or failed.
pub fn volatile(image: &Path, to: &Path) -> Result<(), Error> {
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-o", "cluster_size=4k", "-b"]);
    run(create.arg(image).arg(to), LIMIT)?;
    Ok(())
}

#[derive(Default)]
struct Size {
    bytes: u64,
    files: u64,
}

impl Size {
    fn of(dir: &Path) -> Result<Self, Error> {
        let mut total = Self::default();
        for entry in fs::read_dir(dir).at("read", dir)? {
            let entry = entry.at("read", dir)?;
            let metadata = entry.metadata().at("look at", &entry.path())?;
            total.files += 1;
            total.bytes += metadata.size().next_multiple_of(4096);
            if metadata.is_dir() {
                let below = Self::of(&entry.path())?;
                total.files += below.files;
                total.bytes += below.bytes;
            }
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_holds_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a")).unwrap();
        fs::write(tree.join("a/file"), "content").unwrap();
        let image = dir.path().join("image");
        make(&tree, &image, 1).unwrap();
        let shown =
            run(Command::new("debugfs").args(["-R", "cat /a/file"]).arg(&image), LIMIT).unwrap();
        assert!(shown.contains(&"content".to_owned()), "{shown:?}");
        let kept = dir.path().join("kept");
        copy(&image, &kept).unwrap();
        let described =
            run(Command::new("dumpe2fs").arg("-h").arg(&kept), LIMIT).unwrap().join("\n");
        assert!(described.contains("has_journal"), "{described}");
    }

    #[test]
    fn a_volatile_disk_loses_what_was_not_flushed_when_its_vm_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let (raw, disk) = (dir.path().join("raw"), dir.path().join("disk"));
        fs::File::create(&raw).unwrap().set_len(16 * MIB).unwrap();
        volatile(&raw, &disk).unwrap();
        let writes = ["write -P 0xaa 0 64k", "flush", "write -P 0xbb 1M 64k", "abort"];
        let mut killed = Command::new("qemu-io");
        killed
            .args(["-t", "writeback"])
            .args(writes.iter().flat_map(|write| ["-c", write]))
            .arg(&disk);
        assert_ne!(crate::process::listen(&mut killed, LIMIT).unwrap().0, Some(0));
        let mut look = Command::new("qemu-io");
        look.args(["-c", "read -P 0xaa 0 64k", "-c", "read -P 0 1M 64k"]).arg(&disk);
        let said = run(&mut look, LIMIT).unwrap().join("\n");
        assert!(!said.contains("failed"), "{said}");
    }

    #[test]
    fn a_tree_that_is_not_there_is_named() {
        let error = make(Path::new("/nonexistent/tree"), Path::new("/x"), 1).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/tree"));
    }
}
