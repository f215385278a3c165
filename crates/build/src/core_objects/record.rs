//! Record of core objects in the store: `core/DIGEST.json`, named after what decides them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;
use longshore_modules::artifact::InputPackage;

/// Version of the record's format.
const FORMAT: u32 = 1;

/// Core objects of one tree by one compiler; the objects are blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CoreRecord {
    format: u32,
    /// Driver version.
    pub(crate) version: String,
    /// sha256 (hex) of the tree.
    pub(crate) tree: String,
    /// First line of the compiler's `--version`.
    pub(crate) compiler: String,
    /// sha256 (hex) of each object, by its path among the kernel's sources.
    pub(crate) objects: BTreeMap<String, String>,
    /// Packages of the root that compiled it; none where the root was given.
    pub(crate) packages: Vec<InputPackage>,
}

impl CoreRecord {
    pub(super) fn new(version: &str, tree: &str, compiler: &str) -> Self {
        Self {
            format: FORMAT,
            version: version.to_owned(),
            tree: tree.to_owned(),
            compiler: compiler.to_owned(),
            objects: BTreeMap::new(),
            packages: Vec::new(),
        }
    }
}

fn path(key: &str) -> PathBuf {
    Path::new("core").join(format!("{key}.json"))
}

/// Path of the lock of processes that compile the same.
pub(super) fn lock_path(key: &str, store: &Store) -> PathBuf {
    store.dir("core").join(format!(".{key}.lock"))
}

/// Returns the record, where the store has it with all objects; these count as used now.
pub(super) fn find(key: &str, store: &Store) -> Option<CoreRecord> {
    let file = path(key);
    let bytes = fs::read(store.entry(&file)).ok()?;
    let read: Result<CoreRecord, _> = serde_json::from_slice(&bytes);
    let record = match read {
        Ok(record) if record.format == FORMAT => record,
        Ok(record) => {
            tracing::debug!(
                format = record.format,
                "core objects of another format are compiled again"
            );
            return None;
        }
        Err(error) => {
            tracing::warn!("compiling core objects again: {}: {error}", file.display());
            return None;
        }
    };
    let is_there = record.objects.values().all(|sha256| store.has_blob(sha256));
    if !is_there || record.objects.is_empty() {
        return None;
    }
    store.mark_used(&file);
    record.objects.values().for_each(|sha256| store.mark_used(&store.blob_path(sha256)));
    Some(record)
}

/// Writes the record, after its objects.
///
/// # Errors
/// Exit code 15 where the store cannot be written.
pub(super) fn keep(key: &str, record: &CoreRecord, store: &Store) -> Result<(), Failure> {
    let what = || "writing down core objects".to_owned();
    let bytes = serde_json::to_vec_pretty(record).or_fail(FailureKind::Bug, what)?;
    store.write_file(&path(key), &bytes)
}
