//! Making a driver root of whatever brings its files: checked, completed, written down, kept.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::FlockArg;
use sha2::{Digest, Sha256};

use super::manifest::{Depth, Manifest, PackageUsed, measure, verify};
use super::parts;
use crate::build::claim::{Claimed, claim};
use crate::catalog::UserspaceAtHand;
use crate::expose::tree::{self, Machine};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::store::{Store, hex, lock, write_failure};

/// Part of a tree's digest, so that a change to how trees are laid out makes new ones.
const LAYOUT: &str = "driver-root-1";

/// A driver root to be made.
pub(super) struct Assembly {
    pub(super) machine: Machine,
    pub(super) store: Store,
    /// What it will be.
    pub(super) tree: UserspaceAtHand,
    used: Vec<PackageUsed>,
    missing: Vec<String>,
}

impl Assembly {
    /// `missing` names the parts of the driver that nothing brings.
    pub(super) fn new(
        driver_version: &str,
        machine: Machine,
        used: Vec<PackageUsed>,
        missing: Vec<String>,
        store: &Store,
    ) -> Self {
        let directory = store.dir("userspace").join(name_of(driver_version, machine, &used));
        let tree = UserspaceAtHand {
            driver_version: driver_version.to_owned(),
            arch: machine.uname.to_owned(),
            root: directory.join("root"),
            tools: Vec::new(),
        };
        Self { machine, store: store.clone(), tree, used, missing }
    }

    /// The tree, with the programs that it has by now.
    fn assembled(&self) -> UserspaceAtHand {
        let listed = std::fs::read_dir(self.tree.root.join("usr/bin")).into_iter().flatten();
        let names = listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut tools: Vec<String> = names.collect();
        tools.sort();
        UserspaceAtHand { tools, ..self.tree.clone() }
    }

    /// The tree, where the store has it and it is as it should be.
    pub(super) fn there(&self) -> Option<UserspaceAtHand> {
        if !self.tree.root.exists() {
            return None;
        }
        match verify(&self.tree, Depth::Quick) {
            Ok(()) => Some(self.assembled()),
            Err(failure) => {
                tracing::warn!("assembling it anew: {}", failure.one_line());
                None
            }
        }
    }

    /// Makes the root; `fill` puts libraries, tools and firmware into the empty directory it is
    /// given.
    pub(super) fn carry_out(
        &self,
        fill: impl FnOnce(&Path) -> Result<(), Failure>,
    ) -> Result<UserspaceAtHand, Failure> {
        let scratch = claim(&self.store, "userspace")?;
        let root = scratch.path().join("root");
        fs::create_dir(&root).map_err(|e| write_failure(&root, e))?;
        fill(&root)?;
        let needs = tree::finish(&root, self.machine)?;
        self.check(&root)?;
        self.write_manifest(&root, needs)?;
        let directory = self.tree.root.parent().unwrap_or(&self.tree.root);
        replace(scratch, directory, &self.store, || self.there().is_some())?;
        Ok(self.assembled())
    }

    /// What brought the files holds what its name promises.
    fn check(&self, root: &Path) -> Result<(), Failure> {
        let version = &self.tree.driver_version;
        let library = |name: &str| {
            PathBuf::from(format!("usr/lib/{}/{name}.so.{version}", self.machine.triplet))
        };
        let files = [library("libcuda"), library("libnvidia-ml"), "usr/bin/nvidia-smi".into()];
        let mut absent: Vec<_> = files.iter().filter(|path| !root.join(path).is_file()).collect();
        let firmware = PathBuf::from(format!("lib/firmware/nvidia/{version}"));
        if parts::wants_firmware(version) && !root.join(&firmware).is_dir() {
            absent.push(&firmware);
        }
        if absent.is_empty() {
            return Ok(());
        }
        let absent: Vec<_> = absent.iter().map(|path| path.display().to_string()).collect();
        let used: Vec<_> = self.used.iter().map(|p| p.name.as_str()).collect();
        let cause = format!(
            "the packages of the user-mode driver {version} do not hold {} (unpacked {})",
            absent.join(", "),
            used.join(", ")
        );
        Err(Failure::new(ExitCode::Verification, cause))
    }

    fn write_manifest(&self, root: &Path, needs: Vec<String>) -> Result<(), Failure> {
        let manifest = Manifest {
            packages: self.used.clone(),
            missing: self.missing.clone(),
            needs,
            entries: measure(root).map_err(|e| write_failure(root, e))?,
            ..Manifest::new(&self.tree.driver_version, self.machine.uname)
        };
        let path = root.with_file_name("manifest.json");
        let text = serde_json::to_vec_pretty(&manifest)
            .or_fail(ExitCode::Bug, || format!("writing {}", path.display()))?;
        fs::write(&path, text).map_err(|e| write_failure(&path, e))
    }
}

/// Syncs, and puts the finished directory in its place. What another process has put there meanwhile,
/// and `is_whole`, stays: it may be mounted by now, and removing it would empty that.
pub(super) fn replace(
    scratch: Claimed,
    target: &Path,
    store: &Store,
    is_whole: impl FnOnce() -> bool,
) -> Result<(), Failure> {
    let failed = |e| write_failure(target, e);
    let trees = store.dir("userspace");
    make_readable(scratch.path()).map_err(failed)?;
    // One call for hundreds of files; the rename must not reach the disk before their content.
    let opened = File::open(scratch.path()).map_err(failed)?;
    nix::unistd::syncfs(&opened).map_err(|e| failed(e.into()))?;
    let turn = File::open(&trees).and_then(|dir| lock(dir, FlockArg::LockExclusive));
    let _turn = turn.map_err(failed)?;
    if target.exists() {
        if is_whole() {
            return scratch.close().map_err(failed);
        }
        let aside = scratch.path().join("replaced");
        fs::rename(target, &aside).map_err(failed)?;
        fs::rename(scratch.path(), target).map_err(failed)?;
        fs::remove_dir_all(target.join("replaced")).map_err(failed)?;
    } else {
        fs::rename(scratch.path(), target).map_err(failed)?;
    }
    scratch.moved();
    File::open(&trees).and_then(|dir| dir.sync_all()).map_err(failed)
}

/// A temporary directory is its owner's alone, and the tree is for everybody.
fn make_readable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A directory name that says what is in it, and changes with every package.
pub(super) fn name_of(driver_version: &str, machine: Machine, used: &[PackageUsed]) -> String {
    let mut hash = Sha256::new();
    hash.update(LAYOUT);
    for package in used {
        hash.update(format!("\n{} {}", package.name, package.sha256));
    }
    let digest = hex(&hash.finalize());
    format!("{driver_version}-{}-{}", machine.uname, &digest[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_tree_stays_where_it_is_and_a_damaged_one_is_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path()).expect("store");
        let target = store.dir("userspace/tree");
        let put = |text: &str, is_whole: bool| {
            let scratch = claim(&store, "userspace").expect("claim");
            fs::write(scratch.path().join("file"), text).expect("write");
            replace(scratch, &target, &store, || is_whole).expect("in its place");
            fs::read_to_string(target.join("file")).expect("read")
        };
        assert_eq!(put("first", false), "first");
        assert_eq!(put("of a slower one", true), "first");
        assert_eq!(put("anew", false), "anew");
        assert_eq!(fs::read_dir(store.dir("tmp")).expect("listed").count(), 0);
    }
}
