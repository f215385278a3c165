//! Bringing a set's modules into the store.

use super::content::{described, missing};
use super::session::{MOST_LOGINS, Session};
use crate::artifact::ModuleSet;
use crate::failure::{ExitCode, Failure};
use crate::progress::{Progress, Task, Unit};
use crate::source::http::{Expected, FetchError};
use crate::store::Store;

/// Brings the set with the manifest `digest` from one place into the store.
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

async fn fetch_modules(
    session: &Session,
    set: &ModuleSet,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let total = set.modules.iter().map(|m| m.size).sum();
    let what = format!("modules of {} from {}", set.key.driver_version, session.repository);
    let task = progress.begin(&what, Some(total), Unit::Bytes);
    for module in &set.modules {
        if store.open_blob(&module.sha256).is_err() {
            let expected =
                Expected { sha256: Some(module.sha256.clone()), size: Some(module.size) };
            fetch_blob(session, &expected, &module.sha256, store, task.as_ref()).await?;
        } else {
            task.advance(module.size);
        }
        let (store, module) = (store.clone(), module.clone());
        let key = set.key.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let image = store.read_blob(&module.sha256)?;
            module.check_image(&image, &key).map_err(|e| {
                Failure::new(ExitCode::Verification, format!("checking {}", module.file)).because(e)
            })
        });
        checked
            .await
            .map_err(|e| Failure::new(ExitCode::Bug, "checking a module").because(e))??;
    }
    Ok(())
}

async fn fetch_blob(
    session: &Session,
    expected: &Expected,
    sha256: &str,
    store: &Store,
    task: &dyn Task,
) -> Result<(), Failure> {
    let url = session.url(&format!("blobs/sha256:{sha256}"))?;
    let mut logins = 0;
    loop {
        let authorization = session.authorization().await;
        let fetched = session.fetcher().blob_as(authorization, url.as_str(), expected, store, task);
        match fetched.await {
            Ok(_) => return Ok(()),
            Err(FetchError::Denied(denied)) if logins < MOST_LOGINS => {
                session.log_in_for(url.clone(), denied).await?;
                logins += 1;
            }
            Err(other) => return Err(other.into()),
        }
    }
}
