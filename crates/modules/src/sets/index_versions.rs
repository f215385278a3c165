//! Highest version of each registry's index that was seen, in the store's `indexes.json`: an older one is a replay.
//!
//! A record that cannot be read or written is a failure: without it a replayed index would count.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use longshore_core::bounded_read;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::locks::{Attempt, LockKind};
use longshore_core::store::Store;

/// Name of the file.
const FILE: &str = "indexes.json";
/// Name of the lock that is held while the file is read, changed and written.
const LOCK: &str = "indexes.lock";
/// Time limit of the wait for that lock, which others hold for one write.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Version of the file's format; a file with another is refused.
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
    pub fn new(store: &Store) -> Self {
        Self { store: store.clone() }
    }

    /// Returns the highest version of a registry's index (HOST/REPOSITORY); None where none was seen.
    ///
    /// # Errors
    /// Exit code 15 where there is a record that cannot be read.
    pub fn highest(&self, registry: &str) -> Result<Option<u64>, Failure> {
        Ok(self.read()?.get(registry).copied())
    }

    /// The same for a command that only looks: None, too, where this user may not read the record.
    ///
    /// # Errors
    /// As [`Self::highest`].
    pub fn highest_to_look(&self, registry: &str) -> Result<Option<u64>, Failure> {
        match self.highest(registry) {
            Err(failure) if may_not_read(&self.store.root().join(FILE)) => {
                tracing::debug!("{}", failure.one_line());
                Ok(None)
            }
            highest => highest,
        }
    }

    /// Keeps a version, unless a higher one is kept; returns the highest one. Of processes that do so at the same time
    /// none lowers a version.
    ///
    /// # Errors
    /// Exit code 15 where the record cannot be read, or a new version cannot be written.
    pub fn remember(&self, registry: &str, version: u64) -> Result<u64, Failure> {
        let known = |highest: &BTreeMap<String, u64>| {
            highest.get(registry).copied().filter(|seen| *seen >= version)
        };
        if let Some(seen) = known(&self.read()?) {
            return Ok(seen);
        }
        let _held = self.lock()?;
        // Another process may have written since.
        let mut highest = self.read()?;
        if let Some(seen) = known(&highest) {
            return Ok(seen);
        }
        highest.insert(registry.to_owned(), version);
        if highest.len() > MOST {
            let mut by_version: Vec<_> = highest.into_iter().collect();
            // The new one is never dropped.
            by_version.sort_by_key(|(name, version)| (name != registry, Reverse(*version)));
            by_version.truncate(MOST);
            highest = by_version.into_iter().collect();
        }
        let bytes = serde_json::to_vec_pretty(&Record { format: FORMAT, highest })
            .or_fail(FailureKind::Bug, || "writing the versions of indexes")?;
        self.store.write_file(Path::new(FILE), &bytes)?;
        Ok(version)
    }

    fn lock(&self) -> Result<Flock<File>, Failure> {
        let path = self.store.writable().join(LOCK);
        let fail = |e| write_failure(&path, e);
        let mut attempt = Attempt::begin(&path, LockKind::Exclusive, LOCK_LIMIT).map_err(fail)?;
        let held = attempt.within_limit_here().map_err(fail)?;
        held.ok_or_else(|| {
            let (path, holders) = (path.display(), attempt.holders());
            let cause = format!("the lock {path} is still held after {LOCK_LIMIT:?}{holders}");
            Failure::new(FailureKind::Preflight, cause)
                .remedy("end the process that holds it, and run again")
        })
    }

    /// Reads the record, and that in the place of a store that is only read; empty where they are absent.
    fn read(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let (root, writable) = (self.store.root(), self.store.writable());
        if writable == root {
            return record_in(root);
        }
        let mut highest = match record_in(root) {
            // A store that this user may not read is empty for a command that only looks.
            Err(failure) if may_not_read(&root.join(FILE)) => {
                tracing::debug!("{}", failure.one_line());
                BTreeMap::new()
            }
            read => read?,
        };
        for (registry, version) in record_in(writable)? {
            let kept = highest.entry(registry).or_insert(version);
            *kept = version.max(*kept);
        }
        Ok(highest)
    }
}

fn may_not_read(path: &Path) -> bool {
    File::open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// Reads the record of a directory; empty where it has none.
///
/// # Errors
/// Exit code 15 for one that cannot be read, or that no such version wrote.
fn record_in(dir: &Path) -> Result<BTreeMap<String, u64>, Failure> {
    let path = dir.join(FILE);
    let bytes = match bounded_read::read(&path, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(unreadable(&path, error)),
    };
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| unreadable(&path, error.into()))?;
    match record.format {
        FORMAT => Ok(record.highest),
        other => {
            let why = format!("its format is {other}, and {FORMAT} is known");
            Err(unreadable(&path, io::Error::other(why)))
        }
    }
}

fn unreadable(path: &Path, error: io::Error) -> Failure {
    let shown = path.display();
    let what = format!("reading the versions of indexes that were seen, {shown}");
    Failure::new(FailureKind::Disk, what).with_source(error).remedy(format!(
        "if the store is damaged, remove the file {shown}: the next index then counts as the first"
    ))
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
        let versions = IndexVersions::new(&store);
        assert_eq!(versions.highest(REGISTRY).expect("none yet"), None);
        for (given, kept) in [(5, 5), (3, 5), (5, 5), (9, 9)] {
            assert_eq!(versions.remember(REGISTRY, given).expect("keeps"), kept);
            let read = IndexVersions::new(&store).highest(REGISTRY).expect("reads");
            assert_eq!(read, Some(kept));
        }
        versions.remember("other.example.com/a", 1).expect("keeps");
        assert_eq!(versions.highest("other.example.com/a").expect("reads"), Some(1));
        assert_eq!(versions.highest(REGISTRY).expect("reads"), Some(9));
    }

    #[test]
    fn many_registries_leave_the_highest_versions() {
        let (_dir, store) = store();
        let highest = (0..MOST as u64).map(|n| (format!("r{n}.example.com/a"), n + 10)).collect();
        let record = Record { format: FORMAT, highest };
        let bytes = serde_json::to_vec(&record).expect("JSON");
        store.write_file(Path::new(FILE), &bytes).expect("writes");
        let versions = IndexVersions::new(&store);
        for (version, lost, left) in [(500, 0, 1), (501, 0, 1)] {
            versions.remember(REGISTRY, version).expect("keeps");
            let highest = |name: &str| versions.highest(name).expect("reads");
            assert_eq!(highest(REGISTRY), Some(version));
            assert_eq!(highest(&format!("r{lost}.example.com/a")), None);
            assert_eq!(highest(&format!("r{left}.example.com/a")), Some(left + 10));
        }
        // One of the lowest versions is kept as well.
        versions.remember("low.example.com/a", 1).expect("keeps");
        assert_eq!(versions.highest("low.example.com/a").expect("reads"), Some(1));
        assert_eq!(versions.highest("r1.example.com/a").expect("reads"), None);
    }

    /// Several processes at once, each of which would write what it read before.
    #[test]
    fn no_version_is_lowered_or_lost_where_many_are_remembered_at_once() {
        let (_dir, store) = store();
        let name = |n: u64| format!("r{n}.example.com/a");
        std::thread::scope(|scope| {
            for n in 0..4 {
                let versions = IndexVersions::new(&store);
                scope.spawn(move || {
                    for round in 1..4 {
                        let version = 10 * round + n;
                        let kept = versions.remember(REGISTRY, version).expect("keeps");
                        assert!(kept >= version, "{kept} is below {version}");
                        versions.remember(&name(n), version).expect("keeps");
                    }
                });
            }
        });
        let versions = IndexVersions::new(&store);
        assert_eq!(versions.highest(REGISTRY).expect("reads"), Some(33));
        for n in 0..4 {
            assert_eq!(versions.highest(&name(n)).expect("reads"), Some(30 + n));
        }
    }

    #[rstest]
    #[case::cut_off(r#"{"format":1,"#)]
    #[case::of_another_form(r#"{"format":2,"highest":{}}"#)]
    #[case::no_json("hello")]
    #[case::empty("")]
    #[case::too_large(&" ".repeat(2 << 20))]
    fn a_record_that_is_unreadable_is_refused_until_it_is_removed(#[case] text: &str) {
        let (_dir, store) = store();
        let path = store.root().join(FILE);
        fs::write(&path, text).expect("written");
        let versions = IndexVersions::new(&store);
        let failures = [
            versions.highest(REGISTRY).map(drop).expect_err("refused"),
            versions.remember(REGISTRY, 7).map(drop).expect_err("refused"),
        ];
        for failure in failures {
            assert_eq!(failure.kind(), FailureKind::Disk, "{}", failure.report());
            let remedy = failure.remedy_text().expect("a remedy");
            let wanted = format!("remove the file {}: the next index", path.display());
            assert!(remedy.contains(&wanted), "{remedy}");
        }
        assert_eq!(fs::read_to_string(&path).expect("there"), text, "it is left as it is");
        fs::remove_file(&path).expect("removed");
        assert_eq!(versions.remember(REGISTRY, 7).expect("the first"), 7);
        assert_eq!(versions.highest(REGISTRY).expect("reads"), Some(7));
    }

    /// A directory in the place of the lock: nothing can be written, by no user.
    #[rstest]
    #[case::the_first(None, 7, false)]
    #[case::newer(Some(7), 8, false)]
    #[case::the_same(Some(7), 7, true)]
    #[case::older(Some(7), 6, true)]
    fn a_new_version_that_cannot_be_written_is_a_failure(
        #[case] seen: Option<u64>,
        #[case] version: u64,
        #[case] accepted: bool,
    ) {
        let (_dir, store) = store();
        let versions = IndexVersions::new(&store);
        if let Some(seen) = seen {
            versions.remember(REGISTRY, seen).expect("keeps");
            fs::remove_file(store.root().join(LOCK)).expect("there");
        }
        fs::create_dir(store.root().join(LOCK)).expect("made");
        match versions.remember(REGISTRY, version) {
            Ok(kept) => assert_eq!((accepted, Some(kept)), (true, seen)),
            Err(failure) => {
                assert!(!accepted, "{}", failure.report());
                assert_eq!(failure.kind(), FailureKind::Disk, "{}", failure.report());
            }
        }
        assert_eq!(versions.highest(REGISTRY).expect("reads"), seen);
    }

    /// A store that is only read: its record counts, and a new version is kept beside it.
    #[test]
    fn the_record_of_a_store_that_is_only_read_counts() {
        let (dir, store) = store();
        IndexVersions::new(&store).remember(REGISTRY, 7).expect("keeps");
        let scratch = tempfile::tempdir().expect("temporary directory");
        let read = Store::open_read_only(dir.path(), scratch.path(), Disk::default());
        let versions = IndexVersions::new(&read.expect("opens"));
        for (given, kept) in [(6, 7), (8, 8), (7, 8)] {
            assert_eq!(versions.remember(REGISTRY, given).expect("keeps"), kept);
        }
        assert_eq!(IndexVersions::new(&store).highest(REGISTRY).expect("reads"), Some(7));
    }

    #[test]
    fn the_page_about_deadlines_has_the_lock() {
        longshore_core::testing::assert_in_page("The highest version of an index", LOCK_LIMIT);
    }
}
