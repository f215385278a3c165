//! Signatures and attestations that a set came with, stored beside the set. They are verified anew at each use, so
//! trust does not depend on who can write to the store.

use std::fs;
use std::path::{Path, PathBuf};

use crate::artifact::{ModuleKey, ModuleSet};
use crate::signature::Evidence;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// Size limit of manifest, config, at most 64 signatures, and 8 MiB of attestations with their
/// quotes escaped.
const MOST_BYTES: u64 = 32 << 20;

/// See [`SetStore::put_evidence`](super::SetStore::put_evidence).
pub(super) fn put(store: &Store, set: &ModuleSet, evidence: &Evidence) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(evidence)
        .or_fail(FailureKind::Bug, || "writing the signatures of a set")?;
    store.write_file(&relative(&set.key), &bytes)
}

/// See [`SetStore::evidence`](super::SetStore::evidence).
pub(super) fn read(store: &Store, set: &ModuleSet) -> Option<Evidence> {
    let path = store.root().join(relative(&set.key));
    if fs::metadata(&path).ok()?.len() > MOST_BYTES {
        return None;
    }
    let read = fs::read(&path).ok()?;
    serde_json::from_slice(&read)
        .inspect_err(|e| tracing::warn!(path = %path.display(), "unreadable signatures: {e}"))
        .ok()
}

fn relative(key: &ModuleKey) -> PathBuf {
    Path::new("sets").join(format!("{}.evidence", key.file_stem()))
}

#[cfg(test)]
mod tests {
    use super::super::SetStore;
    use super::*;
    use crate::artifact::image::Described;
    use crate::testing::set;
    use longshore_core::disk::Disk;

    #[test]
    fn what_was_kept_is_read_back_and_damage_is_none() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let set = set();
        assert!(store.evidence(&set).is_none());
        let Described { manifest, config, .. } = Described::of(&set).expect("describes");
        let evidence = Evidence::new(manifest, config, Vec::new()).expect("text");
        store.put_evidence(&set, &evidence).expect("keeps");
        assert_eq!(store.evidence(&set), Some(evidence));
        fs::write(store.root().join(relative(&set.key)), b"{").expect("write");
        assert!(store.evidence(&set).is_none());
    }
}
