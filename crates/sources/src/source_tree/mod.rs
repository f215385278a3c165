//! Trees of NVIDIA's open kernel modules as they are published (open-gpu-kernel-modules): `kernel-open` with the parts that
//! are compiled for each kernel, `src` with those that do not depend on one.
//!
//! A tree is a tar, pinned by its sha256, and lies in the store as a blob of these bytes. A directory is taken as the tar
//! that [`pack`] makes of it, the same bytes on every host. docs/supply-chain/source-trees.md is for users.

mod pack;
mod pin;
mod unpack;

use std::fs::File;
use std::path::PathBuf;

pub use pin::SourceTrees;
pub use unpack::{Part, UnpackedTree};

use crate::driver::{AvailableDriver, DriverOrigin};
use crate::pinned::{PinnedFetcher, keep_failure, repository_of};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::progress::{Progress, Unit};
use longshore_core::redact::redacted;
use longshore_core::store::Store;
use serde::{Deserialize, Serialize};

/// One version of NVIDIA's open kernel modules, as sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTree {
    /// Driver version.
    pub version: String,
    /// sha256 (hex) of the tar, or of the tar that [`pack`] makes of a directory.
    pub sha256: String,
    /// http, https and file URLs of the same tar, and repositories that have it (`oci://HOST/REPOSITORY`), in order of
    /// preference; a file URL may name a directory.
    pub urls: Vec<String>,
}

impl SourceTree {
    /// Returns the driver that can be compiled from it: the open flavour alone.
    pub fn driver(&self) -> AvailableDriver {
        AvailableDriver {
            version: self.version.clone(),
            flavour: Flavour::Open,
            origin: DriverOrigin::SourceTree { urls: self.urls.clone() },
            sha256: self.sha256.clone(),
        }
    }

    /// Returns its name, for example `open-gpu-kernel-modules 580.142`.
    pub fn name(&self) -> String {
        format!("open-gpu-kernel-modules {}", self.version)
    }
}

/// Brings a tree into the store; one that exists already is not fetched again.
///
/// # Errors
/// Exit code 12 where no place has it, 13 where one has other bytes and none the right ones, 15 where the store is full or cannot be
/// written.
pub async fn fetch(
    tree: &SourceTree,
    fetcher: PinnedFetcher<'_>,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    if store.has_blob(&tree.sha256) {
        store.mark_used(&store.blob_path(&tree.sha256));
        return Ok(());
    }
    let mut kept = None;
    for url in &tree.urls {
        let fetched = match directory_of(url) {
            Some(dir) => pack_directory(tree, dir, store).await,
            None => fetch_from(tree, url, fetcher, store, progress).await,
        };
        match fetched {
            Ok(()) => return Ok(()),
            Err(failure) if failure.kind().is_of_host() => return Err(failure),
            Err(failure) => {
                if tree.urls.len() > 1 {
                    tracing::warn!("a place does not have it: {}", failure.one_line());
                }
                keep_failure(&mut kept, failure);
            }
        }
    }
    let name = tree.name();
    Err(kept.unwrap_or_else(|| Failure::new(FailureKind::Usage, format!("{name} without a place"))))
}

/// Returns the directory that a file URL names.
fn directory_of(url: &str) -> Option<PathBuf> {
    let path = reqwest::Url::parse(url).ok()?;
    let path = path.to_file_path().ok().filter(|_| path.scheme() == "file")?;
    path.is_dir().then_some(path)
}

async fn fetch_from(
    tree: &SourceTree,
    url: &str,
    fetcher: PinnedFetcher<'_>,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let task = progress.begin(&format!("fetching {}", tree.name()), None, Unit::Bytes);
    let fetched = fetcher.blob(url, &tree.sha256, store, task.as_ref()).await;
    fetched.map_err(|failure| match failure.kind() {
        // A registry computes the digests of what it gets.
        FailureKind::Verification if repository_of(url).is_none() => failure.remedy(
            "compare it with a copy that you trust: hosts make the tarballs of tags anew, with other bytes of the same \
             files; then pin the new sha256, or keep a copy of your own and name that",
        ),
        _ => failure,
    })
}

/// Packs a directory into the store.
async fn pack_directory(tree: &SourceTree, dir: PathBuf, store: &Store) -> Result<(), Failure> {
    let (wanted, store) = (tree.clone(), store.clone());
    let what = format!("reading {}", dir.display());
    let packing = tokio::task::spawn_blocking(move || pack::into_store(&dir, &wanted, &store));
    packing.await.or_fail(FailureKind::Bug, || what)?
}

/// Unpacks a part of a tree in the store below the empty directory `into`.
///
/// # Errors
/// Exit code 12 where the store lacks it, 13 where it is not a tree of this version, is damaged or has forbidden contents,
/// 15 where `into` cannot be written.
pub fn unpack(
    tree: &SourceTree,
    part: Part,
    store: &Store,
    into: &std::path::Path,
) -> Result<UnpackedTree, Failure> {
    let file: File = store.open_blob(&tree.sha256)?;
    unpack::unpack(tree, part, file, into)
}

/// Returns the places of a tree for a message, without passwords.
pub fn shown(urls: &[String]) -> String {
    urls.first().map(|url| redacted(url)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
