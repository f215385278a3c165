//! Highest version of each registry's index that was seen, in the store's `indexes.json`: an older one is a replay.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use longshore_core::bounded_read;
use longshore_core::store::Store;

/// Name of the file.
const FILE: &str = "indexes.json";
/// Version of the file's format; a file with another is ignored.
const FORMAT: u32 = 1;
/// Maximum number of registries; those with the lowest versions are dropped.
const MOST: usize = 1000;
/// Larger than any record.
const MOST_BYTES: u64 = 1 << 20;

/// Highest versions of indexes, by registry.
#[derive(Debug, Clone)]
pub struct IndexVersions {
    store: Store,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    /// HOST/REPOSITORY -> the highest version.
    highest: BTreeMap<String, u64>,
}

impl IndexVersions {
    /// Returns the record of a store.
    pub fn of(store: &Store) -> Self {
        Self { store: store.clone() }
    }

    /// Returns the highest version of a registry's index (HOST/REPOSITORY); None where none was seen.
    pub fn highest(&self, registry: &str) -> Option<u64> {
        self.read().get(registry).copied()
    }

    /// Keeps a version, unless a higher one is kept. A store that cannot be written is a warning: the index counts
    /// all the same.
    pub fn remember(&self, registry: &str, version: u64) {
        let mut highest = self.read();
        if highest.get(registry).is_some_and(|seen| *seen >= version) {
            return;
        }
        highest.insert(registry.to_owned(), version);
        if highest.len() > MOST {
            let mut by_version: Vec<_> = highest.into_iter().collect();
            by_version.sort_by_key(|(_, version)| Reverse(*version));
            by_version.truncate(MOST);
            highest = by_version.into_iter().collect();
        }
        let record = Record { format: FORMAT, highest };
        let written = serde_json::to_vec_pretty(&record)
            .map_err(|error| error.to_string())
            .and_then(|bytes| self.write(&bytes));
        if let Err(why) = written {
            tracing::warn!("the version {version} of the index of {registry} was not kept: {why}");
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<(), String> {
        self.store.write_file(Path::new(FILE), bytes).map_err(|failure| failure.one_line())
    }

    /// Reads the record, and that in the place of a store that is only read; empty where they are absent or damaged.
    fn read(&self) -> BTreeMap<String, u64> {
        let mut highest = record_in(self.store.root()).unwrap_or_default();
        if self.store.writable() != self.store.root() {
            for (registry, version) in record_in(self.store.writable()).unwrap_or_default() {
                let kept = highest.entry(registry).or_insert(version);
                *kept = version.max(*kept);
            }
        }
        highest
    }
}

fn record_in(dir: &Path) -> Option<BTreeMap<String, u64>> {
    let path = dir.join(FILE);
    let bytes = match bounded_read::read(&path, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), "the versions of indexes are not known: {error}");
            return None;
        }
    };
    let record = serde_json::from_slice::<Record>(&bytes)
        .inspect_err(|error| {
            tracing::warn!(path = %path.display(), "the versions of indexes are not known: {error}");
        })
        .ok();
    record.filter(|record| record.format == FORMAT).map(|record| record.highest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::disk::Disk;
    use rstest::rstest;
    use std::fs;

    const REGISTRY: &str = "registry.example.com/nvidia/modules";

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        (dir, store)
    }

    #[test]
    fn the_highest_version_of_each_registry_is_kept() {
        let (_dir, store) = store();
        let versions = IndexVersions::of(&store);
        assert_eq!(versions.highest(REGISTRY), None);
        for (given, kept) in [(5, 5), (3, 5), (5, 5), (9, 9)] {
            versions.remember(REGISTRY, given);
            assert_eq!(IndexVersions::of(&store).highest(REGISTRY), Some(kept));
        }
        versions.remember("other.example.com/a", 1);
        assert_eq!(versions.highest("other.example.com/a"), Some(1));
        assert_eq!(versions.highest(REGISTRY), Some(9));
    }

    #[test]
    fn many_registries_leave_the_highest_versions() {
        let (_dir, store) = store();
        let highest = (0..MOST as u64).map(|n| (format!("r{n}.example.com/a"), n + 10)).collect();
        let record = Record { format: FORMAT, highest };
        let bytes = serde_json::to_vec(&record).expect("JSON");
        store.write_file(Path::new(FILE), &bytes).expect("writes");
        let versions = IndexVersions::of(&store);
        versions.remember(REGISTRY, 500);
        assert_eq!(versions.highest(REGISTRY), Some(500));
        assert_eq!(versions.highest("r0.example.com/a"), None);
        assert_eq!(versions.highest("r1.example.com/a"), Some(11));
    }

    #[rstest]
    #[case::cut_off(r#"{"format":1,"#)]
    #[case::of_another_form(r#"{"format":2,"highest":{}}"#)]
    #[case::no_json("hello")]
    #[case::too_large(&" ".repeat(2 << 20))]
    fn a_record_that_is_unreadable_is_as_none(#[case] text: &str) {
        let (_dir, store) = store();
        fs::write(store.root().join(FILE), text).expect("written");
        let versions = IndexVersions::of(&store);
        assert_eq!(versions.highest(REGISTRY), None);
        versions.remember(REGISTRY, 7);
        assert_eq!(versions.highest(REGISTRY), Some(7));
    }
}
