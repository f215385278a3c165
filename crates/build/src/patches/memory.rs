//! Cache of [`super::select`]'s results, by a digest of their inputs: a set's key can then be
//! computed without unpacking headers and sources again.

use std::fs;
use std::path::{Path, PathBuf};

use super::Applied;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

fn path(question: &str) -> PathBuf {
    Path::new("patches").join(format!("{question}.json"))
}

/// Returns the patches that were selected, or None where the cache has no entry.
pub(crate) fn recall(store: &Store, question: &str) -> Option<Applied> {
    let bytes = fs::read(store.root().join(path(question))).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// # Errors
/// Exit code 15 where the store cannot be written.
pub(crate) fn keep(store: &Store, question: &str, applied: &Applied) -> Result<(), Failure> {
    let bytes =
        serde_json::to_vec(applied).or_fail(FailureKind::Bug, || "writing down the patches")?;
    store.write_file(&path(question), &bytes)
}
