//! Packages of archives, suite by suite: those that the local machine's apt uses, and those that rules name.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use longshore_build::build_root::{BuildRootSource, identify};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_debian::max_age::MaxAge;
use longshore_debian::settings::{ArchiveConfig, ArchiveSource};
use longshore_sources::headers::{AvailableHeaders, Wanted};
use tokio::runtime::Runtime;

use crate::host::disk;
use crate::host::error::{At, Error};

/// Components beyond those that the apt sources name.
const DRIVERS_ARE_IN: [&str; 5] =
    ["contrib", "non-free", "non-free-firmware", "restricted", "multiverse"];
/// Time limit for another process that unpacks the same build root.
const UNPACKING: Duration = Duration::from_secs(900);

/// Opened suites, and the store of their packages.
pub struct Archives {
    suites: BTreeMap<String, Result<Archive, Failure>>,
    store: Store,
    runtime: Runtime,
}

impl Archives {
    /// Opens these suites as [`Archives::open_each`] does, all with lists past their expiry where `frozen`.
    ///
    /// # Errors
    /// As [`Archives::open_each`].
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
        Self::open_with(dir, suites, &[])
    }

    /// Opens suites as [`Archives::open_each`] does; a suite that one of these archives serves is read from them alone.
    ///
    /// # Errors
    /// As [`Archives::open_each`]; an archive's keyring or components cannot be used.
    pub fn open_with(
        dir: &Path,
        suites: &BTreeMap<String, bool>,
        archives: &[ArchiveSource],
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .at("start", Path::new("tokio"))?;
        let store = Store::open(dir, disk::of_this_machine())?;
        let mut opened = BTreeMap::new();
        for frozen in [false, true] {
            let of = suites.iter().filter(|(_, is)| **is == frozen).map(|(suite, _)| suite.clone());
            for config in configs(of.collect(), archives, frozen) {
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

    /// Downloads packages of a suite into the store.
    ///
    /// # Errors
    /// The suite cannot be read, or one cannot be downloaded or does not verify.
    pub fn fetch_of(&self, suite: &str, packages: &[Package]) -> Result<(), Error> {
        let archive = self.suite(suite)?;
        Ok(self.runtime.block_on(archive.fetch(packages, &self.store, &Silent))?)
    }

    /// Checks that a build root has headers that fit a kernel; unpacks one of a path into the store. An image that
    /// the store does not have is not fetched, and assumed to have them.
    ///
    /// # Errors
    /// It has none, with those that it has; or it cannot be read or unpacked.
    pub fn check_build_root(&self, place: &str, release: &str) -> Result<(), Error> {
        let bad = |e| Failure::new(FailureKind::Usage, format!("{e}"));
        let source: BuildRootSource = place.parse().map_err(bad)?;
        let root = self.runtime.block_on(identify(&source))?;
        if let BuildRootSource::Path(_) = source {
            let none = |_: &_| Err(Failure::new(FailureKind::Usage, "no registry is asked"));
            self.runtime.block_on(root.acquire(&none, UNPACKING, &self.store, &Silent))?;
        }
        match root.available(Wanted { release, version: None }, &self.store) {
            AvailableHeaders::Missing { passed_over, .. } => {
                Err(Error::Unexpected(passed_over.join("; ")))
            }
            _ => Ok(()),
        }
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

/// Returns what to read: those of the suites that the archives serve, and the others of the machine's apt sources;
/// each only if there is any.
fn configs(suites: Vec<String>, archives: &[ArchiveSource], frozen: bool) -> Vec<ArchiveConfig> {
    let serving = |suite: &String| archives.iter().any(|archive| archive.suites.contains(suite));
    let (served, of_host): (Vec<String>, Vec<String>) = suites.into_iter().partition(serving);
    let reduced = archives.iter().map(|archive| {
        let suites = archive.suites.iter().filter(|suite| served.contains(suite)).cloned();
        ArchiveSource { suites: suites.collect(), ..archive.clone() }
    });
    let sources: Vec<ArchiveSource> =
        reduced.filter(|archive| !archive.suites.is_empty()).collect();
    let config = |sources: Vec<ArchiveSource>, host_suites| ArchiveConfig {
        use_host_apt: sources.is_empty(),
        sources,
        host_components: DRIVERS_ARE_IN.map(str::to_owned).into(),
        host_suites,
        container_lists: None,
        frozen,
        max_age: MaxAge::default(),
    };
    let all = [config(sources, served), config(Vec::new(), of_host)];
    all.into_iter().filter(|config| !config.host_suites.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use longshore_sources::testing::put_headers;

    use super::*;

    #[test]
    fn a_suite_of_a_named_archive_is_read_from_it_alone() {
        let archive = |url: &str, suites: &[&str]| ArchiveSource {
            url: url.into(),
            suites: suites.iter().map(|suite| (*suite).to_owned()).collect(),
            components: vec!["main".into()],
            keyring: "/k.gpg".into(),
            max_age: None,
        };
        let archives = [
            archive(
                "http://archive.example.com/ubuntu",
                &["noble", "noble-updates", "noble-backports"],
            ),
            archive("http://security.example.com/ubuntu", &["noble-security"]),
        ];
        let suites = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let read = |names: &[&str]| -> Vec<(bool, Vec<String>, Vec<String>)> {
            let configs = configs(suites(names), &archives, true);
            assert!(configs.iter().all(|config| config.frozen));
            let of = |config: ArchiveConfig| {
                let named = config.sources.into_iter().flat_map(|source| source.suites).collect();
                (config.use_host_apt, named, config.host_suites)
            };
            configs.into_iter().map(of).collect()
        };
        let none: Vec<String> = Vec::new();
        for (asked, expected) in [
            (vec![], vec![]),
            (vec!["bookworm"], vec![(true, none.clone(), suites(&["bookworm"]))]),
            (
                vec!["bookworm", "noble", "noble-updates"],
                vec![
                    (
                        false,
                        suites(&["noble", "noble-updates"]),
                        suites(&["noble", "noble-updates"]),
                    ),
                    (true, none, suites(&["bookworm"])),
                ],
            ),
        ] {
            assert_eq!(read(&asked), expected, "{asked:?}");
        }
    }

    #[test]
    fn a_build_root_without_headers_of_a_release_names_those_that_it_has() {
        let (store, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let release = "5.14.0-503.11.1.el9_5.x86_64";
        let compiler = "gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)";
        put_headers(&root.path().join("usr/src/kernels").join(release), release, compiler);
        let archives = Archives::open_each(store.path(), &BTreeMap::new()).unwrap();
        let place = root.path().to_str().unwrap();
        let image = format!("oci://registry.example.com/el9@sha256:{}", "a".repeat(64));
        let other = format!("it has headers for {release}");
        for (place, wanted, expected) in [
            (place, release, None),
            (place, "5.14.0-503.14.1.el9_5.x86_64", Some(other.as_str())),
            ("/no/such/root", release, Some("reading the build root /no/such/root")),
            ("no/such/root", release, Some("not a build root")),
            (&image, release, None),
        ] {
            let error =
                archives.check_build_root(place, wanted).err().map(|error| error.to_string());
            match expected {
                None => assert_eq!(error, None, "{place} {wanted}"),
                Some(text) => assert!(error.as_ref().unwrap().contains(text), "{error:?}"),
            }
        }
    }
}
