//! User-mode files of a driver: libraries, tools and GSP firmware, assembled from an archive's
//! packages or a .run file into a driver root in the store.
//!
//! ```text
//! userspace/VERSION-ARCH-DIGEST/manifest.json    every path of root/, and the packages it is from
//! userspace/VERSION-ARCH-DIGEST/hashed.json      hashes of its files, and their times
//! userspace/VERSION-ARCH-DIGEST/damaged          marks a damaged tree, with the reason
//! userspace/VERSION-ARCH-DIGEST/root/            the files to expose (see expose::tree)
//! userspace/VERSION-ARCH-DIGEST.2/               in place of one that is damaged (see generations)
//! ```

pub mod assemble;
mod assembly;
pub mod generations;
pub mod manifest;
pub mod packed;
#[cfg(test)]
pub(super) mod sample;
mod selection;
pub mod sources;
pub mod switches;

use std::fs;
use std::path::PathBuf;

use longshore_core::disk::Disk;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_debian::version;
use serde::{Deserialize, Serialize};

pub use assemble::{assemble, assemble_run_file};
pub use manifest::{Depth, Manifest, PackageUsed};
pub use manifest::{examine, manifest_of, verify, verify_root};

pub use crate::tree_entries::TreeEntry;

/// An assembled user-mode tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailableUserspace {
    /// Driver version it belongs to.
    pub driver_version: String,
    /// `uname -m`.
    pub arch: String,
    /// Directory of the tree (the store's `userspace/NAME/root`).
    pub root: PathBuf,
    /// Flavour of the kernel sources in it; None where it has none.
    #[serde(default)]
    pub sources: Option<Flavour>,
    /// Programs in its `usr/bin`; empty for a tree that is not assembled yet.
    #[serde(default)]
    pub tools: Vec<String>,
}

/// Lists the trees in the store, newest driver version first and within a version the last
/// assembled first.
///
/// A tree that differs from its manifest in a quick comparison is logged and left out: it is
/// assembled again when its driver version is wanted.
///
/// # Errors
/// Exit code 15 where the store cannot be listed.
pub fn available(store: &Store) -> Result<Vec<AvailableUserspace>, Failure> {
    let dir = store.dir("userspace");
    let listing = || format!("listing {}", dir.display());
    let mut trees = Vec::new();
    for entry in fs::read_dir(&dir).or_fail(FailureKind::Preflight, listing)? {
        let path = entry.or_fail(FailureKind::Preflight, listing)?.path();
        let root = path.join("root");
        // Files beside the root are written later, too.
        let made = fs::metadata(&root).and_then(|directory| directory.modified()).ok();
        match sound_tree(root, store.disk()) {
            Ok(tree) => {
                trees.push((made, tree));
            }
            Err(failure) => tracing::warn!("a user-mode tree was ignored: {}", failure.one_line()),
        }
    }
    trees.sort_by(|(made_a, a), (made_b, b)| {
        version::compare(&b.driver_version, &a.driver_version).then(made_b.cmp(made_a))
    });
    Ok(trees.into_iter().map(|(_, tree)| tree).collect())
}

fn sound_tree(root: PathBuf, disk: Disk) -> Result<AvailableUserspace, Failure> {
    let manifest = manifest::of_root(&root)?;
    manifest.verify(&root, Depth::Quick, disk)?;
    let tools = manifest.tools();
    let Manifest { driver_version, arch, sources, .. } = manifest;
    Ok(AvailableUserspace { driver_version, arch, root, sources, tools })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn add(store: &Store, name: &str, driver_version: &str, age: u64) {
        let dir = store.dir("userspace").join(name);
        fs::create_dir_all(dir.join("root")).expect("made");
        let manifest = Manifest::new(driver_version, "x86_64");
        let text = serde_json::to_vec(&manifest).expect("json");
        fs::write(dir.join("manifest.json"), text).expect("written");
        let made = SystemTime::now() - Duration::from_secs(age);
        fs::File::open(dir.join("root")).and_then(|dir| dir.set_modified(made)).expect("dated");
    }

    #[test]
    fn the_newest_version_and_the_latest_of_it_come_first() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        add(&store, "a", "535.261.03", 10);
        add(&store, "b", "550.163.01", 500);
        add(&store, "c", "535.261.03", 5);
        add(&store, "d", "1000.1", 900);
        add(&store, "changed", "535.261.03", 1);
        fs::write(store.dir("userspace/changed/root/x"), "").expect("written");
        fs::create_dir(store.dir("userspace/half")).expect("made");
        let names: Vec<_> = available(&store)
            .expect("listed")
            .iter()
            .map(|tree| tree.root.parent().and_then(|p| p.file_name()).expect("name").to_owned())
            .collect();
        assert_eq!(names, ["d", "b", "c", "a"]);
    }
}
