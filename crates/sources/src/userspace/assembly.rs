//! Assembly of a driver root from any source of files: checked, completed, recorded, stored.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::generations;
use super::manifest::{Depth, Manifest, PackageUsed, verify_root};
use super::sources::Sources;
use crate::driver_root;
use crate::parts;
use crate::tree_entries::measure;
use crate::userspace::AvailableUserspace;
use longshore_core::digest::hex;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::machine::Machine;
use longshore_core::scratch::claim;
use longshore_core::store::Store;

/// Part of a tree's digest, so that a change of the layout creates new trees.
const LAYOUT: &str = "driver-root-1";

/// A driver root to assemble.
pub(super) struct Assembly {
    pub(super) machine: Machine,
    pub(super) store: Store,
    pub(super) driver_version: String,
    /// Name of its directory, see [`generations`].
    pub(super) name: String,
    used: Vec<PackageUsed>,
    missing: Vec<String>,
    sources: Option<Sources>,
}

impl Assembly {
    /// `missing` lists the parts of the driver without a source; `sources` are its kernel sources, where
    /// the tree is to have them.
    pub(super) fn new(
        driver_version: &str,
        machine: Machine,
        mut used: Vec<PackageUsed>,
        missing: Vec<String>,
        sources: Option<Sources>,
        store: &Store,
    ) -> Self {
        used.extend(sources.as_ref().and_then(Sources::used));
        let flavour = sources.as_ref().map(Sources::flavour);
        let name = name_of(driver_version, machine, &used, flavour);
        let driver_version = driver_version.to_owned();
        Self { machine, store: store.clone(), driver_version, name, used, missing, sources }
    }

    /// Describes the tree in a directory of the store, with its programs.
    fn tree_in(&self, directory: &Path) -> AvailableUserspace {
        let root = directory.join("root");
        let listed = fs::read_dir(root.join("usr/bin")).into_iter().flatten();
        let names = listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut tools: Vec<String> = names.collect();
        tools.sort();
        let (driver_version, arch) = (self.driver_version.clone(), self.machine.uname.to_owned());
        AvailableUserspace { driver_version, arch, root, sources: self.flavour(), tools }
    }

    /// Returns the store's tree, if it exists and is undamaged.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be listed.
    pub(super) fn there(&self) -> Result<Option<AvailableUserspace>, Failure> {
        let is_whole = |directory: &PathBuf| match self.compare(directory) {
            Ok(()) => true,
            Err(failure) => {
                tracing::warn!("a user-mode tree was ignored: {}", failure.one_line());
                false
            }
        };
        let found =
            generations::generations_of(&self.store, &self.name)?.into_iter().find(is_whole);
        Ok(found.map(|directory| self.tree_in(&directory)))
    }

    fn flavour(&self) -> Option<Flavour> {
        self.sources.as_ref().map(Sources::flavour)
    }

    fn compare(&self, directory: &Path) -> Result<(), Failure> {
        verify_root(&directory.join("root"), Depth::Quick, self.store.disk())
    }

    /// Assembles the root; `fill` puts libraries, tools and firmware into the given empty
    /// directory.
    pub(super) fn carry_out(
        &self,
        fill: impl FnOnce(&Path) -> Result<(), Failure>,
    ) -> Result<AvailableUserspace, Failure> {
        let scratch = claim(&self.store, "userspace")?;
        let root = scratch.path().join("root");
        fs::create_dir(&root).map_err(|e| write_failure(&root, e))?;
        fill(&root)?;
        let needs = driver_root::finish(&root, self.machine)?;
        self.check(&root)?;
        if let Some(sources) = &self.sources {
            sources.put(&self.driver_version, &self.store, &root)?;
        }
        self.write_manifest(&root, needs)?;
        let is_whole = |found: &Path| self.compare(found).is_ok();
        let directory = generations::land(scratch, &self.name, &self.store, is_whole)?;
        Ok(self.tree_in(&directory))
    }

    /// Checks that the packages contained the parts that their names promise.
    fn check(&self, root: &Path) -> Result<(), Failure> {
        let version = &self.driver_version;
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
        Err(Failure::new(FailureKind::Verification, cause))
    }

    fn write_manifest(&self, root: &Path, needs: Vec<String>) -> Result<(), Failure> {
        let manifest = Manifest {
            packages: self.used.clone(),
            missing: self.missing.clone(),
            needs,
            sources: self.flavour(),
            entries: measure(root).map_err(|e| write_failure(root, e))?,
            ..Manifest::new(&self.driver_version, self.machine.uname)
        };
        let path = root.with_file_name("manifest.json");
        let text = serde_json::to_vec_pretty(&manifest)
            .or_fail(FailureKind::Bug, || format!("writing {}", path.display()))?;
        fs::write(&path, text).map_err(|e| write_failure(&path, e))
    }
}

/// Returns a directory name that identifies the contents and changes with every package, and with the
/// flavour of the kernel sources: a .run file has two.
pub(super) fn name_of(
    driver_version: &str,
    machine: Machine,
    used: &[PackageUsed],
    sources: Option<Flavour>,
) -> String {
    let mut hash = Sha256::new();
    hash.update(LAYOUT);
    for package in used {
        hash.update(format!("\n{} {}", package.name, package.sha256));
    }
    if let Some(flavour) = sources {
        hash.update(format!("\nsources {flavour}"));
    }
    let digest = hex(&hash.finalize());
    format!("{driver_version}-{}-{}", machine.uname, &digest[..12])
}
