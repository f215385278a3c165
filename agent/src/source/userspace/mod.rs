//! The user-mode half of a driver: libraries, tools and GSP firmware, assembled from an archive's
//! packages into a driver root in the store.
//!
//! ```text
//! userspace/VERSION-ARCH-DIGEST/manifest.json    every path of root/, and the packages it is from
//! userspace/VERSION-ARCH-DIGEST/root/            what the host gets to see (see expose::tree)
//! ```

mod assemble;
mod manifest;
mod parts;
mod place;
mod selection;

use std::fs;

use crate::catalog::UserspaceAtHand;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::source::version;
use crate::store::Store;

pub use assemble::assemble;
pub use manifest::{Depth, Entry, Manifest, PackageUsed, manifest_of, verify};

/// The trees assembled in the store, newest driver version first.
///
/// A directory whose manifest cannot be read is logged and left out: it is assembled again when
/// its driver version is wanted.
///
/// # Errors
/// Exit code 15 where the store cannot be listed.
pub fn at_hand(store: &Store) -> Result<Vec<UserspaceAtHand>, Failure> {
    let dir = store.dir("userspace");
    let listing = || format!("listing {}", dir.display());
    let mut trees = Vec::new();
    for entry in fs::read_dir(&dir).or_fail(ExitCode::Preflight, listing)? {
        let root = entry.or_fail(ExitCode::Preflight, listing)?.path().join("root");
        match manifest::of_root(&root) {
            Ok(Manifest { driver_version, arch, .. }) => {
                trees.push(UserspaceAtHand { driver_version, arch, root });
            }
            Err(failure) => tracing::warn!("leaving a user-mode tree out: {}", failure.report()),
        }
    }
    trees.sort_by(|a, b| {
        version::compare(&b.driver_version, &a.driver_version).then_with(|| a.root.cmp(&b.root))
    });
    Ok(trees)
}
