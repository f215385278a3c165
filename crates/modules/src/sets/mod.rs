//! Module sets in the store: one JSON file each, its modules as blobs.

pub mod core_objects;
pub mod index_versions;
pub mod modules;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::artifact::{BuildRecord, ModuleKey, ModuleSet};
use crate::signature::{Evidence, MAX_EVIDENCE};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

pub use modules::VerifiedModule;

/// Size limit of a set's description, which has a few kB.
const MAX_DESCRIPTION: u64 = 1 << 20;
/// Size limit of the record of a compile; one of 70 packages has 12 kB.
const MAX_RECORD: u64 = 1 << 20;
/// Path of the record of the sets that fit, below the store's root.
const FITS: &str = "fits.json";
/// Format version of that file; another version counts as no file.
const FITS_FORMAT: u32 = 1;
/// Size limit of that file; a set's name has some eighty bytes.
const MAX_FITS: u64 = 1 << 20;

/// Sets that are known to fit the kernel they are for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fits {
    format: u32,
    sets: BTreeSet<String>,
}

/// Module sets of a content-addressed store, as files beside its blobs.
pub trait SetStore {
    /// Records a set whose modules are already blobs of this store; returns the path of the record.
    ///
    /// # Errors
    /// Exit code 13 where the set contradicts itself or a module is not in the store, 15 where
    /// the store cannot be written.
    fn put_set(&self, set: &ModuleSet) -> Result<PathBuf, Failure>;

    /// Returns all sets of the store, sorted by name. Unreadable ones are skipped with a warning in
    /// the log: one damaged file must not hide the others.
    ///
    /// The modules themselves are verified when they are read.
    ///
    /// # Errors
    /// Exit code 15 where the directory of sets cannot be listed.
    fn sets(&self) -> Result<Vec<ModuleSet>, Failure>;

    /// Returns the set with exactly this key; None if the store has none or one of its modules is
    /// absent or damaged (then it has to be built or fetched again).
    ///
    /// # Errors
    /// Only if the store cannot be read at all.
    fn find_set(&self, key: &ModuleKey) -> Result<Option<ModuleSet>, Failure>;

    /// True if every module of `set` exists and matches its digest. A module that was hashed since
    /// the host booted, and not written since, is not read again.
    fn holds(&self, set: &ModuleSet) -> bool;

    /// Reads a module; verifies it against its digest unless that was done since the host booted
    /// and the file was not written since.
    ///
    /// # Errors
    /// As [`Store::read_blob`].
    fn read_module(&self, sha256: &str) -> Result<Vec<u8>, Failure>;

    /// Opens a module that was verified since the host booted, and not written to since; None if
    /// that is not recorded.
    ///
    /// # Errors
    /// 12 where it is absent, 15 where it cannot be opened.
    fn verified_module(&self, sha256: &str) -> Result<Option<VerifiedModule>, Failure>;

    /// Returns the names of sets whose symbols and vermagic match the kernel in their key; empty if
    /// the record cannot be read.
    fn known_to_fit(&self) -> BTreeSet<String>;

    /// Records the names of sets that fit, and drops those that are gone. If that cannot be written
    /// they are compared again.
    fn note_fits(&self, sets: impl IntoIterator<Item = String>);

    /// Records a set that was compiled here: against the headers of the kernel in its key.
    fn note_compiled(&self, set: &ModuleSet);

    /// Stores the evidence of a set.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    fn put_evidence(&self, set: &ModuleSet, evidence: &Evidence) -> Result<(), Failure>;

    /// The evidence of a set; None if there is none or it cannot be read.
    fn evidence(&self, set: &ModuleSet) -> Option<Evidence>;

    /// Stores the record of the compile that made a set.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    fn put_build_record(&self, set: &ModuleSet, record: &BuildRecord) -> Result<(), Failure>;

    /// The record of the compile that made exactly the modules of a set; None if they were not compiled
    /// into this store, or the record cannot be read.
    fn build_record(&self, set: &ModuleSet) -> Option<BuildRecord>;
}

impl SetStore for Store {
    fn put_set(&self, set: &ModuleSet) -> Result<PathBuf, Failure> {
        let name = format!("{}.json", set.key.file_stem());
        set.check().or_fail(FailureKind::Verification, || format!("storing the set {name}"))?;
        if let Some(absent) = set.modules.iter().find(|m| !self.has_blob(&m.sha256)) {
            let cause = format!("storing the set {name}: {} is not in the store", absent.file);
            return Err(Failure::new(FailureKind::Verification, cause));
        }
        let bytes = serde_json::to_vec_pretty(set)
            .or_fail(FailureKind::Bug, || format!("writing the set {name}"))?;
        if bytes.len() as u64 > MAX_DESCRIPTION {
            let cause =
                format!("storing the set {name}: its description has {} bytes", bytes.len());
            return Err(Failure::new(FailureKind::Verification, cause)
                .remedy(format!("a description has at most {MAX_DESCRIPTION} bytes")));
        }
        let relative = Path::new("sets").join(name);
        self.write_file(&relative, &bytes)?;
        Ok(self.root().join(relative))
    }

    fn sets(&self) -> Result<Vec<ModuleSet>, Failure> {
        let dir = self.dir("sets");
        let list = || -> std::io::Result<Vec<PathBuf>> {
            fs::read_dir(&dir)?.map(|entry| Ok(entry?.path())).collect()
        };
        let mut paths =
            list().or_fail(FailureKind::Preflight, || format!("listing {}", dir.display()))?;
        paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
        paths.sort();
        Ok(paths.iter().filter_map(|path| read_or_warn(path)).collect())
    }

    fn find_set(&self, key: &ModuleKey) -> Result<Option<ModuleSet>, Failure> {
        let path = self.dir("sets").join(format!("{}.json", key.file_stem()));
        let found = if path.exists() { read_or_warn(&path) } else { None };
        Ok(found.filter(|set| set.key == *key && self.holds(set)))
    }

    fn holds(&self, set: &ModuleSet) -> bool {
        modules::holds(self, set)
    }

    fn read_module(&self, sha256: &str) -> Result<Vec<u8>, Failure> {
        modules::read(self, sha256)
    }

    fn verified_module(&self, sha256: &str) -> Result<Option<VerifiedModule>, Failure> {
        modules::verified(self, sha256)
    }

    fn known_to_fit(&self) -> BTreeSet<String> {
        let bytes = first_bytes(&self.dir(FITS), MAX_FITS).unwrap_or_default();
        let record = serde_json::from_slice::<Fits>(&bytes).ok();
        let record = record.filter(|record| record.format == FITS_FORMAT);
        record.map(|record| record.sets).unwrap_or_default()
    }

    fn note_fits(&self, sets: impl IntoIterator<Item = String>) {
        let mut all = self.known_to_fit();
        all.extend(sets);
        all.retain(|name| self.dir("sets").join(format!("{name}.json")).is_file());
        let record = Fits { format: FITS_FORMAT, sets: all };
        let bytes = serde_json::to_vec(&record).unwrap_or_default();
        if let Err(failure) = self.write_file(Path::new(FITS), &bytes) {
            tracing::debug!("symbols will be compared again: {}", failure.one_line());
        }
    }

    fn note_compiled(&self, set: &ModuleSet) {
        self.note_fits([set.key.file_stem()]);
    }

    fn put_evidence(&self, set: &ModuleSet, evidence: &Evidence) -> Result<(), Failure> {
        let what = || "writing the signatures of a set";
        let bytes = serde_json::to_vec(evidence).or_fail(FailureKind::Bug, what)?;
        // Larger than the bounds of its parts permit: it would not be read again.
        if bytes.len() as u64 > MAX_EVIDENCE {
            let length = bytes.len();
            let cause = format!("they have {length} bytes, and {MAX_EVIDENCE} at most are kept");
            return Err(Failure::new(FailureKind::Verification, what()).with_source(cause));
        }
        self.write_file(&beside(&set.key, "evidence"), &bytes)
    }

    fn evidence(&self, set: &ModuleSet) -> Option<Evidence> {
        let path = self.root().join(beside(&set.key, "evidence"));
        if fs::metadata(&path).ok()?.len() > MAX_EVIDENCE {
            return None;
        }
        serde_json::from_slice(&fs::read(&path).ok()?)
            .inspect_err(|e| tracing::warn!(path = %path.display(), "unreadable signatures: {e}"))
            .ok()
    }

    fn put_build_record(&self, set: &ModuleSet, record: &BuildRecord) -> Result<(), Failure> {
        let bytes = serde_json::to_vec_pretty(record)
            .or_fail(FailureKind::Bug, || "writing the record of a compile")?;
        self.write_file(&beside(&set.key, "build"), &bytes)
    }

    fn build_record(&self, set: &ModuleSet) -> Option<BuildRecord> {
        let path = self.root().join(beside(&set.key, "build"));
        let shown = path.display();
        let record: BuildRecord = serde_json::from_slice(&first_bytes(&path, MAX_RECORD)?)
            .inspect_err(|e| tracing::warn!(path = %shown, "unreadable record of a compile: {e}"))
            .ok()?;
        record.is_of(set).then_some(record)
    }
}

/// Returns the path of a file beside the set with this key, below the store's root.
fn beside(key: &ModuleKey, ending: &str) -> PathBuf {
    Path::new("sets").join(format!("{}.{ending}", key.file_stem()))
}

/// Reads the first bytes of a file, at most `most`; None where it cannot be read.
fn first_bytes(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn read_or_warn(path: &Path) -> Option<ModuleSet> {
    read(path)
        .inspect_err(|error| tracing::warn!(path = %path.display(), "skipping a set: {error}"))
        .ok()
}

fn read(path: &Path) -> Result<ModuleSet, Box<dyn std::error::Error>> {
    if fs::metadata(path)?.len() > MAX_DESCRIPTION {
        return Err("too large for the description of a set".into());
    }
    let set: ModuleSet = serde_json::from_slice(&fs::read(path)?)?;
    set.check()?;
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::image::Described;
    use crate::signature::Signature;
    use crate::signature::attestation::{Attestation, ReadAttestations};
    use crate::signature::image::MAX_PAYLOAD;
    use crate::testing::{build_record, set};
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;

    fn stored() -> (tempfile::TempDir, Store, ModuleSet) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        let mut set = set();
        set.modules[0].sha256 = store.put(b"module").expect("put");
        (dir, store, set)
    }

    #[test]
    fn what_was_put_is_found_by_its_key() {
        let (_dir, store, set) = stored();
        store.put_set(&set).expect("put_set");
        assert_eq!(store.find_set(&set.key).expect("find"), Some(set.clone()));
        assert_eq!(store.sets().expect("sets"), [set]);
    }

    #[test]
    fn a_set_without_its_modules_is_not_stored() {
        let (_dir, store, mut set) = stored();
        set.modules[0].sha256 = "4".repeat(64);
        let failure = store.put_set(&set).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(store.sets().expect("sets").is_empty());
    }

    #[test]
    fn a_set_with_a_damaged_module_is_not_found() {
        let (_dir, store, set) = stored();
        store.put_set(&set).expect("put_set");
        fs::write(store.blob_path(&set.modules[0].sha256), b"damaged").expect("write");
        assert_eq!(store.find_set(&set.key).expect("find"), None);
    }

    #[test]
    fn a_damaged_description_does_not_hide_the_others() {
        let (_dir, store, set) = stored();
        store.put_set(&set).expect("put_set");
        fs::write(store.dir("sets").join("a.json"), b"{").expect("write");
        assert_eq!(store.sets().expect("sets"), [set]);
    }

    #[test]
    fn evidence_that_was_kept_is_read_back_and_damage_is_none() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let set = set();
        assert!(store.evidence(&set).is_none());
        let Described { manifest, config, .. } = Described::from_set(&set).expect("describes");
        let evidence = Evidence::new(manifest, config, Vec::new()).expect("text");
        store.put_evidence(&set, &evidence).expect("keeps");
        assert_eq!(store.evidence(&set), Some(evidence));
        fs::write(store.root().join(beside(&set.key, "evidence")), b"{").expect("write");
        assert!(store.evidence(&set).is_none());
    }

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
        fs::write(store.root().join(beside(&set.key, "build")), b"{").expect("write");
        assert_eq!(store.build_record(&set), None);
    }

    #[test]
    fn the_largest_accepted_evidence_is_kept_and_read_back() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        // Each quote takes two bytes in the file.
        let text = |size: usize| vec![b'"'; size];
        let payload = String::from_utf8(text(MAX_PAYLOAD as usize)).expect("text");
        let signature = Signature { payload, signature: "\"".repeat(2 << 10) };
        let envelope = Attestation::from_bytes(text(1 << 20)).expect("text");
        let attestations = ReadAttestations { attestations: vec![envelope; 8], damaged: None };
        let evidence = Evidence::new(text(1 << 20), text(1 << 20), vec![signature; 64])
            .expect("the largest")
            .with_attestations(attestations);
        let set = set();
        store.put_evidence(&set, &evidence).expect("keeps");
        assert!(store.evidence(&set) == Some(evidence.clone()), "it is read back");

        let attestations = ReadAttestations {
            attestations: vec![evidence.attestations()[0].clone(); 9],
            damaged: None,
        };
        let larger = evidence.with_attestations(attestations);
        let failure = store.put_evidence(&set, &larger).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(Evidence::new(text((1 << 20) + 1), Vec::new(), Vec::new()).is_err());
        assert!(Evidence::new(b"{\0}".to_vec(), Vec::new(), Vec::new()).is_err());
    }
}
