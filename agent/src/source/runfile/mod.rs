//! NVIDIA's .run files as driver packages: a shell script with a compressed tar behind it.
//!
//! A file is unpacked while it arrives, into a temporary directory of the store, and hashed on the
//! way; only what is wanted is written, and the file itself never. When its digest turns out to be
//! the one asked for, the directory gets its name (see [`stored`]). docs/run-files.md tells users.

mod gpus;
pub(crate) mod header;
mod latest;
mod listing;
mod payload;
mod pin;
#[cfg(test)]
mod sample;
pub(crate) mod stored;
pub(crate) mod unpack;

use std::io::Read;
use std::sync::Arc;

pub use gpus::{Chip, SupportedGpus};
pub use stored::{StoredRunFile, Written, find};

use header::{Header, HeaderFault};
use latest::Latest;

use super::http::Fetcher;
use crate::config::RunFileSource;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::flavour::Flavour;
use crate::progress::{Progress, Unit};
use crate::redact::shown;
use crate::source::driver::{AvailableDriver, DriverOrigin};
use crate::store::Store;
use serde::{Deserialize, Serialize};

/// One of NVIDIA's .run files: a driver in all its flavours, with its user-mode files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailableRunFile {
    /// Its name, for example `NVIDIA-Linux-x86_64-535.261.03.run`.
    pub name: String,
    /// Where it can be had, best first.
    pub urls: Vec<String>,
    /// sha256 (hex) it must have.
    pub sha256: String,
    /// Driver version: of its header, until it is in the store.
    pub version: String,
    /// Flavours it has: expected of its branch, until it is in the store.
    pub flavours: Vec<Flavour>,
    /// Whether the store has it unpacked.
    pub stored: bool,
    /// Which GPUs it says it drives, once it is in the store.
    pub gpus: Option<SupportedGpus>,
}

impl AvailableRunFile {
    /// The drivers that can be compiled from it.
    pub fn drivers(&self) -> impl Iterator<Item = AvailableDriver> + '_ {
        self.flavours.iter().map(|flavour| AvailableDriver {
            version: self.version.clone(),
            flavour: *flavour,
            origin: DriverOrigin::RunFile { name: self.name.clone() },
            sha256: self.sha256.clone(),
        })
    }
}

/// No .run file is longer: those of today have less than 0.5 GiB.
const MOST_BYTES: u64 = 4 << 30;
/// What is read of a file to learn what it is of.
const HEAD: u64 = 64 << 10;
/// The first branch whose .run files have open modules.
const FIRST_OPEN_BRANCH: u64 = 515;

/// What a person can do where a file does not begin as it should.
const NO_PAGE: &str = "check that this is NVIDIA's .run file, and not a page about it";

/// What looking at a .run file gives.
#[derive(Debug)]
pub enum Looked {
    /// What is known of it before it is fetched, or of the store's copy.
    Known(AvailableRunFile),
    /// It is a script of an unknown form: what it holds is known when it has unpacked itself (see
    /// [`Workshop::extract`]).
    Foreign(Foreign),
}

/// A file that has to unpack itself.
#[derive(Debug, Clone)]
pub struct Foreign {
    /// Its name.
    pub name: String,
    /// Its sha256 (hex).
    pub sha256: String,
    /// Where it is to be had.
    pub source: RunFileSource,
}

/// Looks at a .run file before it is fetched, or at the store's copy.
///
/// # Errors
/// Exit code 10 for another machine's driver, 12 where neither the store nor any mirror has it, 13
/// where it is no .run file.
pub async fn look(
    source: &RunFileSource,
    fetcher: &Fetcher,
    store: &Store,
) -> Result<Looked, Failure> {
    let name = name_of(source);
    let sha256 = pin::sha256_of(source, &name, fetcher).await?;
    let urls = source.urls.clone();
    if let Some(stored) = find(store, &sha256) {
        return Ok(Looked::Known(at_hand(&stored, urls)));
    }
    let Some(header) = header_of(&name, source, fetcher).await? else {
        return Ok(Looked::Foreign(Foreign { name, sha256, source: source.clone() }));
    };
    let name = header.name().unwrap_or(name);
    stored::check_machine(&name, header.arch.as_deref())?;
    let Some(version) = header.version else {
        let cause = format!("{name} does not say its version");
        return Err(Failure::new(ExitCode::Verification, cause).remedy(NO_PAGE));
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

/// Brings a .run file into the store, unpacked; what is there already is not fetched again.
///
/// # Errors
/// Exit code 10 for another machine's driver, 12 where no mirror has it, 13 where it is not what
/// its digest says or not of a known form, 15 where the store is full or cannot be written.
pub async fn fetch(
    file: &AvailableRunFile,
    fetcher: &Fetcher,
    store: &Store,
    progress: &dyn Progress,
) -> Result<StoredRunFile, Failure> {
    if let Some(stored) = find(store, &file.sha256) {
        return Ok(stored);
    }
    let mut first = None;
    for url in &file.urls {
        match fetch_from(url, file, fetcher, store, progress).await {
            Ok(stored) => return Ok(stored),
            // A full disk is full for every mirror.
            Err(failure) if failure.code() == ExitCode::Preflight => return Err(failure),
            Err(failure) => {
                if file.urls.len() > 1 {
                    tracing::warn!("a mirror does not have it: {}", failure.one_line());
                }
                first.get_or_insert(failure);
            }
        }
    }
    Err(first.unwrap_or_else(|| Failure::new(ExitCode::Usage, "a .run file without a URL")))
}

async fn fetch_from(
    url: &str,
    file: &AvailableRunFile,
    fetcher: &Fetcher,
    store: &Store,
    progress: &dyn Progress,
) -> Result<StoredRunFile, Failure> {
    let task = progress.begin(&format!("fetching {}", file.name), None, Unit::Bytes);
    let latest = Arc::new(Latest::default());
    let reader = latest.reader(&file.name, store);
    fetcher.stream(url, &file.sha256, MOST_BYTES, &reader, task.as_ref()).await?;
    let found = latest.take().ok_or_else(|| {
        Failure::new(ExitCode::Bug, format!("{} was fetched and not unpacked", file.name))
    })?;
    task.note("verifying");
    let (file, store) = (file.clone(), store.clone());
    let what = format!("keeping {}", file.name);
    let keep = move || {
        let stored = stored::keep(found, &file.name, &file.sha256, &store)?;
        check_version(&stored, &file.version)?;
        Ok(stored)
    };
    tokio::task::spawn_blocking(keep).await.or_fail(ExitCode::Bug, || what)?
}

/// Reads a .run file to its end and says what it holds; nothing of it is kept.
///
/// # Errors
/// Exit code 10 for another machine's driver, 13 for what is no .run file of a known form or holds
/// what it must not, 15 where the store cannot be written.
pub fn inspect(name: &str, from: &mut dyn Read, store: &Store) -> Result<Written, Failure> {
    let unpacked = unpack::unpack(name, from, store, unpack::MOST_UNPACKED)?;
    stored::describe(&unpacked, name, "")
}

/// The header was believed when the plan was made.
fn check_version(stored: &StoredRunFile, planned: &str) -> Result<(), Failure> {
    let Written { name, version, .. } = &stored.written;
    if version == planned {
        return Ok(());
    }
    let cause = format!("{name} is of {version}; when it was looked at first it said {planned}");
    Err(Failure::new(ExitCode::Verification, cause).remedy("run again"))
}

/// What is known of a file now that the store may have it.
pub fn as_stored(file: &AvailableRunFile, store: &Store) -> AvailableRunFile {
    let stored = find(store, &file.sha256);
    stored.map_or_else(|| file.clone(), |stored| at_hand(&stored, file.urls.clone()))
}

/// What is known of a driver in the store, which is to be had from `urls`.
pub fn at_hand(stored: &StoredRunFile, urls: Vec<String>) -> AvailableRunFile {
    let Written { name, sha256, version, flavours, .. } = stored.written.clone();
    AvailableRunFile { name, urls, sha256, version, flavours, stored: true, gpus: stored.gpus() }
}

/// Reads the beginning of the file from the first mirror that has it; None where every one that has
/// something has a script that is not of a known form.
async fn header_of(
    name: &str,
    source: &RunFileSource,
    fetcher: &Fetcher,
) -> Result<Option<Header>, Failure> {
    let (mut first, mut foreign) = (None, false);
    for (number, url) in source.urls.iter().enumerate() {
        let failure = match fetcher.head(url, HEAD).await {
            Ok(head) => match header::identify(&head) {
                Ok(header) => return Ok(Some(header)),
                Err(fault) => {
                    foreign |= fault.is_of_a_script();
                    no_header(url, fault)
                }
            },
            Err(error) => error.into(),
        };
        if number + 1 < source.urls.len() {
            tracing::warn!("trying the next mirror: {}", failure.one_line());
        }
        first.get_or_insert(failure);
    }
    if foreign {
        return Ok(None);
    }
    let unnamed = || Failure::new(ExitCode::Usage, format!("{name} has no URL"));
    Err(first.unwrap_or_else(unnamed))
}

fn no_header(url: &str, fault: HeaderFault) -> Failure {
    let cause = format!("{} is no .run file of a known form", shown(url));
    Failure::new(ExitCode::Verification, cause).because(fault).remedy(NO_PAGE)
}

/// The last part of the first URL's path.
fn name_of(source: &RunFileSource) -> String {
    let url = source.urls.first().and_then(|url| reqwest::Url::parse(url).ok());
    let last = url.as_ref().and_then(|url| url.path_segments()?.next_back().map(str::to_owned));
    last.filter(|name| !name.is_empty()).unwrap_or_else(|| "driver.run".to_owned())
}

fn expected_flavours(version: &str) -> Vec<Flavour> {
    let branch = version.split('.').next().and_then(|branch| branch.parse::<u64>().ok());
    match branch {
        Some(branch) if branch < FIRST_OPEN_BRANCH => vec![Flavour::Proprietary],
        _ => vec![Flavour::Open, Flavour::Proprietary],
    }
}

/// Whether a text is a driver's version: `535.261.03`.
fn is_version(text: &str) -> bool {
    let number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    text.contains('.') && text.len() <= 32 && text.split('.').all(number)
}

#[cfg(test)]
mod tests;
