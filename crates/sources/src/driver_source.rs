//! Source of a build's driver: a package of an archive, or a .run file.

use std::path::Path;

use super::driver;
use super::runfile::{self, StoredRunFile};
use crate::driver::{AvailableDriver, DriverOrigin, KernelSources};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};

/// A package or file with a driver's kernel sources.
#[derive(Debug, Clone)]
pub enum DriverSource {
    /// A package, to be fetched from the archive.
    Package(Package),
    /// An unpacked .run file, in the store already.
    RunFile(StoredRunFile),
}

impl DriverSource {
    /// Locates a driver of the catalog.
    ///
    /// # Errors
    /// Exit code 12 where the archive no longer has the package, or the store not the .run file.
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
        }
    }

    /// Returns the sha256 (hex) of the package or the .run file.
    pub fn sha256(&self) -> &str {
        match self {
            Self::Package(package) => &package.sha256,
            Self::RunFile(file) => &file.written.sha256,
        }
    }

    /// Human-readable name.
    pub fn describe(&self) -> String {
        match self {
            Self::Package(package) => format!("{} {}", package.name, package.version),
            Self::RunFile(file) => file.written.name.clone(),
        }
    }

    /// Returns the package to fetch before [`DriverSource::unpack`].
    pub fn package(&self) -> Option<&Package> {
        match self {
            Self::Package(package) => Some(package),
            Self::RunFile(_) => None,
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
        }
    }
}
