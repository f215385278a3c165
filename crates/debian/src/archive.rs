//! Debian-format archives: open, look up, resolve, fetch.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::apt_conf::{self, AptProxies};
use super::apt_sources::LeftOut;
use super::auth_conf;
use super::held_blobs::{holds, processors};
use super::loading;
use super::packages::Index;
use super::release::Rules;
use super::resolve::{self, Universe};
use super::selection::{self, Wanted};
use super::version;
use crate::settings::ArchiveConfig;
use longshore_core::durable::read_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::machine::Machine;
use longshore_core::progress::{Progress, Silent, Task, Unit};
use longshore_core::space;
use longshore_core::store::Store;
use longshore_fetch::http::{
    Expected, Fetcher, Logins, Policy, UnreachableHosts, WriterGroup, WriterGuard,
};

pub use super::packages::Package;
pub use super::relation::{Operator, Requirement};
pub use super::resolve::{Unsatisfiable, release_of};
pub use super::version::{compare, upstream};

/// Maximum number of parallel downloads: mirrors frown on more, and fewer do not fill the link.
const PARALLEL: usize = 6;

/// Callback for each package in the store. The file is its blob, which was just verified.
pub type Taker = Arc<dyn Fn(&Package, File) -> Result<(), Failure> + Send + Sync>;

/// The indexes of every source, read and verified.
#[derive(Debug)]
pub struct Archive {
    indexes: Vec<Index>,
    fetcher: Fetcher,
    arch: String,
    /// Optional sources that could not be read.
    unread: Vec<String>,
    /// Sources of the host's apt that are not used.
    left_out: Vec<LeftOut>,
    /// Proxies of the host's apt for its sources.
    proxies: AptProxies,
}

impl Archive {
    /// Reads the sources of `config`, and the host's apt sources below `host_root` if it says so.
    /// All indexes are loaded in parallel; those in the store are not fetched again.
    ///
    /// # Errors
    /// Exit code 2 for invalid sources, 10 for an architecture that no archive has, 12 for a failed
    /// download, 13 for an index that does not verify, 15 for a store that cannot be written.
    pub async fn open(
        config: &ArchiveConfig,
        host_root: &Path,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Self, Failure> {
        Self::open_with(Policy::default(), config, host_root, store, progress).await
    }

    /// Checks that there is a source to read, and that its keyring is there; asks none.
    ///
    /// # Errors
    /// As [`Archive::open`], without those of downloads.
    pub fn check(config: &ArchiveConfig, host_root: &Path) -> Result<(), Failure> {
        selection::select(config, host_root, Machine::this()?.debian).map(drop)
    }

    /// Like [`Archive::open_with`], but gives up an unresponsive archive after some seconds: for
    /// callers that have a fallback. Later fetches use the full timeouts.
    ///
    /// # Errors
    /// As [`Archive::open`].
    pub async fn open_soon(
        policy: Policy,
        config: &ArchiveConfig,
        host_root: &Path,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Self, Failure> {
        // An archive that is too slow for the short timeouts may still answer within the full ones.
        let soon =
            Policy { away: UnreachableHosts::default(), ..policy.clone() }.with_short_timeouts();
        let mut archive = Self::open_with(soon, config, host_root, store, progress).await?;
        archive.fetcher = fetcher(policy, config, host_root, &archive.proxies)?;
        Ok(archive)
    }

    /// Like [`Archive::open`], with other timeouts and retries.
    ///
    /// # Errors
    /// As [`Archive::open`].
    pub async fn open_with(
        policy: Policy,
        config: &ArchiveConfig,
        host_root: &Path,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Self, Failure> {
        let arch = Machine::this()?.debian;
        let selection = selection::select(config, host_root, arch)?;
        // Reading the trusted TLS certificates takes a third of a start that finds everything in
        // the store: skipped when nothing is fetched.
        let proxies = proxies(&selection.wanted, host_root)?;
        let fetcher = fetcher(policy, config, host_root, &proxies)?;
        let rules = Rules { now: seconds_now(), frozen: config.frozen };
        let loaded = loading::load(&fetcher, store, rules, arch, &selection.wanted, progress).await;
        let mut archive = Self::of_indexes(Vec::new(), fetcher, arch);
        archive.left_out = selection.left_out;
        archive.proxies = proxies;
        let mut problems = selection.problems;
        for (wanted, loaded) in selection.wanted.iter().zip(loaded) {
            match loaded {
                Ok(indexes) => archive.indexes.extend(indexes),
                Err(failure) if wanted.explicit => return Err(failure),
                Err(failure) => problems.push(failure),
            }
        }
        archive.note(problems)?;
        Ok(archive)
    }

    /// An archive of these indexes.
    pub(super) fn of_indexes(indexes: Vec<Index>, fetcher: Fetcher, arch: &str) -> Self {
        let proxies = AptProxies::default();
        let (unread, left_out) = (Vec::new(), Vec::new());
        Self { indexes, fetcher, arch: arch.to_owned(), unread, left_out, proxies }
    }

    /// Adds the indexes of another archive.
    pub(super) fn append(&mut self, mut other: Self) {
        self.indexes.append(&mut other.indexes);
    }

    /// An archive without any package, for builds whose driver, headers and compiler come from elsewhere.
    ///
    /// # Errors
    /// Exit code 2 where TLS cannot be set up, 10 for a machine that NVIDIA has no driver for.
    pub fn without_sources(policy: Policy, host_root: &Path) -> Result<Self, Failure> {
        let fetcher = Fetcher::new(policy, host_root)?;
        Ok(Self::of_indexes(Vec::new(), fetcher, Machine::this()?.debian))
    }

    /// An archive without any package, for tests.
    ///
    /// # Panics
    /// If no client can be made.
    #[cfg(any(test, feature = "testing"))]
    pub fn empty() -> Self {
        let fetcher = Fetcher::new(Policy::default(), Path::new("/")).expect("a fetcher");
        Self::of_indexes(Vec::new(), fetcher, "amd64")
    }

    /// An archive with the packages of these suites, each a codename and the text of an index, for
    /// tests.
    ///
    /// # Panics
    /// If no client can be made, or an index cannot be read.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_suites(suites: &[(&str, &str)]) -> Self {
        let read = |(suite, text): &(&str, &str)| Self::index_of(suite, text);
        Self { indexes: suites.iter().map(read).collect(), ..Self::empty() }
    }

    #[cfg(any(test, feature = "testing"))]
    fn index_of(suite: &str, text: &str) -> Index {
        let origin = super::packages::Origin {
            base_url: "https://archive.example.com".into(),
            suite: suite.to_owned(),
            component: "main".to_owned(),
            arch: "amd64".to_owned(),
            host_flat: false,
        };
        Index::read(text.as_bytes(), text.len() as u64, origin).expect("an index")
    }

    /// Logs sources that could not be read; with no index at all the first problem is the failure.
    fn note(&mut self, problems: Vec<Failure>) -> Result<(), Failure> {
        self.unread = problems.iter().map(Failure::one_line).collect();
        if self.indexes.is_empty() {
            // A source that may answer later says more than a bad line beside it.
            let mut passing = problems.iter().filter(|failure| !failure.kind().is_definite());
            let reported = passing.next().or(problems.first()).cloned();
            return Err(reported.unwrap_or_else(|| {
                Failure::new(FailureKind::Download, "no source has an index for this architecture")
                    .remedy("name an archive as [[archive]] in the configuration file")
            }));
        }
        for failure in problems {
            tracing::warn!("an apt source of the host was skipped: {}", failure.one_line());
        }
        Ok(())
    }

    /// Returns the newest version of a package in one suite, also where another suite has the same one: after a
    /// point release the stable suite has those of its security suite.
    pub fn newest_in(&self, suite: &str, name: &str) -> Option<Package> {
        self.named(name).into_iter().find(|package| package.origin.text == suite)
    }

    /// Returns all versions of a package, newest first; real names only. A version in several
    /// suites is listed once, for the first of those that give it to most hosts: Ubuntu's `-security` has for all
    /// what `-updates` may hold back.
    pub fn packages(&self, name: &str) -> Vec<Package> {
        let reach = |package: &Package| package.origin.percentage.unwrap_or(100);
        let mut packages: Vec<Package> = Vec::new();
        for package in self.named(name) {
            let is_same =
                |p: &&mut Package| p.version == package.version && p.sha256 == package.sha256;
            match packages.iter_mut().find(is_same) {
                Some(known) if reach(known) < reach(&package) => *known = package,
                Some(_) => {}
                None => packages.push(package),
            }
        }
        packages
    }

    /// Returns the names of packages for which `pred` holds, sorted.
    pub fn names_matching(&self, pred: &dyn Fn(&str) -> bool) -> Vec<String> {
        let names = self.indexes.iter().flat_map(Index::names).filter(|name| pred(name));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Describes the optional sources that could not be read, one text each.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// Returns the sources of the host's apt that are not used, with the reasons.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Returns a line for each setting of the host's apt about proxies that is used for its sources, or is
    /// not.
    pub fn apt_proxies(&self) -> &[String] {
        &self.proxies.notes
    }

    /// Returns the packages that satisfy `roots` and everything they depend on (Pre-Depends and
    /// Depends), one version of each name; the roots come first.
    ///
    /// A dependency is taken from the release of the depending package, if that has it (from its
    /// backports only if necessary, or for a backport), else from any, and there in the highest
    /// version that satisfies it: so compiler, headers and C library are of one release though
    /// several are read. The first root decides the release of the roots after it.
    ///
    /// # Errors
    /// Names the chain of packages that leads to the missing one.
    pub fn closure(&self, roots: &[Requirement]) -> Result<Vec<Package>, Unsatisfiable> {
        resolve::closure(self, roots).map_err(|mut error| {
            error.remedy.push_str(&self.unread_sources());
            error
        })
    }

    /// Adds to the remedy of a failure to find something which sources could not be read.
    #[must_use]
    pub fn with_unread(&self, failure: Failure) -> Failure {
        let remedy = format!("{}{}", failure.remedy_or_default(), self.unread_sources());
        failure.remedy(remedy)
    }

    fn unread_sources(&self) -> String {
        match &self.unread[..] {
            [] => String::new(),
            unread => format!("; these sources could not be read: {}", unread.join("; ")),
        }
    }

    /// Fetches packages into the store as blobs by their sha256; blobs that exist and verify are
    /// not fetched again.
    ///
    /// # Errors
    /// Exit code 12 for a failed download, 13 for a package that differs from the index, 15 for a
    /// store that is full or cannot be written.
    pub async fn fetch(
        &self,
        packages: &[Package],
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        self.fetch_each(packages, store, progress, Arc::new(|_, _| Ok(()))).await
    }

    /// Like [`Archive::fetch`]; gives each package to `take` as soon as the store has it, while
    /// others are still being downloaded. No thread still works on a package when this returns.
    ///
    /// # Errors
    /// As [`Archive::fetch`], and the errors of `take`.
    pub async fn fetch_each(
        &self,
        packages: &[Package],
        store: &Store,
        progress: &dyn Progress,
        take: Taker,
    ) -> Result<(), Failure> {
        let all = sorted_out(packages, store).await?;
        let missing = || all.iter().filter(|(_, is_there)| !is_there).map(|(package, _)| package);
        let total = missing().map(|package| package.size).sum();
        if total > 0 {
            space::require(store.writable(), total)?;
        }
        let what = format!("fetching {} packages", missing().count());
        let task = (total > 0).then(|| progress.begin(&what, Some(total), Unit::Bytes));
        let task: &dyn Task = task.as_deref().unwrap_or(&Silent);
        let (connections, unpackers) = (Semaphore::new(PARALLEL), Semaphore::new(processors()));
        let (writers, take) = (WriterGroup::default(), &take);
        let alive = writers.alive();
        let bring = |(package, is_there): (Package, bool)| {
            let (connections, unpackers) = (&connections, &unpackers);
            async move {
                if !is_there {
                    // The semaphore is never closed, so this cannot fail.
                    let _connection = connections.acquire().await;
                    task.note(&package.name);
                    let (sha256, size) = (Some(package.sha256.clone()), Some(package.size));
                    let (url, expected) = (package.url(), Expected { sha256, size });
                    self.fetcher.blob_among(&url, &expected, store, task, alive).await?;
                }
                let _unpacker = unpackers.acquire().await;
                give(package, store, Arc::clone(take), alive.clone()).await
            }
        };
        let packages = stream::iter(all.iter().cloned().map(Ok));
        let fetched = packages.try_for_each_concurrent(None, bring).await;
        writers.all_ended().await;
        fetched
    }
}

impl Universe for Archive {
    fn named(&self, name: &str) -> Vec<Package> {
        newest_first(self.indexes.iter().flat_map(|index| index.named(name)))
    }

    fn providing(&self, name: &str) -> Vec<Package> {
        newest_first(self.indexes.iter().flat_map(|index| index.providing(name)))
    }

    fn arch(&self) -> &str {
        &self.arch
    }
}

/// Returns the proxies of the host's apt for those of these suites that are its sources.
///
/// # Errors
/// Exit code 2 for one that cannot be used.
pub(super) fn proxies(wanted: &[Wanted], host_root: &Path) -> Result<AptProxies, Failure> {
    let of_host = wanted.iter().filter(|wanted| !wanted.explicit);
    let urls = of_host.flat_map(|wanted| &wanted.places).filter_map(|place| place.url.parse().ok());
    let found = apt_conf::read(host_root, &urls.collect::<Vec<_>>())?;
    // A failure of a download has no place for them.
    found.notes.iter().for_each(|note| tracing::info!("{note}"));
    Ok(found)
}

/// Returns the fetcher of archives, with the logins of the host's apt where its sources are read, and its
/// proxies.
pub(super) fn fetcher(
    policy: Policy,
    config: &ArchiveConfig,
    host_root: &Path,
    proxies: &AptProxies,
) -> Result<Fetcher, Failure> {
    let reads_apt = config.use_host_apt;
    let logins = if reads_apt { auth_conf::read(host_root) } else { Logins::default() };
    Ok(Fetcher::behind(proxies.rules.clone(), policy, host_root)?.with_logins(logins))
}

/// Sorts by version, and equal versions in the order of the sources.
fn newest_first(packages: impl Iterator<Item = Package>) -> Vec<Package> {
    let mut packages: Vec<Package> = packages.collect();
    packages.sort_by(|a, b| version::compare(&b.version, &a.version));
    packages
}

/// Returns each package once, the largest first, because the last download is waited for; and true
/// if the store has it. A blob that does not verify is removed.
async fn sorted_out(packages: &[Package], store: &Store) -> Result<Vec<(Package, bool)>, Failure> {
    let mut seen = HashSet::new();
    let mut packages: Vec<Package> =
        packages.iter().filter(|p| seen.insert(p.sha256.clone())).cloned().collect();
    packages.sort_by_key(|package| std::cmp::Reverse(package.size));
    let check = |package: Package| {
        let store = store.clone();
        async move {
            let what = "the thread that verifies the store died";
            let sha256 = package.sha256.clone();
            let held = tokio::task::spawn_blocking(move || holds(&store, &sha256)).await;
            Ok((package, held.or_fail(FailureKind::Bug, || what)??))
        }
    };
    stream::iter(packages).map(check).buffered(processors()).try_collect().await
}

/// Calls `take` for a package in the store, on a thread that holds `alive` until `take` is dropped.
async fn give(
    package: Package,
    store: &Store,
    take: Taker,
    alive: WriterGuard,
) -> Result<(), Failure> {
    let path = store.blob_path(&package.sha256);
    let give = move || {
        let file = File::open(&path).map_err(|e| read_failure(&path, e))?;
        let taken = take(&package, file);
        drop((take, alive));
        taken
    };
    let given = tokio::task::spawn_blocking(give).await;
    given.or_fail(FailureKind::Bug, || "the thread that processes a package panicked")?
}

pub(super) fn seconds_now() -> u64 {
    jiff::Timestamp::now().as_second().try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::a_bad_line_and_an_outage(&[FailureKind::Usage, FailureKind::Download], FailureKind::Download)]
    #[case::a_bad_line_alone(&[FailureKind::Usage], FailureKind::Usage)]
    #[case::nothing(&[], FailureKind::Download)]
    fn without_an_index_an_outage_is_told_before_a_mistake(
        #[case] problems: &[FailureKind],
        #[case] reported: FailureKind,
    ) {
        let problems = problems.iter().map(|kind| Failure::new(*kind, "why")).collect();
        assert_eq!(Archive::empty().note(problems).expect_err("no index").kind(), reported);
    }
}
