//! Files, directories and links of an unpacked tree: read, and compared with a record.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use longshore_core::digest::digest_of;
use longshore_core::failure::{Failure, FailureKind};

/// Maximum number of differences that a failure names.
const NAMED: usize = 5;

/// One path of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum TreeEntry {
    /// A directory.
    Dir {
        /// Permission bits.
        mode: u32,
    },
    /// A file.
    File {
        /// Permission bits.
        mode: u32,
        /// Bytes.
        size: u64,
        /// sha256 (hex) of the content.
        sha256: String,
    },
    /// A symbolic link.
    Link {
        /// Its target as written.
        target: PathBuf,
    },
}

/// Compares a tree with its record.
///
/// # Errors
/// Exit code 13 naming the first paths that differ, are missing or do not belong there.
pub(crate) fn compare(
    root: &Path,
    wanted: &BTreeMap<PathBuf, TreeEntry>,
    found: &BTreeMap<PathBuf, TreeEntry>,
) -> Result<(), Failure> {
    let differences = differences(wanted, found);
    if differences.is_empty() {
        return Ok(());
    }
    let more = differences.len().saturating_sub(NAMED);
    let named: Vec<_> = differences.into_iter().take(NAMED).collect();
    let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let cause = format!(
        "the tree {} is not as it was assembled: {}{and_more}",
        root.display(),
        named.join(", ")
    );
    Err(Failure::new(FailureKind::Verification, cause))
}

fn differences(
    wanted: &BTreeMap<PathBuf, TreeEntry>,
    found: &BTreeMap<PathBuf, TreeEntry>,
) -> Vec<String> {
    let changed = wanted.iter().filter_map(|(path, entry)| match found.get(path) {
        None => Some(format!("{} is gone", path.display())),
        Some(other) if other != entry => Some(format!("{} differs", path.display())),
        Some(_) => None,
    });
    let strange = found.keys().filter(|path| !wanted.contains_key(*path));
    changed.chain(strange.map(|path| format!("{} does not belong there", path.display()))).collect()
}

/// Returns every path below `root`, with contents hashed.
pub(crate) fn measure(root: &Path) -> io::Result<BTreeMap<PathBuf, TreeEntry>> {
    read_tree(root, &mut |path, _| digest_of(File::open(root.join(path))?))
}

/// Returns every path below `root`; `digest` returns each file's sha256, by its path below the
/// root.
pub(crate) fn read_tree(
    root: &Path,
    digest: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<String>,
) -> io::Result<BTreeMap<PathBuf, TreeEntry>> {
    let mut entries = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for child in fs::read_dir(root.join(&dir))? {
            let child = child?;
            let path = dir.join(child.file_name());
            let metadata = child.metadata()?;
            let mode = metadata.permissions().mode() & 0o7777;
            let kind = metadata.file_type();
            let entry = if kind.is_dir() {
                dirs.push(path.clone());
                TreeEntry::Dir { mode }
            } else if kind.is_symlink() {
                TreeEntry::Link { target: fs::read_link(child.path())? }
            } else if kind.is_file() {
                TreeEntry::File { mode, size: metadata.size(), sha256: digest(&path, &metadata)? }
            } else {
                let what = format!("{} is neither file, directory nor link", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            };
            entries.insert(path, entry);
        }
    }
    Ok(entries)
}

/// True if a rename failed because another directory has the name.
pub(crate) fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty)
}
