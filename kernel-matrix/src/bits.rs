//! Packages of the archive that the local machine uses.

use std::path::Path;

use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_debian::settings::ArchiveConfig;
use tokio::runtime::Runtime;

use crate::disk;
use crate::error::{At, Error};

/// Components beyond those that the apt sources name.
const DRIVERS_ARE_IN: [&str; 3] = ["contrib", "non-free", "non-free-firmware"];

/// An opened archive, and the store of its packages.
pub struct Bits {
    archive: Archive,
    store: Store,
    runtime: Runtime,
}

impl Bits {
    /// Opens the archives of the machine's apt sources, with `suites` beyond those they name. Lists
    /// past their expiry are accepted where `frozen`. Packages are kept below `dir`.
    ///
    /// # Errors
    /// The archives cannot be read or do not verify.
    pub fn open(dir: &Path, suites: &[String], frozen: bool) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .at("start", Path::new("tokio"))?;
        let store = Store::open(dir, disk::of_this_machine())?;
        let config = ArchiveConfig {
            sources: Vec::new(),
            use_host_apt: true,
            host_components: DRIVERS_ARE_IN.map(str::to_owned).into(),
            host_suites: suites.to_vec(),
            container_lists: None,
            frozen,
        };
        let opened = Archive::open(&config, Path::new("/"), &store, &Silent);
        let archive = runtime.block_on(opened)?;
        Ok(Self { archive, store, runtime })
    }

    /// Returns the store of fetched packages.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the newest version of a package in one suite.
    ///
    /// # Errors
    /// The suite does not have it.
    pub fn newest(&self, name: &str, suite: &str) -> Result<Package, Error> {
        self.archive
            .newest_in(suite, name)
            .ok_or_else(|| Error::Unexpected(format!("there is no package {name} in {suite}")))
    }

    /// Downloads packages into the store.
    ///
    /// # Errors
    /// One cannot be downloaded or does not verify.
    pub fn fetch(&self, packages: &[Package]) -> Result<(), Error> {
        Ok(self.runtime.block_on(self.archive.fetch(packages, &self.store, &Silent))?)
    }
}
