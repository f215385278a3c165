//! ext4 images of directory trees. They are sparse; guests get snapshots of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_core::deadlines::Deadlines;
use longshore_core::disk::Disk;

use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};

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
    let size = Size::measure(tree)?;
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
    copy_sparse(image, to)?;
    run(Command::new("tune2fs").args(["-O", "has_journal"]).arg(to), LIMIT)?;
    Ok(())
}

/// Copies an image, with room for the contents of another one.
///
/// # Errors
/// An image cannot be read; cp or resize2fs failed.
pub fn larger(image: &Path, other: &Path, to: &Path) -> Result<(), Error> {
    let size = |path: &Path| Ok::<_, Error>(fs::metadata(path).at("look at", path)?.len());
    let mib = (size(image)? + size(other)?).div_ceil(MIB);
    copy_sparse(image, to)?;
    // Nothing has written to the copy, so that it needs no check before.
    run(Command::new("resize2fs").args(["-f"]).arg(to).arg(format!("{mib}M")), LIMIT)?;
    Ok(())
}

/// Copies an image; blocks of zeros take no space.
///
/// # Errors
/// cp failed.
pub fn copy_sparse(image: &Path, to: &Path) -> Result<(), Error> {
    run(Command::new("cp").arg("--sparse=always").arg(image).arg(to), LIMIT).map(drop)
}

/// Returns the JSON files of a directory, sorted by name; none where there is no directory yet.
///
/// # Errors
/// The directory cannot be read.
pub fn json_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.at("read", dir)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.at("read", dir)?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the paths of all files and directories below `tree`, relative to it.
///
/// # Errors
/// A directory cannot be read.
pub fn paths(tree: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let (mut found, mut open) = (BTreeSet::new(), vec![tree.to_path_buf()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).at("read", &dir)? {
            let path = entry.at("read", &dir)?.path();
            if fs::symlink_metadata(&path).at("inspect", &path)?.is_dir() {
                open.push(path.clone());
            }
            found.extend(path.strip_prefix(tree).map(Path::to_path_buf).ok());
        }
    }
    Ok(found)
}

/// Adds the files and directories below `tree` to an image that has those of `before`. No mount is needed.
///
/// # Errors
/// debugfs is missing or failed, or a path has a character that its commands cannot have.
pub fn add(tree: &Path, before: &BTreeSet<PathBuf>, image: &Path) -> Result<(), Error> {
    let (mut commands, mut wanted) = (String::new(), 0);
    for path in paths(tree)?.difference(before) {
        let shown = path.to_string_lossy();
        if shown.contains(|c: char| c == '"' || c.is_control()) {
            let why = format!("{shown:?}: no name for debugfs; add it to the image in another way");
            return Err(Error::Unexpected(why));
        }
        if tree.join(path).is_dir() {
            commands.push_str(&format!("mkdir \"/{shown}\"\n"));
        } else {
            commands.push_str(&format!("write \"{shown}\" \"/{shown}\"\n"));
            wanted += 1;
        }
    }
    let script = image.with_extension("debugfs");
    fs::write(&script, commands).at("write", &script)?;
    let mut debugfs = Command::new("debugfs");
    debugfs.arg("-w").arg("-f").arg(absolute(&script)?).arg(absolute(image)?).current_dir(tree);
    let said = run(&mut debugfs, LIMIT)?;
    // debugfs ends with 0 after a failed command, too: it reports an inode for each file that it wrote.
    let made = said.iter().filter(|line| line.starts_with("Allocated inode: ")).count();
    let is_fault = |line: &String| line.starts_with("mkdir: ") || line.starts_with("write: ");
    if made == wanted && !said.iter().any(is_fault) {
        return fs::remove_file(&script).at("remove", &script);
    }
    let (image, said) = (image.display(), said.join("; "));
    Err(Error::Unexpected(format!("{image}: {made} of {wanted} files were added: {said}")))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().at("find", path)
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
    fn measure(dir: &Path) -> Result<Self, Error> {
        let mut total = Self::default();
        for entry in fs::read_dir(dir).at("read", dir)? {
            let entry = entry.at("read", dir)?;
            let metadata = entry.metadata().at("look at", &entry.path())?;
            total.files += 1;
            total.bytes += metadata.size().next_multiple_of(4096);
            if metadata.is_dir() {
                let below = Self::measure(&entry.path())?;
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
        let large = dir.path().join("large");
        larger(&image, &image, &large).unwrap();
        let size = |path: &Path| fs::metadata(path).unwrap().len();
        assert_eq!(size(&large), 2 * size(&image));
        let shown =
            run(Command::new("debugfs").args(["-R", "cat /a/file"]).arg(&large), LIMIT).unwrap();
        assert!(shown.contains(&"content".to_owned()), "{shown:?}");
        let kept = dir.path().join("kept");
        copy(&image, &kept).unwrap();
        let described =
            run(Command::new("dumpe2fs").arg("-h").arg(&kept), LIMIT).unwrap().join("\n");
        assert!(described.contains("has_journal"), "{described}");
    }

    #[test]
    fn files_are_added_to_a_copy_of_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
        fs::create_dir_all(tree.join("a")).unwrap();
        fs::write(tree.join("a/old"), "old").unwrap();
        make(&tree, &image, 1).unwrap();
        let before = paths(&tree).unwrap();
        fs::create_dir(tree.join("a/b c")).unwrap();
        fs::write(tree.join("a/b c/new"), "new content").unwrap();
        let copied = dir.path().join("copied");
        copy_sparse(&image, &copied).unwrap();
        add(&tree, &before, &copied).unwrap();
        let dump = |image: &Path| {
            let mut debugfs = Command::new("debugfs");
            run(debugfs.args(["-R", "cat \"/a/b c/new\""]).arg(image), LIMIT).unwrap().join(" ")
        };
        assert!(dump(&copied).contains("new content"), "{}", dump(&copied));
        assert!(!dump(&image).contains("new content"), "{}", dump(&image));
        run(Command::new("e2fsck").arg("-fn").arg(&copied), LIMIT).unwrap();
        let error = add(&tree, &before, &copied).unwrap_err().to_string();
        assert!(error.contains("0 of 1 files were added"), "a second time: {error}");
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
        assert_ne!(crate::host::process::listen(&mut killed, LIMIT).unwrap().0, Some(0));
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
