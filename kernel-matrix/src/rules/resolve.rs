//! Resolution of the rules: each kernel and driver is looked up in the archives of its suites.
//!
//! A suite that cannot be read, a kernel without headers or a driver without a package is an answer for
//! the cells that need it. Headers are fetched, not only looked up: indexes list packages that their
//! archive no longer has.

use std::collections::BTreeMap;

use longshore_debian::archive::{Package, compare, upstream};
use longshore_sources::driver::{self, AvailableDriver, DriverOrigin};

use crate::results::Part;
use crate::rules::headers::headers_of;
use crate::rules::lock::{Lock, LockedDriver, LockedKernel, LockedPackage, LockedSuite, Missing};
use crate::rules::missing::{missing, without_addresses};
use crate::rules::{Driver, Kernel, KernelPlace, NamedKernel, Rules};
use longshore_lab::host::archives::Archives;
use longshore_lab::host::error::Error;
use longshore_lab::vm::kernel::release_of;

/// Names of a kernel's packages for compiling modules.
const HEADERS: [&str; 3] = ["linux-headers-", "linux-kbuild-", "linux-compiler-"];

/// Archives that the rules are resolved against.
pub struct Resolver<'a> {
    /// The suites.
    pub archives: &'a Archives,
}

impl Resolver<'_> {
    /// Resolves every kernel and driver; `each` is told of each kernel before it is looked up.
    pub fn resolve(&self, rules: &Rules, each: &mut dyn FnMut(&str)) -> Lock {
        let suites = rules.suites().into_iter().map(|suite| LockedSuite {
            frozen: rules.frozen.contains(&suite),
            unavailable: self
                .archives
                .suite(&suite)
                .err()
                .map(|e| without_addresses(&e.to_string())),
            suite,
        });
        let suites = suites.collect();
        let mut kernels = Vec::new();
        for kernel in &rules.kernels {
            each(&kernel.id);
            kernels.push(self.kernel(kernel));
        }
        let drivers = rules.drivers.iter().map(|driver| self.driver(driver)).collect();
        Lock::new(suites, kernels, drivers)
    }

    fn kernel(&self, kernel: &Kernel) -> LockedKernel {
        let mut locked = LockedKernel { id: kernel.id.clone(), ..LockedKernel::default() };
        let filled = match &kernel.named {
            Some(named) => self.fill_named(named, &mut locked),
            None => self.fill(kernel, &mut locked),
        };
        locked.unavailable = filled.err();
        locked
    }

    fn fill_named(&self, named: &NamedKernel, locked: &mut LockedKernel) -> Result<(), Missing> {
        let release = &named.release;
        locked.release.clone_from(release);
        match &named.place {
            KernelPlace::BuildRoot(root) => {
                locked.build_root = Some(root.clone());
                self.archives.check_build_root(root, release).map_err(missing(Part::Headers))
            }
            KernelPlace::Suites(suites) => {
                let read = suites.iter().map(|suite| (suite.as_str(), self.archives.suite(suite)));
                let (suite, headers) = headers_of(release, read.collect())?;
                locked.headers = headers.iter().map(|p| package(p, suite)).collect();
                locked.headers.sort_by(|a, b| a.package.cmp(&b.package));
                self.archives.fetch_of(suite, &headers).map_err(missing(Part::Headers))
            }
        }
    }

    fn fill(&self, kernel: &Kernel, locked: &mut LockedKernel) -> Result<(), Missing> {
        let suite = &kernel.suite;
        self.archives.suite(suite).map_err(missing(Part::Suite))?;
        let image = self.image(kernel)?;
        locked.release = release_of(&image);
        locked.image = Some(package(&image, suite));
        let headers = self.headers(&locked.release, suite)?;
        locked.headers = headers.iter().map(|p| package(p, suite)).collect();
        locked.headers.sort_by(|a, b| a.package.cmp(&b.package));
        self.archives.fetch(&headers).map_err(missing(Part::Headers))
    }

    /// Returns the image that the kernel's meta-package leads to.
    fn image(&self, kernel: &Kernel) -> Result<Package, Missing> {
        let meta = self.newest(&kernel.package, &kernel.suite, Part::Kernel)?;
        let is_image = |name: &&str| {
            let release = name.strip_prefix("linux-image-");
            release.is_some_and(|release| release.starts_with(|c: char| c.is_ascii_digit()))
        };
        let image =
            first_names(&meta).find(is_image).map(str::to_owned).ok_or_else(|| Missing {
                part: Part::Kernel,
                why: format!("{} {} depends on no image", meta.name, meta.version),
            })?;
        self.newest(&image, &kernel.suite, Part::Kernel)
    }

    /// Returns the packages of the headers of `release`.
    fn headers(&self, release: &str, suite: &str) -> Result<Vec<Package>, Missing> {
        let first = self.newest(&format!("linux-headers-{release}"), suite, Part::Headers)?;
        let mut found = vec![first.clone()];
        let mut open = vec![first];
        while let Some(package) = open.pop() {
            for name in first_names(&package) {
                let is_part = HEADERS.iter().any(|begin| name.starts_with(begin));
                if is_part && !found.iter().any(|p| p.name == name) {
                    let next = self.newest(name, suite, Part::Headers)?;
                    found.push(next.clone());
                    open.push(next);
                }
            }
        }
        Ok(found)
    }

    fn newest(&self, name: &str, suite: &str, part: Part) -> Result<Package, Missing> {
        self.archives.newest(name, suite).map_err(missing(part))
    }

    fn driver(&self, driver: &Driver) -> LockedDriver {
        if let Some(tree) = &driver.source_tree {
            let revision = LockedPackage {
                package: OPEN_MODULES.to_owned(),
                version: tree.version.clone(),
                suite: String::new(),
                sha256: tree.sha256.clone(),
            };
            let (id, revisions) = (driver.id.clone(), vec![revision]);
            return LockedDriver { id, unavailable: None, revisions };
        }
        let mut unread = Vec::new();
        let mut found = BTreeMap::new();
        for suite in &driver.suites {
            match self.archives.suite(suite) {
                Ok(archive) => {
                    for available in driver::drivers(archive) {
                        add(&mut found, driver, &available, suite);
                    }
                }
                Err(error) => unread.push(error),
            }
        }
        let revisions = newest_first(found.into_values().collect());
        let unavailable = revisions.is_empty().then(|| match unread.pop() {
            Some(error) => missing(Part::Suite)(error),
            None => {
                let (id, suites) = (&driver.id, driver.suites.join(", "));
                let why = format!("no package of {id} in {suites}{}", self.transitional(driver));
                Missing { part: Part::Driver, why }
            }
        });
        LockedDriver { id: driver.id.clone(), unavailable, revisions }
    }

    /// Names the packages of a branch that hold no sources and only lead to those of another.
    fn transitional(&self, driver: &Driver) -> String {
        let archives = driver.suites.iter().filter_map(|suite| self.archives.suite(suite).ok());
        let mut found: Vec<String> = archives
            .flat_map(|archive| {
                let names = archive.names_matching(&is_source);
                names.into_iter().flat_map(|name| archive.packages(&name)).collect::<Vec<_>>()
            })
            .filter(|package| is_of(upstream(&package.version), &driver.branch))
            .filter_map(|package| {
                let successor = package.successor(is_source)?;
                Some(format!("; {} {} is {successor}", package.name, package.version))
            })
            .collect();
        found.sort();
        found.dedup();
        found.concat()
    }
}

/// Name of the project whose trees are drivers.
const OPEN_MODULES: &str = "open-gpu-kernel-modules";

/// True for a version of the branch.
fn is_of(version: &str, branch: &str) -> bool {
    let rest = version.strip_prefix(branch);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// True for the name of a package of kernel sources.
fn is_source(name: &str) -> bool {
    name.starts_with("nvidia-") && name.ends_with("-kernel-source")
}

/// Adds a package of the branch and flavour, which may be in a suite that came before.
fn add(
    found: &mut BTreeMap<String, LockedPackage>,
    wanted: &Driver,
    available: &AvailableDriver,
    suite: &str,
) {
    if let DriverOrigin::Package { name, version, .. } = &available.origin
        && is_of(&available.version, &wanted.branch)
        && available.flavour == wanted.flavour
    {
        found.entry(available.sha256.clone()).or_insert_with(|| LockedPackage {
            package: name.clone(),
            version: version.clone(),
            suite: suite.to_owned(),
            sha256: available.sha256.clone(),
        });
    }
}

/// Sorts packaging revisions as Debian orders their versions, newest first.
fn newest_first(mut revisions: Vec<LockedPackage>) -> Vec<LockedPackage> {
    revisions
        .sort_by(|a, b| compare(&b.version, &a.version).then_with(|| a.package.cmp(&b.package)));
    revisions
}

/// Returns the first alternative of each dependency.
fn first_names(package: &Package) -> impl Iterator<Item = &str> {
    package.depends.iter().filter_map(|clause| clause.0.first()).map(|first| first.name.as_str())
}

fn package(package: &Package, suite: &str) -> LockedPackage {
    LockedPackage {
        package: package.name.clone(),
        version: package.version.clone(),
        suite: suite.to_owned(),
        sha256: package.sha256.clone(),
    }
}

/// Answers of a server by which it has no such file.
const NO_SUCH_FILE: [&str; 3] = ["404 Not Found", "410 Gone", "No such file"];

/// True for the reason of a transfer that failed, which says nothing about what the archive has.
pub(crate) fn is_outage(why: &str) -> bool {
    why.contains("fetching ") && !NO_SUCH_FILE.iter().any(|answer| why.contains(answer))
}

/// Returns an error that names the outages in a lock: it would have packages as unavailable that the archives have.
///
/// # Errors
/// A suite could not be read, or headers could not be fetched, for another reason than an answer of the archive.
pub fn check_outages(lock: &Lock) -> Result<(), Error> {
    let suites = lock.suites.iter().filter_map(|suite| suite.unavailable.as_deref());
    let kernels = lock.kernels.iter().filter_map(|kernel| kernel.unavailable.as_ref());
    let drivers = lock.drivers.iter().filter_map(|driver| driver.unavailable.as_ref());
    let missing = kernels.chain(drivers).map(|missing| missing.why.as_str());
    let mut outages: Vec<&str> = suites.chain(missing).filter(|why| is_outage(why)).collect();
    outages.sort_unstable();
    outages.dedup();
    let Some(first) = outages.first() else { return Ok(()) };
    Err(Error::Unexpected(format!(
        "the archives did not answer, and the lock file is left as it was: {first}; {} more such reasons. Check the \
         network, the proxy and the apt sources, and run it again",
        outages.len() - 1
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_reduced_to_paths_of_an_archive() {
        for (text, expected) in [
            (
                "fetching https://deb.example.org/debian/pool/main/l/a.deb: 404",
                "fetching pool/main/l/a.deb: 404",
            ),
            (
                "(http://m.example/debian/dists/sid/InRelease) is past",
                "(dists/sid/InRelease) is past",
            ),
            (
                "no answer of file:/srv or http://m.example:80/x;",
                "no answer of file:/srv or an archive",
            ),
            ("no address", "no address"),
        ] {
            assert_eq!(without_addresses(text), expected);
        }
    }

    #[test]
    fn an_outage_is_no_answer_of_an_archive() {
        let suite = |why: Option<&str>| LockedSuite {
            suite: "sid".into(),
            frozen: false,
            unavailable: why.map(str::to_owned),
        };
        let kernel = |why: &str| LockedKernel {
            id: "sid".into(),
            release: String::new(),
            unavailable: Some(Missing { part: Part::Headers, why: why.into() }),
            build_root: None,
            image: None,
            headers: Vec::new(),
        };
        for (why, is) in [
            ("fetching dists/sid/InRelease failed: the server says 404 Not Found", false),
            ("fetching dists/sid/InRelease failed: the server says 410 Gone", false),
            ("fetching file:/srv/a.deb failed: No such file or directory (os error 2)", false),
            ("the list (dists/sid/InRelease) is past its date", false),
            ("fetching dists/sid/InRelease failed: the server says 503 Service Unavailable", true),
            ("fetching pool/l/a.deb failed: connection refused", true),
            (
                "the suite sid cannot be read: fetching dists/sid/InRelease failed: it takes too long",
                true,
            ),
        ] {
            assert_eq!(is_outage(why), is, "{why}");
            for lock in [
                Lock::new(vec![suite(Some(why))], Vec::new(), Vec::new()),
                Lock::new(vec![suite(None)], vec![kernel(why)], Vec::new()),
            ] {
                let error = check_outages(&lock).err().map(|error| error.to_string());
                assert_eq!(error.is_some(), is, "{why}");
                assert!(error.is_none_or(|e| e.contains(why) && e.contains("left as it was")));
            }
        }
    }

    #[test]
    fn the_newest_packaging_revision_comes_first() {
        let of = |version: &str| LockedPackage {
            package: "nvidia-kernel-source".into(),
            version: version.into(),
            suite: "sid".into(),
            sha256: version.into(),
        };
        let sorted = newest_first(
            ["550.163.01-2", "550.54.15-5", "550.163.01-5.1", "550.163.01-4~bpo13+1"]
                .map(of)
                .to_vec(),
        );
        let versions: Vec<&str> = sorted.iter().map(|r| r.version.as_str()).collect();
        assert_eq!(
            versions,
            ["550.163.01-5.1", "550.163.01-4~bpo13+1", "550.163.01-2", "550.54.15-5"]
        );
    }
}
