//! Packages of the archives that the local machine uses, suite by suite.

use std::collections::BTreeMap;
use std::path::Path;

use longshore_core::failure::Failure;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_debian::settings::ArchiveConfig;
use tokio::runtime::Runtime;

use crate::disk;
use crate::error::{At, Error};

/// Components beyond those that the apt sources name.
const DRIVERS_ARE_IN: [&str; 3] = ["contrib", "non-free", "non-free-firmware"];

/// Opened suites, and the store of their packages.
pub struct Bits {
    suites: BTreeMap<String, Result<Archive, Failure>>,
    store: Store,
    runtime: Runtime,
}

impl Bits {
    /// Opens these suites as [`Bits::open_each`] does, all with lists past their expiry where `frozen`.
    ///
    /// # Errors
    /// As [`Bits::open_each`].
    pub fn open(dir: &Path, suites: &[String], frozen: bool) -> Result<Self, Error> {
        Self::open_each(dir, &suites.iter().map(|suite| (suite.clone(), frozen)).collect())
    }

    /// Opens suites of the machine's apt sources, also such as these do not name. Lists past their
    /// expiry are accepted of the suites whose value is true. A suite that cannot be read is an error
    /// where it is asked. Packages are kept below `dir`.
    ///
    /// # Errors
    /// The machine has no usable apt sources, or `dir` cannot be written.
    pub fn open_each(dir: &Path, suites: &BTreeMap<String, bool>) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .at("start", Path::new("tokio"))?;
        let store = Store::open(dir, disk::of_this_machine())?;
        let mut opened = BTreeMap::new();
        for frozen in [false, true] {
            let of = |(suite, is): (&String, &bool)| (*is == frozen).then(|| suite.clone());
            let config = config(suites.iter().filter_map(of).collect(), frozen);
            if !config.host_suites.is_empty() {
                let open = Archive::open_suites(&config, Path::new("/"), &store, &Silent);
                opened.extend(runtime.block_on(open)?);
            }
        }
        Ok(Self { suites: opened, store, runtime })
    }

    /// Returns the store of fetched packages.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns a suite's archive.
    ///
    /// # Errors
    /// The suite was not opened, or cannot be read: the reason is the error's text.
    pub fn suite(&self, suite: &str) -> Result<&Archive, Error> {
        match self.suites.get(suite) {
            Some(Ok(archive)) => Ok(archive),
            Some(Err(failure)) => {
                let why = failure.one_line();
                Err(Error::Unexpected(format!("the suite {suite} cannot be read: {why}")))
            }
            None => Err(Error::Unexpected(format!("the suite {suite} was not opened"))),
        }
    }

    /// Returns the newest version of a package in one suite.
    ///
    /// # Errors
    /// The suite cannot be read, or does not have it.
    pub fn newest(&self, name: &str, suite: &str) -> Result<Package, Error> {
        self.suite(suite)?
            .newest_in(suite, name)
            .ok_or_else(|| Error::Unexpected(format!("there is no package {name} in {suite}")))
    }

    /// Downloads packages into the store.
    ///
    /// # Errors
    /// One cannot be downloaded or does not verify.
    pub fn fetch(&self, packages: &[Package]) -> Result<(), Error> {
        let any = self.suites.values().find_map(|suite| suite.as_ref().ok());
        let archive = any.ok_or_else(|| Error::Unexpected("no suite can be read".into()))?;
        Ok(self.runtime.block_on(archive.fetch(packages, &self.store, &Silent))?)
    }
}

fn config(suites: Vec<String>, frozen: bool) -> ArchiveConfig {
    ArchiveConfig {
        sources: Vec::new(),
        use_host_apt: true,
        host_components: DRIVERS_ARE_IN.map(str::to_owned).into(),
        host_suites: suites,
        container_lists: None,
        frozen,
    }
}
