//! Manifest of a directory, to compare it before and after a command.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::archive::digest;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestEntry {
    /// Type and mode, uid, gid, device number of a node, inode.
    pub state: [u64; 5],
    /// sha256 of a file, or of a link's target; empty for others.
    pub content: String,
    /// Time of the last change (ctime) in ns: of content, mode, owner, extended attributes or name.
    pub changed: i128,
}

/// Returns all entries below `dir` and `dir` itself, by their path. Links are not followed.
pub fn manifest(dir: &Path) -> BTreeMap<PathBuf, ManifestEntry> {
    let mut entries = BTreeMap::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path).expect("an entry");
        let kind = found.file_type();
        let content = if kind.is_symlink() {
            digest(fs::read_link(&path).expect("a link").as_os_str().as_bytes())
        } else if kind.is_file() {
            digest(&fs::read(&path).expect("a file"))
        } else {
            String::new()
        };
        if kind.is_dir() {
            left.extend(
                fs::read_dir(&path).expect("a directory").map(|e| e.expect("entry").path()),
            );
        }
        let state = [
            found.mode().into(),
            found.uid().into(),
            found.gid().into(),
            found.rdev(),
            found.ino(),
        ];
        let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        entries.insert(path, ManifestEntry { state, content, changed });
    }
    entries
}
