//! Source of a build's driver: a package of an archive, a .run file, or a tree of sources.

use std::path::Path;

use super::driver;
use super::runfile::{self, StoredRunFile};
use super::source_tree::{self, Part, SourceTree};
use crate::driver::{AvailableDriver, DriverOrigin, KernelSources};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};

/// A package, file or tree with a driver's kernel sources.
#[derive(Debug, Clone)]
pub enum DriverSource {
    /// A package, to be fetched from the archive.
    Package(Package),
    /// An unpacked .run file, in the store already.
    RunFile(StoredRunFile),
    /// A tree of NVIDIA's open kernel modules, in the store already.
    SourceTree(SourceTree),
}

impl DriverSource {
    /// Locates a driver of the catalog.
    ///
    /// # Errors
    /// Exit code 12 where the archive no longer has the package, or the store not the .run file or the tree.
    pub fn locate(
        driver: &AvailableDriver,
        archive: &Archive,
        store: &Store,
    ) -> Result<Self, Failure> {
        match &driver.origin {
            DriverOrigin::Package { .. } => driver::package(archive, driver).map(Self::Package),
            DriverOrigin::RunFile { name } => {
                let stored = runfile::find(store, &driver.sha256);
                store.mark_used(&Path::new("drivers").join(&driver.sha256).join("driver.json"));
                stored.map(Self::RunFile).ok_or_else(|| {
                    let cause = format!("the store does not have {name} unpacked");
                    Failure::new(FailureKind::Download, cause).remedy("run again to fetch it")
                })
            }
            DriverOrigin::SourceTree { urls } => {
                let AvailableDriver { version, sha256, .. } = driver.clone();
                let tree = SourceTree { version, sha256, urls: urls.clone() };
                let missing = || {
                    let cause = format!("the store does not have {}", tree.name());
                    Failure::new(FailureKind::Download, cause).remedy("run again to fetch it")
                };
                store
                    .has_blob(&tree.sha256)
                    .then(|| Self::SourceTree(tree.clone()))
                    .ok_or_else(missing)
            }
        }
    }

    /// Returns the sha256 (hex) of the package, the .run file or the tree.
    pub fn sha256(&self) -> &str {
        match self {
            Self::Package(package) => &package.sha256,
            Self::RunFile(file) => &file.written.sha256,
            Self::SourceTree(tree) => &tree.sha256,
        }
    }

    /// Human-readable name.
    pub fn describe(&self) -> String {
        match self {
            Self::Package(package) => format!("{} {}", package.name, package.version),
            Self::RunFile(file) => file.written.name.clone(),
            Self::SourceTree(tree) => tree.name(),
        }
    }

    /// Returns the package to fetch before [`DriverSource::unpack`].
    pub fn package(&self) -> Option<&Package> {
        match self {
            Self::Package(package) => Some(package),
            Self::RunFile(_) | Self::SourceTree(_) => None,
        }
    }

    /// Returns the tree that core objects are compiled from; None for sources that have them already.
    pub fn tree(&self) -> Option<&SourceTree> {
        match self {
            Self::SourceTree(tree) => Some(tree),
            Self::Package(_) | Self::RunFile(_) => None,
        }
    }

    /// Unpacks the kernel sources of `flavour` below the empty directory `into`, with the patches of their package.
    ///
    /// # Errors
    /// Exit code 12 where there are none of this flavour, 13 where they are damaged, 15 where
    /// `into` cannot be written.
    pub fn unpack(
        &self,
        flavour: Flavour,
        store: &Store,
        into: &Path,
    ) -> Result<KernelSources, Failure> {
        match self {
            Self::Package(package) => driver::unpack_sources(package, store, into),
            Self::RunFile(file) => {
                let dir = file.copy_sources(flavour, into)?;
                Ok(KernelSources { dir, packaging_patches: None })
            }
            Self::SourceTree(_) if flavour != Flavour::Open => {
                let cause = format!("{} has the open kernel modules alone", self.describe());
                Err(Failure::new(FailureKind::Download, cause)
                    .remedy("select flavour open or auto, or take this driver from another source"))
            }
            Self::SourceTree(tree) => {
                let unpacked = source_tree::unpack(tree, Part::KernelOpen, store, into)?;
                Ok(KernelSources { dir: unpacked.kernel_open(), packaging_patches: None })
            }
        }
    }
}
