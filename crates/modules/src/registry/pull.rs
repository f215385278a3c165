//! Pulling of a set's modules into the store.

use std::cmp::Reverse;

use futures_util::{TryStreamExt, stream};
use reqwest::Url;
use reqwest::header::HeaderValue;

use super::content::{described, missing};
use super::session::{MOST_LOGINS, Session};
use crate::artifact::{ModuleEntry, ModuleKey, ModuleSet};
use crate::sets::SetStore;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::{Progress, Task, Unit};
use longshore_core::store::Store;
use longshore_fetch::http::{Expected, FetchError, WriterGroup, WriterGuard};

/// Number of parallel downloads: one module is most of a set, and more would only burden the
/// registry.
pub(super) const PARALLEL: usize = 4;

/// Pulls the set with the manifest `digest` from one repository into the store.
pub(super) async fn pull_from(
    session: &Session,
    digest: &str,
    store: &Store,
    progress: &dyn Progress,
) -> Result<ModuleSet, Failure> {
    let found = described(session, digest).await?;
    let set = found.ok_or_else(|| missing(session, digest))?.set;
    fetch_modules(session, &set, store, progress).await?;
    store.put_set(&set)?;
    Ok(set)
}

/// Fetches the missing modules, the largest first, because the last download is waited for.
async fn fetch_modules(
    session: &Session,
    set: &ModuleSet,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let total = set.modules.iter().map(|m| m.size).sum();
    let what = format!("modules of {} from {}", set.key.driver_version, session.repository);
    let task = progress.begin(&what, Some(total), Unit::Bytes);
    let mut modules: Vec<&ModuleEntry> = set.modules.iter().collect();
    modules.sort_by_key(|module| Reverse(module.size));
    let writers = WriterGroup::default();
    let alive = writers.alive();
    let bring = |module: &ModuleEntry| {
        let (module, task) = (module.clone(), task.as_ref());
        async move {
            if store.open_blob(&module.sha256).is_err() {
                fetch_blob(session, &module.sha256, module.size, store, task, alive).await?;
            } else {
                task.advance(module.size);
            }
            check(module, set.key.clone(), store.clone()).await
        }
    };
    let modules = stream::iter(modules.into_iter().map(Ok));
    let fetched = modules.try_for_each_concurrent(PARALLEL, bring).await;
    // After a failure the other downloads were dropped; none may still write.
    writers.all_ended().await;
    fetched
}

/// Compares a module in the store with its record in the set with this key.
async fn check(module: ModuleEntry, key: ModuleKey, store: Store) -> Result<(), Failure> {
    let check = move || {
        let image = store.read_blob(&module.sha256)?;
        let what = || format!("checking {}", module.file);
        module.check_image(&image, &key).or_fail(FailureKind::Verification, what)
    };
    tokio::task::spawn_blocking(check).await.or_fail(FailureKind::Bug, || "checking a module")?
}

/// Fetches a blob, hashed while it streams.
pub(super) async fn fetch_blob(
    session: &Session,
    sha256: &str,
    size: u64,
    store: &Store,
    task: &dyn Task,
    alive: &WriterGuard,
) -> Result<(), Failure> {
    let expected = Expected { sha256: Some(sha256.to_owned()), size: Some(size) };
    fetch_expected(session, sha256, &expected, store, task, alive).await.map_err(Failure::from)
}

/// Fetches the blob `sha256` into the store, as far as `expected` describes it.
pub(super) async fn fetch_expected(
    session: &Session,
    sha256: &str,
    expected: &Expected,
    store: &Store,
    task: &dyn Task,
    alive: &WriterGuard,
) -> Result<(), FetchError> {
    let mut download = BlobDownload::new(session, sha256)?;
    loop {
        let login = download.login().await;
        let (fetcher, url) = (session.fetcher(), download.url());
        match fetcher.blob_as(login.clone(), url, expected, store, task, alive).await {
            Ok(_) => return Ok(()),
            Err(error) => download.log_in(login, error).await?,
        }
    }
}

/// Download of a blob that may be denied until the session has logged in.
pub(super) struct BlobDownload<'s> {
    session: &'s Session,
    url: Url,
    logins: usize,
}

impl<'s> BlobDownload<'s> {
    /// Prepares the download of the blob `sha256` (hex).
    ///
    /// # Errors
    /// As [`Session::url`].
    pub(super) fn new(session: &'s Session, sha256: &str) -> Result<Self, Failure> {
        let url = session.url(&format!("blobs/sha256:{sha256}"))?;
        Ok(Self { session, url, logins: 0 })
    }

    pub(super) fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Returns the `Authorization` header of the next attempt.
    pub(super) async fn login(&self) -> Option<HeaderValue> {
        self.session.authorization().await
    }

    /// Logs in after an attempt that was denied with the header `used`.
    ///
    /// # Errors
    /// Exit code 12 where the registry denies access, and `error` where it is no denial or no login helps.
    pub(super) async fn log_in(
        &mut self,
        used: Option<HeaderValue>,
        error: FetchError,
    ) -> Result<(), FetchError> {
        match error {
            FetchError::Denied(denied) if self.logins < MOST_LOGINS => {
                self.session.log_in_for(self.url.clone(), used, denied).await?;
                self.logins += 1;
                Ok(())
            }
            other => Err(other),
        }
    }
}
