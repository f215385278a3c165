//! Blobs that the store has already, verified before they are used.

use std::path::Path;

use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// Number of blobs that are verified, read or unpacked at a time.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// True if the store has a blob that verifies; a damaged one is removed.
///
/// # Errors
/// Exit code 15 where it cannot be removed.
pub(super) fn holds(store: &Store, sha256: &str) -> Result<bool, Failure> {
    if !store.has_blob(sha256) {
        return Ok(false);
    }
    if store.open_blob(sha256).is_ok() {
        store.mark_used(&Path::new("blobs/sha256").join(sha256));
        return Ok(true);
    }
    let path = store.blob_path(sha256);
    tracing::warn!(path = %path.display(), "a blob does not match its digest, fetching it again");
    std::fs::remove_file(&path)
        .or_fail(FailureKind::Disk, || format!("removing {}", path.display()))?;
    Ok(false)
}
