//! Loading of a suite: its Release, then the indexes of its components.

use std::fs::File;
use std::io::BufReader;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream;

use super::compression::{decompressed, host_failure};
use super::held_blobs::{holds, processors};
use super::packages::{Index, MOST_BYTES, Origin};
use super::release::{self, IndexFile, Release, Rules, is_flat};
use super::rollback::NewestDates;
use super::selection::{CandidateArchive, Component, Need, Wanted};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::{Progress, Task, Unit};
use longshore_core::redact::redacted;
use longshore_core::store::Store;
use longshore_fetch::http::{Expected, FetchError, Fetcher, WriterGroup, WriterGuard};
use tokio::sync::Semaphore;

/// Compression suffixes of an index, best first.
const FORMS: [&str; 4] = [".xz", ".zst", ".gz", ""];

/// Number of suites that are read at a time: more than a host has, and fewer than a process may open files.
const MOST_AT_ONCE: usize = 200;

/// Beginning of the Origin or Label of an archive of drivers by their maker.
const MAKER: &str = "nvidia";

/// Loads these suites in parallel, and returns their results in the same order.
pub(super) async fn load(
    fetcher: &Fetcher,
    store: &Store,
    rules: Rules,
    arch: &str,
    wanted: &[Wanted],
    progress: &dyn Progress,
) -> Vec<Result<Vec<Index>, Failure>> {
    let task = progress.begin("reading the archives' indexes", None, Unit::Bytes);
    let (writers, seen) = (WriterGroup::default(), NewestDates::read(store));
    let loader = Loader {
        fetcher,
        store,
        rules,
        seen: &seen,
        arch,
        task: task.as_ref(),
        alive: writers.alive(),
        total: AtomicU64::new(0),
        readers: Semaphore::new(processors()),
    };
    let suites: Vec<_> = wanted.iter().map(|wanted| loader.suite(wanted)).collect();
    let loaded = stream::iter(suites).buffered(MOST_AT_ONCE).collect().await;
    writers.all_ended().await;
    seen.keep();
    loaded
}

/// Loads suites with the same settings.
struct Loader<'a> {
    fetcher: &'a Fetcher,
    store: &'a Store,
    rules: Rules,
    seen: &'a NewestDates,
    /// Debian architecture of this host.
    arch: &'a str,
    task: &'a dyn Task,
    alive: &'a WriterGuard,
    /// Total size of all indexes that are fetched.
    total: AtomicU64,
    /// Permits for reading an index, which takes a processor, and a process with three pipes.
    readers: Semaphore,
}

impl Loader<'_> {
    /// Loads a suite from the first of its archives that has it.
    ///
    /// # Errors
    /// The error of the first archive, where none has it; also where a host's source turns out not
    /// to be the distribution's.
    async fn suite(&self, wanted: &Wanted) -> Result<Vec<Index>, Failure> {
        let mut first: Option<Failure> = None;
        for place in &wanted.places {
            match self.release(wanted, place).await {
                Ok(release) if !is_ours(&release, wanted) => {
                    let foreign = foreign(wanted, place, &release);
                    // Flat sources are mostly of other programs: nothing is wrong with them.
                    if is_flat(&wanted.suite) {
                        tracing::info!("a flat source was not used: {}", foreign.one_line());
                        return Ok(Vec::new());
                    }
                    first.get_or_insert(foreign);
                }
                Ok(release) => return self.indexes(wanted, place, &release).await,
                Err(error) => {
                    first.get_or_insert(error.into());
                }
            }
        }
        Err(first.unwrap_or_else(|| {
            Failure::new(FailureKind::Download, format!("no archive is known for {}", wanted.suite))
        }))
    }

    async fn release(
        &self,
        wanted: &Wanted,
        place: &CandidateArchive,
    ) -> Result<Release, FetchError> {
        let (url, suite) = (&place.url, &wanted.suite);
        let found = release::fetch(self.fetcher, url, suite, &place.keyring, self.rules).await?;
        let url = release::suite_url(url, suite);
        place.ages.check(&url, &found, self.rules)?;
        self.seen.check(&url, &found, self.rules)?;
        Ok(found)
    }

    async fn indexes(
        &self,
        wanted: &Wanted,
        place: &CandidateArchive,
        release: &Release,
    ) -> Result<Vec<Index>, Failure> {
        let all = wanted.components.iter().map(|c| self.index(wanted, place, release, c));
        Ok(try_join_all(all).await?.into_iter().flatten().collect())
    }

    /// Loads one component; None where the suite lacks it and it is optional.
    async fn index(
        &self,
        wanted: &Wanted,
        place: &CandidateArchive,
        release: &Release,
        component: &Component,
    ) -> Result<Option<Index>, Failure> {
        let plain = match is_flat(&wanted.suite) {
            true => "Packages".to_owned(),
            false => format!("{}/binary-{}/Packages", component.name, self.arch),
        };
        let listed = FORMS.iter().filter_map(|form| {
            let path = format!("{plain}{form}");
            release.file(&path).map(|file| (path, file))
        });
        let mut missing: Option<Failure> = None;
        for (path, file) in listed {
            let promised = release.file(&plain).map_or(MOST_BYTES, |file| file.size);
            if promised.max(file.size) > MOST_BYTES {
                return Err(too_large(wanted, place, &path, promised.max(file.size)));
            }
            match self.fetch(wanted, place, release, &path, file).await {
                Ok(()) => {
                    let suite = suite_name(wanted, place, release);
                    let origin = Origin {
                        base_url: place.url.as_str().into(),
                        suite,
                        component: component.name.clone(),
                        arch: self.arch.to_owned(),
                        host_flat: is_host_flat(wanted),
                    };
                    return self.read(path, file, promised, origin).await.map(Some);
                }
                // Archives list forms that they do not have.
                Err(FetchError::Missing(failure)) => {
                    missing.get_or_insert(failure);
                }
                Err(FetchError::Denied(failure) | FetchError::Failed(failure)) => {
                    return Err(failure);
                }
            }
        }
        match missing {
            Some(failure) if component.need == Need::May => {
                tracing::warn!("a component was skipped: {}", failure.one_line());
                Ok(None)
            }
            Some(failure) => Err(failure),
            None if component.need == Need::Must => {
                Err(self.no_component(wanted, place, release, component))
            }
            None => Ok(None),
        }
    }

    /// Fetches an index into the store, by its digest if the archive offers that: then it cannot
    /// change between Release and index.
    async fn fetch(
        &self,
        wanted: &Wanted,
        place: &CandidateArchive,
        release: &Release,
        path: &str,
        file: &IndexFile,
    ) -> Result<(), FetchError> {
        let (store, sha256) = (self.store.clone(), file.sha256.clone());
        let held = tokio::task::spawn_blocking(move || holds(&store, &sha256)).await;
        if held.or_fail(FailureKind::Bug, || "the thread that verifies the store died")?? {
            return Ok(());
        }
        self.task.total(self.total.fetch_add(file.size, Ordering::Relaxed) + file.size);
        self.task.note(&format!("{} {path}", wanted.suite));
        let dir = release::suite_url(&place.url, &wanted.suite);
        let expected = Expected { sha256: Some(file.sha256.clone()), size: Some(file.size) };
        if release.by_hash {
            let folder = path.rfind('/').map_or("", |end| &path[..=end]);
            let url = format!("{dir}/{folder}by-hash/SHA256/{}", file.sha256);
            match self.blob(&url, &expected).await {
                Err(FetchError::Missing(_)) => {}
                done => return done.map(drop),
            }
        }
        let url = format!("{dir}/{path}");
        self.blob(&url, &expected).await.map(drop)
    }

    async fn blob(&self, url: &str, expected: &Expected) -> Result<String, FetchError> {
        self.fetcher.blob_among(url, expected, self.store, self.task, self.alive).await
    }

    async fn read(
        &self,
        path: String,
        file: &IndexFile,
        promised: u64,
        origin: Origin,
    ) -> Result<Index, Failure> {
        let blob = self.store.blob_path(&file.sha256);
        // The semaphore is never closed, so this cannot fail.
        let _reader = self.readers.acquire().await;
        let read = move || {
            let what = format!("reading {path} of {} {}", redacted(&origin.base_url), origin.suite);
            let open = File::open(blob).and_then(|blob| {
                let reader = decompressed(&path, BufReader::with_capacity(1 << 16, blob))?;
                Index::read(reader, promised, origin)
            });
            open.map_err(|error| {
                host_failure(&error).unwrap_or_else(|| {
                    Failure::new(FailureKind::Verification, what).with_source(error).remedy(
                        "the archive signed for it like this: report it there, or use another mirror",
                    )
                })
            })
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.or_fail(FailureKind::Bug, || "the thread that reads an index died")?
    }

    fn no_component(
        &self,
        wanted: &Wanted,
        place: &CandidateArchive,
        release: &Release,
        component: &Component,
    ) -> Failure {
        let cause = format!(
            "{} has no component {} for {}",
            redacted(&release::suite_url(&place.url, &wanted.suite)),
            component.name,
            self.arch
        );
        Failure::new(FailureKind::Download, cause).remedy(format!(
            "it has the components {} and the architectures {}",
            release.components.join(" "),
            release.architectures.join(" ")
        ))
    }
}

/// Returns the name of a suite in plans and messages; a flat archive is named by its address.
fn suite_name(wanted: &Wanted, place: &CandidateArchive, release: &Release) -> String {
    if is_flat(&wanted.suite) {
        return redacted(&release::suite_url(&place.url, &wanted.suite));
    }
    release.name().unwrap_or(&wanted.suite).to_owned()
}

/// True if a host's source is the distribution's own, by its Release's Origin: `Debian` and `Debian
/// Backports` are Debian's. A flat source may be of the drivers' maker, too; one without an Origin may be
/// anybody's, since no suite's name speaks for it.
fn is_ours(release: &Release, wanted: &Wanted) -> bool {
    let of_host_flat = is_host_flat(wanted);
    if of_host_flat && is_of_maker(release) {
        return true;
    }
    let Some(origin) = release.origin.as_ref().filter(|_| !wanted.origins.is_empty()) else {
        return !of_host_flat;
    };
    let first = origin.split_whitespace().next().unwrap_or_default().to_lowercase();
    wanted.origins.contains(&first)
}

/// True for a flat source of the host's apt that no configuration names.
fn is_host_flat(wanted: &Wanted) -> bool {
    is_flat(&wanted.suite) && !wanted.explicit
}

fn is_of_maker(release: &Release) -> bool {
    let names = [&release.origin, &release.label];
    names.into_iter().flatten().any(|name| name.to_lowercase().starts_with(MAKER))
}

fn too_large(wanted: &Wanted, place: &CandidateArchive, path: &str, size: u64) -> Failure {
    let url = redacted(&release::suite_url(&place.url, &wanted.suite));
    let (size, most) = (size >> 20, MOST_BYTES >> 20);
    let cause = format!("the index {url}/{path} has {size} MiB; at most {most} MiB are read");
    Failure::new(FailureKind::Verification, cause)
        .remedy("use an archive with the needed packages only: the index is no distribution's")
}

fn foreign(wanted: &Wanted, place: &CandidateArchive, release: &Release) -> Failure {
    let origin = release.origin.as_deref().unwrap_or_default();
    let url = redacted(&release::suite_url(&place.url, &wanted.suite));
    let cause = format!("{url} is not this distribution's: its Origin is {origin}");
    Failure::new(FailureKind::Verification, cause).remedy(
        "if it is to be used all the same, name it as [[archive]] in the configuration file",
    )
}
