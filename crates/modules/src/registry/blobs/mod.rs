//! Files that are blobs of a repository by their own sha256: no manifest is read.

use reqwest::header::HeaderValue;

use super::Registry;
use super::pull::{BlobDownload, fetch_expected};
use super::session::Session;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::Task;
use longshore_core::store::Store;
use longshore_fetch::http::{Expected, FetchError, Reader, WriterGroup};

impl Registry {
    /// Fetches the first bytes of the blob `sha256` (hex), at most `most`, from the first repository that has it; they
    /// are not verified.
    ///
    /// # Errors
    /// Exit code 12 where no repository has it, or access is denied.
    pub async fn blob_head(&self, sha256: &str, most: u64) -> Result<Vec<u8>, Failure> {
        let mut failed = None;
        for session in &self.sessions {
            match head_from(session, sha256, most).await {
                Ok(head) => return Ok(head),
                Err(error) => {
                    self.next_mirror(session, of_blob(session, sha256, error), &mut failed);
                }
            }
        }
        Err(failed.unwrap_or_else(|| super::nobody(self.name())))
    }

    /// Passes the blob `sha256` (hex) to `reader` while it is downloaded, from the first repository that has it, as
    /// [`Fetcher::stream`](longshore_fetch::http::Fetcher::stream) does with a URL: `reader` may be called again, and
    /// only its last result counts, after a return without an error.
    ///
    /// # Errors
    /// Exit code 12 where no repository has it, or access is denied; 13 where it has another digest or is longer than
    /// `limit`; and the errors of `reader`.
    pub async fn stream_blob(
        &self,
        sha256: &str,
        limit: u64,
        reader: &Reader,
        task: &dyn Task,
    ) -> Result<(), Failure> {
        let mut failed = None;
        for session in &self.sessions {
            let Err(error) = stream_from(session, sha256, limit, reader, task).await else {
                return Ok(());
            };
            let failure = of_blob(session, sha256, error);
            // The disk is the same for every mirror.
            if failure.kind().is_of_host() {
                return Err(failure);
            }
            self.next_mirror(session, failure, &mut failed);
        }
        Err(failed.unwrap_or_else(|| super::nobody(self.name())))
    }

    /// Fetches the blob `sha256` (hex) into the store, from the first repository that has it.
    ///
    /// # Errors
    /// Exit code 12 where no repository has it, or access is denied; 13 where it has another digest; 15 where the store
    /// is full or cannot be written.
    pub async fn pull_blob(
        &self,
        sha256: &str,
        store: &Store,
        task: &dyn Task,
    ) -> Result<(), Failure> {
        let expected = Expected { sha256: Some(sha256.to_owned()), size: None };
        let mut failed = None;
        for session in &self.sessions {
            let writers = WriterGroup::default();
            let alive = writers.alive();
            let fetched = fetch_expected(session, sha256, &expected, store, task, alive).await;
            writers.all_ended().await;
            let Err(error) = fetched else { return Ok(()) };
            let failure = of_blob(session, sha256, error);
            if failure.kind().is_of_host() {
                return Err(failure);
            }
            self.next_mirror(session, failure, &mut failed);
        }
        Err(failed.unwrap_or_else(|| super::nobody(self.name())))
    }
}

async fn head_from(session: &Session, sha256: &str, most: u64) -> Result<Vec<u8>, FetchError> {
    let mut download = BlobDownload::new(session, sha256)?;
    loop {
        let login = download.login().await;
        match session.fetcher().head_as(login.clone(), download.url(), most).await {
            Err(error) => download.log_in(login, error).await?,
            head => return head,
        }
    }
}

async fn stream_from(
    session: &Session,
    sha256: &str,
    limit: u64,
    reader: &Reader,
    task: &dyn Task,
) -> Result<(), FetchError> {
    let mut download = BlobDownload::new(session, sha256)?;
    loop {
        let login: Option<HeaderValue> = download.login().await;
        let (fetcher, url) = (session.fetcher(), download.url());
        match fetcher.stream_as(login.clone(), url, sha256, limit, reader, task).await {
            Err(error) => download.log_in(login, error).await?,
            streamed => return streamed,
        }
    }
}

/// Returns the failure of a blob's download: an absent one by repository and digest.
fn of_blob(session: &Session, sha256: &str, error: FetchError) -> Failure {
    match error {
        FetchError::Missing(failure) => {
            let cause = format!("{} has no blob sha256:{sha256}", session.repository);
            Failure::new(FailureKind::Download, cause).with_source(failure.one_line()).remedy(
                "push the file to this repository, as `oras push` does, or correct its sha256",
            )
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests;
