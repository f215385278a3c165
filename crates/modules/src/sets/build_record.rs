//! Records of compiles, stored beside the sets that they made.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::artifact::{BuildRecord, ModuleKey, ModuleSet};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// Size limit; a record of 70 packages has 12 kB.
const LARGEST: u64 = 1 << 20;

/// See [`SetStore::put_build_record`](super::SetStore::put_build_record).
pub(super) fn put(store: &Store, set: &ModuleSet, record: &BuildRecord) -> Result<(), Failure> {
    let bytes = serde_json::to_vec_pretty(record)
        .or_fail(FailureKind::Bug, || "writing the record of a compile")?;
    store.write_file(&relative(&set.key), &bytes)
}

/// See [`SetStore::build_record`](super::SetStore::build_record).
pub(super) fn read(store: &Store, set: &ModuleSet) -> Option<BuildRecord> {
    let path = store.root().join(relative(&set.key));
    let mut bytes = Vec::new();
    File::open(&path).ok()?.take(LARGEST).read_to_end(&mut bytes).ok()?;
    let record: BuildRecord = serde_json::from_slice(&bytes)
        .inspect_err(
            |e| tracing::warn!(path = %path.display(), "unreadable record of a compile: {e}"),
        )
        .ok()?;
    record.is_of(set).then_some(record)
}

fn relative(key: &ModuleKey) -> PathBuf {
    Path::new("sets").join(format!("{}.build", key.file_stem()))
}

#[cfg(test)]
mod tests {
    use super::super::SetStore;
    use super::*;
    use crate::testing::{build_record, set};
    use longshore_core::disk::Disk;

    #[test]
    fn a_record_is_read_back_for_the_set_and_damage_is_none() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let mut set = set();
        assert_eq!(store.build_record(&set), None);
        store.put_build_record(&set, &build_record()).expect("keeps");
        assert_eq!(store.build_record(&set), Some(build_record()));
        // A set with the same key that was fetched over the compiled one.
        let compiled = std::mem::replace(&mut set.modules[0].sha256, "9".repeat(64));
        assert_eq!(store.build_record(&set), None);
        set.modules[0].sha256 = compiled;
        std::fs::write(store.root().join(relative(&set.key)), b"{").expect("write");
        assert_eq!(store.build_record(&set), None);
    }
}
