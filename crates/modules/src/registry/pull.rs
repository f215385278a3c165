//! Pulling of a set's modules into the store.

use std::cmp::Reverse;

use futures_util::{TryStreamExt, stream};

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
    let url = session.url(&format!("blobs/sha256:{sha256}"))?;
    let (fetcher, mut logins) = (session.fetcher(), 0);
    loop {
        let asker = session.authorization().await;
        let fetched =
            fetcher.blob_as(asker.clone(), url.as_str(), &expected, store, task, alive).await;
        match fetched {
            Ok(_) => return Ok(()),
            Err(FetchError::Denied(denied)) if logins < MOST_LOGINS => {
                session.log_in_for(url.clone(), asker, denied).await?;
                logins += 1;
            }
            Err(other) => return Err(other.into()),
        }
    }
}
