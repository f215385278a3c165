//! NVIDIA's .run files as driver packages: a shell script with a compressed tar behind it.
//!
//! A file is unpacked while it is downloaded, into a temporary directory of the store, and hashed
//! on the way; only the wanted files are written, and the .run file itself never. If the digest is
//! the expected one, the directory is renamed to its final name (see `stored`). docs/supply-chain/run-files.md
//! is for users.

pub mod gpus;
pub mod header;
mod latest;
mod listing;
mod pin;
#[cfg(test)]
mod sample;
pub mod source;
pub mod stored;
pub mod unpack;

use std::io::Read;
use std::sync::Arc;

pub use gpus::{Chip, SupportedGpus};
pub use source::{Pin, RunFileSource};
pub use stored::{StoredRunFile, Written, find};

use header::{Header, HeaderFault};
use latest::Latest;

use crate::driver::{AvailableDriver, DriverOrigin};
use crate::pinned::{PinnedFetcher, keep_failure, repository_of};
use longshore_core::driver_version::{DriverVersion, FIRST_OPEN_BRANCH};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::progress::{Progress, Unit};
use longshore_core::redact::redacted;
use longshore_core::store::Store;
use serde::{Deserialize, Serialize};

/// One of NVIDIA's .run files: a driver in all its flavours, with its user-mode files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailableRunFile {
    /// Name, for example `NVIDIA-Linux-x86_64-535.261.03.run`.
    pub name: String,
    /// URLs and repositories (`oci://HOST/REPOSITORY`), in order of preference.
    pub urls: Vec<String>,
    /// Required sha256 (hex).
    pub sha256: String,
    /// Driver version: from its header, until it is in the store.
    pub version: String,
    /// Flavours: those expected of its branch, until it is in the store.
    pub flavours: Vec<Flavour>,
    /// True if the store has it unpacked.
    pub stored: bool,
    /// Its list of supported GPUs, once it is in the store.
    pub gpus: Option<SupportedGpus>,
}

impl AvailableRunFile {
    /// Returns the drivers that can be compiled from it.
    pub fn drivers(&self) -> impl Iterator<Item = AvailableDriver> + '_ {
        self.flavours.iter().map(|flavour| AvailableDriver {
            version: self.version.clone(),
            flavour: *flavour,
            origin: DriverOrigin::RunFile { name: self.name.clone() },
            sha256: self.sha256.clone(),
        })
    }
}

/// Maximum size of a .run file: those of today have less than 0.5 GiB.
const MOST_BYTES: u64 = 4 << 30;
/// Number of bytes read from a file to identify it.
const HEAD: u64 = 64 << 10;

/// Remedy for a file that does not begin like a .run file.
const NO_PAGE: &str = "check that this is NVIDIA's .run file, and not a page about it";

/// Result of looking at a .run file.
#[derive(Debug)]
pub enum Looked {
    /// Known before it is fetched, or from the store's copy.
    Known(AvailableRunFile),
    /// A script of an unknown form: its contents are known only after it has extracted itself (see
    /// `extract::Workshop::extract` of longshore-build).
    Foreign(Foreign),
}

/// A file that must extract itself.
#[derive(Debug, Clone)]
pub struct Foreign {
    /// File name.
    pub name: String,
    /// The expected file, with its sha256 (hex).
    pub sha256: String,
    /// URLs of the file.
    pub source: RunFileSource,
}

/// Identifies a .run file before it is fetched, or from the store's copy.
///
/// # Errors
/// Exit code 10 for another machine's driver, 12 where neither the store nor any mirror has it, 13
/// where it is not a .run file.
pub async fn look(
    source: &RunFileSource,
    fetcher: PinnedFetcher<'_>,
    store: &Store,
) -> Result<Looked, Failure> {
    let name = name_of(source);
    let sha256 = pin::sha256_of(source, &name, fetcher.of_urls()).await?;
    let urls = source.urls.clone();
    if let Some(stored) = find(store, &sha256) {
        return Ok(Looked::Known(available(&stored, urls)));
    }
    let Some(header) = header_of(&name, source, &sha256, fetcher).await? else {
        return Ok(Looked::Foreign(Foreign { name, sha256, source: source.clone() }));
    };
    let name = header.name().unwrap_or(name);
    stored::check_machine(&name, header.arch.as_deref())?;
    let Some(version) = header.version else {
        let cause = format!("{name} does not say its version");
        return Err(Failure::new(FailureKind::Verification, cause).remedy(NO_PAGE));
    };
    let flavours = expected_flavours(&version);
    Ok(Looked::Known(AvailableRunFile {
        name,
        urls,
        sha256,
        version,
        flavours,
        stored: false,
        gpus: None,
    }))
}

/// Fetches a .run file into the store, unpacked; one that exists already is not fetched again.
///
/// # Errors
/// Exit code 10 for another machine's driver, 12 where no mirror has it, 13 where it does not match
/// its digest or has an unknown form, 15 where the store is full or cannot be written.
pub async fn fetch(
    file: &AvailableRunFile,
    fetcher: PinnedFetcher<'_>,
    store: &Store,
    progress: &dyn Progress,
) -> Result<StoredRunFile, Failure> {
    if let Some(stored) = find(store, &file.sha256) {
        return Ok(stored);
    }
    let mut kept = None;
    for url in &file.urls {
        match fetch_from(url, file, fetcher, store, progress).await {
            Ok(stored) => return Ok(stored),
            // A full or broken disk is the same for every mirror.
            Err(failure) if failure.kind().is_of_host() => return Err(failure),
            Err(failure) => {
                if file.urls.len() > 1 {
                    tracing::warn!("a mirror does not have it: {}", failure.one_line());
                }
                keep_failure(&mut kept, failure);
            }
        }
    }
    Err(kept.unwrap_or_else(|| Failure::new(FailureKind::Usage, "a .run file without a URL")))
}

async fn fetch_from(
    url: &str,
    file: &AvailableRunFile,
    fetcher: PinnedFetcher<'_>,
    store: &Store,
    progress: &dyn Progress,
) -> Result<StoredRunFile, Failure> {
    let task = progress.begin(&format!("fetching {}", file.name), None, Unit::Bytes);
    let latest = Arc::new(Latest::default());
    let reader = latest.reader(&file.name, store);
    fetcher.stream(url, &file.sha256, MOST_BYTES, &reader, task.as_ref()).await?;
    let found = latest.take().ok_or_else(|| {
        Failure::new(FailureKind::Bug, format!("{} was fetched and not unpacked", file.name))
    })?;
    task.note("verifying");
    let (file, store) = (file.clone(), store.clone());
    let what = format!("keeping {}", file.name);
    let keep = move || {
        let stored = stored::keep(found, &file.name, &file.sha256, &store)?;
        check_version(&stored, &file.version)?;
        Ok(stored)
    };
    tokio::task::spawn_blocking(keep).await.or_fail(FailureKind::Bug, || what)?
}

/// Reads a .run file to its end and describes its contents; nothing is kept.
///
/// # Errors
/// Exit code 10 for another machine's driver, 13 for a file of an unknown form or with forbidden
/// contents, 15 where the store cannot be written.
pub fn inspect(name: &str, from: &mut dyn Read, store: &Store) -> Result<Written, Failure> {
    let unpacked = unpack::unpack(name, from, store, unpack::MOST_UNPACKED)?;
    stored::describe(&unpacked, name, "")
}

/// Compares the version with that of the header, which the plan was made from.
fn check_version(stored: &StoredRunFile, planned: &str) -> Result<(), Failure> {
    let Written { name, version, .. } = &stored.written;
    if version == planned {
        return Ok(());
    }
    let cause = format!("{name} is of {version}; its header stated {planned} before");
    Err(Failure::new(FailureKind::Verification, cause).remedy("run again"))
}

/// Returns a file's description, from the store if it has the file.
pub fn as_stored(file: &AvailableRunFile, store: &Store) -> AvailableRunFile {
    let stored = find(store, &file.sha256);
    stored.map_or_else(|| file.clone(), |stored| available(&stored, file.urls.clone()))
}

/// Returns the description of a driver in the store, with its `urls`.
pub fn available(stored: &StoredRunFile, urls: Vec<String>) -> AvailableRunFile {
    let Written { name, sha256, version, flavours, .. } = stored.written.clone();
    AvailableRunFile { name, urls, sha256, version, flavours, stored: true, gpus: stored.gpus() }
}

/// Reads the beginning of the file from the first mirror that has it; None where every mirror that
/// has something serves a script of an unknown form.
async fn header_of(
    name: &str,
    source: &RunFileSource,
    sha256: &str,
    fetcher: PinnedFetcher<'_>,
) -> Result<Option<Header>, Failure> {
    let (mut kept, mut foreign) = (None, false);
    for (number, url) in source.urls.iter().enumerate() {
        let failure = match fetcher.head(url, sha256, HEAD).await {
            Ok(head) => match header::identify(&head) {
                Ok(header) => return Ok(Some(header)),
                Err(fault) => {
                    foreign |= fault.is_of_a_script();
                    no_header(url, fault)
                }
            },
            Err(failure) => failure,
        };
        if failure.kind().is_of_host() {
            return Err(failure);
        }
        if number + 1 < source.urls.len() {
            tracing::warn!("trying the next mirror: {}", failure.one_line());
        }
        keep_failure(&mut kept, failure);
    }
    if foreign {
        return Ok(None);
    }
    let unnamed = || Failure::new(FailureKind::Usage, format!("{name} has no URL"));
    Err(kept.unwrap_or_else(unnamed))
}

fn no_header(url: &str, fault: HeaderFault) -> Failure {
    let cause = format!("{} is no .run file of a known form", redacted(url));
    Failure::new(FailureKind::Verification, cause).with_source(fault).remedy(NO_PAGE)
}

/// Returns the last part of the first URL's path; repositories name no file.
fn name_of(source: &RunFileSource) -> String {
    let url = source.urls.iter().find(|url| repository_of(url).is_none());
    let url = url.and_then(|url| reqwest::Url::parse(url).ok());
    let last = url.as_ref().and_then(|url| url.path_segments()?.next_back().map(str::to_owned));
    last.filter(|name| !name.is_empty()).unwrap_or_else(|| "driver.run".to_owned())
}

fn expected_flavours(version: &str) -> Vec<Flavour> {
    match DriverVersion::new(version).branch() {
        Some(branch) if branch < FIRST_OPEN_BRANCH => vec![Flavour::Proprietary],
        _ => vec![Flavour::Open, Flavour::Proprietary],
    }
}

#[cfg(test)]
mod tests;
