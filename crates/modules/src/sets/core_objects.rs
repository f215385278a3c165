//! Core objects of source trees in the store: `core/KEY.json`, their objects as blobs.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::first_bytes;
use crate::artifact::CoreInput;
use crate::artifact::core_objects::{CoreRecord, DescribedCore, MAX_CORE_CONFIG};
use crate::signature::{Evidence, MAX_EVIDENCE};
use longshore_core::digest::is_sha256;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// Directory of the records.
const CORE: &str = "core";
/// Maximum number of records that are listed.
const MOST_LISTED: usize = 1000;

/// Core objects in a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredCore {
    /// Their record.
    pub record: CoreRecord,
    /// Manifest, config and signatures that they were pulled with; None where they were compiled into this store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled: Option<Evidence>,
}

impl StoredCore {
    /// Returns the manifest and config that they were pulled with, or those of their record.
    ///
    /// # Errors
    /// Exit code 13 where what they were pulled with is damaged.
    pub fn describe(&self) -> Result<DescribedCore, Failure> {
        let Some(evidence) = &self.pulled else { return DescribedCore::from_record(&self.record) };
        let (manifest, config) = evidence.signed();
        DescribedCore::assemble(manifest.to_vec(), config.to_vec(), "core objects of the store")
    }

    /// Returns them as an input of a set.
    pub fn input(&self) -> CoreInput {
        CoreInput {
            key: self.record.key.clone(),
            pulled: self.pulled.as_ref().map(Evidence::digest),
        }
    }
}

/// Path of a record below the store's root.
fn path(key: &str) -> PathBuf {
    Path::new(CORE).join(format!("{key}.json"))
}

/// Returns the core objects with this key, where the store has them with all objects.
pub fn find(key: &str, store: &Store) -> Option<StoredCore> {
    let core = read(&path(key), store)?;
    let is_there = core.record.objects.values().all(|object| store.has_blob(&object.sha256));
    (is_there && core.record.key == key).then_some(core)
}

/// Counts core objects as used now.
pub fn mark_used(core: &StoredCore, store: &Store) {
    store.mark_used(&path(&core.record.key));
    for object in core.record.objects.values() {
        store.mark_used(&store.blob_path(&object.sha256));
    }
}

/// Returns the core objects of a tree (sha256, hex) that the store has, by any compiler.
pub fn of_tree(tree: &str, store: &Store) -> Vec<StoredCore> {
    let Ok(entries) = fs::read_dir(store.dir(CORE)) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut keys: Vec<String> = names
        .filter_map(|name| {
            name.strip_suffix(".json").filter(|key| is_sha256(key)).map(str::to_owned)
        })
        .take(MOST_LISTED)
        .collect();
    keys.sort();
    keys.iter().filter_map(|key| find(key, store)).filter(|core| core.record.tree == tree).collect()
}

/// Writes the record, after its objects.
///
/// # Errors
/// Exit code 13 for a record that contradicts itself, 15 where the store cannot be written.
pub fn keep(core: &StoredCore, store: &Store) -> Result<(), Failure> {
    let what = || "storing core objects".to_owned();
    core.record.check().or_fail(FailureKind::Verification, what)?;
    let bytes = serde_json::to_vec_pretty(core).or_fail(FailureKind::Bug, what)?;
    store.write_file(&path(&core.record.key), &bytes)
}

fn read(file: &Path, store: &Store) -> Option<StoredCore> {
    let whole = store.entry(file);
    let bytes = first_bytes(&whole, MAX_EVIDENCE + MAX_CORE_CONFIG)?;
    let read = serde_json::from_slice::<StoredCore>(&bytes).map_err(|e| e.to_string());
    let read = read.and_then(|core| core.record.check().map(|()| core));
    read.inspect_err(|why| tracing::warn!("core objects are not used: {}: {why}", whole.display()))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::core_record;
    use longshore_core::disk::Disk;
    use rstest::rstest;

    fn stored(pulled: bool) -> (tempfile::TempDir, Store, StoredCore) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        fs::create_dir_all(store.dir(CORE)).expect("directory");
        let mut record = core_record();
        for (object, bytes) in record.objects.values_mut().zip([&b"abc"[..], b"defgh"]) {
            object.sha256 = store.put(bytes).expect("stored");
        }
        let described = DescribedCore::from_record(&record).expect("describes");
        let evidence = Evidence::new(described.manifest, described.config, Vec::new());
        let pulled = pulled.then(|| evidence.expect("text"));
        let core = StoredCore { record, pulled };
        keep(&core, &store).expect("kept");
        (dir, store, core)
    }

    #[rstest]
    #[case::compiled(false)]
    #[case::pulled(true)]
    fn a_record_counts_only_with_its_objects(#[case] pulled: bool) {
        let (_dir, store, core) = stored(pulled);
        let key = core.record.key.as_str();
        assert_eq!(find(key, &store), Some(core.clone()));
        assert_eq!(core.input().pulled.is_some(), pulled);
        assert_eq!(of_tree(&core.record.tree, &store), std::slice::from_ref(&core));
        assert!(of_tree(&"0".repeat(64), &store).is_empty());
        let object = core.record.objects.values().next().expect("one");
        fs::remove_file(store.blob_path(&object.sha256)).expect("removed");
        assert_eq!(find(key, &store), None);
        assert!(of_tree(&core.record.tree, &store).is_empty());
    }

    #[rstest]
    #[case::other_key(|dir: &Path, key: &str| drop(fs::rename(dir.join(format!("{key}.json")), dir.join(format!("{}.json", "0".repeat(64))))))]
    #[case::cut_off(|dir: &Path, key: &str| fs::write(dir.join(format!("{key}.json")), "{\"record\":").expect("writes"))]
    #[case::of_another_format(|dir: &Path, key: &str| fs::write(dir.join(format!("{key}.json")), "{\"format\":1}").expect("writes"))]
    fn a_damaged_record_is_none(#[case] damage: fn(&Path, &str)) {
        let (_dir, store, core) = stored(false);
        damage(&store.dir(CORE), &core.record.key);
        assert_eq!(find(&core.record.key, &store), None);
        assert_eq!(find(&"0".repeat(64), &store), None);
        assert!(of_tree(&core.record.tree, &store).is_empty());
    }

    #[test]
    fn a_record_with_other_paths_is_not_kept() {
        let (_dir, store, mut core) = stored(false);
        let object = core.record.objects.pop_first().expect("one").1;
        core.record.objects.insert("../a".into(), object);
        let refused = keep(&core, &store).expect_err("refused");
        assert_eq!(refused.kind(), FailureKind::Verification);
    }
}
