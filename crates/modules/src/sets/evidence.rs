//! Signatures and attestations that a set came with, stored beside the set. They are verified anew at each use, so
//! trust does not depend on who can write to the store.

use std::fs;
use std::path::{Path, PathBuf};

use crate::artifact::{ModuleKey, ModuleSet};
use crate::signature::{Evidence, MAX_EVIDENCE};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// See [`SetStore::put_evidence`](super::SetStore::put_evidence).
pub(super) fn put(store: &Store, set: &ModuleSet, evidence: &Evidence) -> Result<(), Failure> {
    let what = || "writing the signatures of a set";
    let bytes = serde_json::to_vec(evidence).or_fail(FailureKind::Bug, what)?;
    // Larger than the bounds of its parts permit: it would not be read again.
    if bytes.len() as u64 > MAX_EVIDENCE {
        let cause = format!("they have {} bytes, and {MAX_EVIDENCE} at most are kept", bytes.len());
        return Err(Failure::new(FailureKind::Verification, what()).with_source(cause));
    }
    store.write_file(&relative(&set.key), &bytes)
}

/// See [`SetStore::evidence`](super::SetStore::evidence).
pub(super) fn read(store: &Store, set: &ModuleSet) -> Option<Evidence> {
    let path = store.root().join(relative(&set.key));
    if fs::metadata(&path).ok()?.len() > MAX_EVIDENCE {
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
    use crate::signature::Signature;
    use crate::signature::attestation::{Attestation, ReadAttestations};
    use crate::signature::image::MAX_PAYLOAD;
    use crate::testing::set;
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;

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
