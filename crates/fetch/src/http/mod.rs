//! Downloads over http and https, and copies from file URLs.

mod certificates;
mod client;
mod client_error;
mod download;
mod head;
mod local;
mod logins;
mod pace;
mod policy;
mod process;
mod proxy;
mod reach;
mod request;
mod response;
mod retry;
mod settings;
mod transport;
mod unreachable;

use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};

use client::Client;
pub use logins::{Login, Logins};
pub use policy::{Downloads, Policy};
pub use process::{SUBCOMMAND, fetch_by, fetch_main};
use proxy::Proxies;
pub use proxy::{Proxy, ProxyRule};
pub use reach::{OutOfReach, Reach};
use request::DownloadRequest;
pub use request::proxies;
pub use response::Response;
pub use retry::is_busy;
use settings::{Limit, Settings};
pub use transport::{AttemptError, Body, Exchange, Request};
pub use unreachable::UnreachableHosts;

use super::sink::{Committed, Reading, Sink, Writing};
pub use super::sink::{ReadOnce, Reader, WriterGroup, WriterGuard};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::{Silent, Task};
use longshore_core::root::{is_absent, read_below};
use longshore_core::space;
use longshore_core::store::Store;

/// Maximum length of a file of unknown size.
const MOST_BYTES: u64 = 16 << 30;

/// Known properties of a file before it is fetched.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Its sha256 (hex).
    pub sha256: Option<String>,
    /// Size in bytes.
    pub size: Option<u64>,
}

/// A download that failed.
#[derive(Debug, derive_more::From)]
pub enum FetchError {
    /// The server has no such file (404, 410, or no such path).
    Missing(Failure),
    /// The server requires authentication, or refuses these credentials (401, 403).
    Denied(Failure),
    /// Any other failure.
    #[from]
    Failed(Failure),
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Missing(failure)
            | FetchError::Denied(failure)
            | FetchError::Failed(failure) => failure,
        }
    }
}

/// Fetches URLs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fetcher {
    client: Client,
    policy: Policy,
    host_root: PathBuf,
    logins: Logins,
    rules: Vec<ProxyRule>,
    /// Limit of the hosts that are asked.
    reach: Option<Reach>,
}

/// Redirections of a fetcher for one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Redirections {
    /// They are followed.
    Followed,
    /// They are followed, and http is refused: for files that are trusted because of the server they come from.
    FollowedOverHttps,
    /// They are returned as the answer: for requests that are meant for their server alone.
    Returned,
}

impl Fetcher {
    /// Creates a fetcher that honours the proxy variables, and trusts the certificates of this file
    /// system and those of the host below `host_root`.
    ///
    /// # Errors
    /// Exit code 2 where no client can be set up with them.
    pub fn new(policy: Policy, host_root: &Path) -> Result<Self, Failure> {
        Self::behind(Vec::new(), policy, host_root)
    }

    /// Like [`Fetcher::new`], with proxies for some servers, which come before the variables.
    ///
    /// # Errors
    /// As [`Fetcher::new`].
    pub fn behind(
        rules: Vec<ProxyRule>,
        policy: Policy,
        host_root: &Path,
    ) -> Result<Self, Failure> {
        Self::set_up(rules, policy, host_root, Limit::Any)
    }

    /// Like [`Fetcher::new`], for one server, whose answers lead to no host out of `reach`.
    ///
    /// # Errors
    /// As [`Fetcher::new`].
    pub fn within(
        reach: &Reach,
        redirections: Redirections,
        policy: Policy,
        host_root: &Path,
    ) -> Result<Self, Failure> {
        let limit = Limit::Within(reach.clone(), redirections);
        let fetcher = Self::set_up(Vec::new(), policy, host_root, limit)?;
        Ok(Self { reach: Some(reach.clone()), ..fetcher })
    }

    /// Like [`Fetcher::new`], but refuses http, also where an https URL is redirected to it: for
    /// files that are trusted because of the server they come from.
    ///
    /// # Errors
    /// As [`Fetcher::new`].
    pub fn over_https_only(&self) -> Result<Self, Failure> {
        let (rules, policy) = (self.rules.clone(), self.policy.clone());
        Self::set_up(rules, policy, &self.host_root, Limit::OverHttps)
    }

    fn set_up(
        rules: Vec<ProxyRule>,
        policy: Policy,
        host_root: &Path,
        limit: Limit,
    ) -> Result<Self, Failure> {
        let (connect, stall) = (policy.connect, policy.stall);
        let proxies = Proxies::from_process_env(rules.clone())?;
        let certificates = beside_the_own(host_root);
        let settings = Settings { connect, stall, proxies, certificates, limit };
        let client = Client::new(settings).map_err(|cause| {
            Failure::new(FailureKind::Usage, "setting up downloads")
                .with_source(cause)
                .remedy("check the proxy variables and the certificates")
        })?;
        let (host_root, logins) = (host_root.to_path_buf(), Logins::default());
        Ok(Self { client, policy, host_root, logins, rules, reach: None })
    }

    /// Adds logins for downloads. A login is sent to its own server alone, and not with a redirection
    /// to another host, port or scheme.
    #[must_use]
    pub fn with_logins(self, logins: Logins) -> Self {
        Self { logins, ..self }
    }

    /// Fetches a small file into memory; more than `limit` bytes are refused.
    ///
    /// # Errors
    /// Exit code 12, or 13 where it is too long.
    pub async fn bytes(&self, url: &str, limit: u64) -> Result<Vec<u8>, FetchError> {
        let mut sink = Sink::Memory(Vec::new());
        let request = DownloadRequest::new(url, None, limit, false)?;
        self.run(&request, &mut sink, &Silent).await?;
        Ok(sink.into_bytes())
    }

    /// Fetches the first bytes of a file, at most `most`.
    ///
    /// # Errors
    /// Exit code 12.
    pub async fn head(&self, url: &str, most: u64) -> Result<Vec<u8>, FetchError> {
        self.head_as(None, url, most).await
    }

    /// Like [`Fetcher::head`], with an Authorization header, which is sent to the URL's own host alone.
    ///
    /// # Errors
    /// Exit code 12.
    pub async fn head_as(
        &self,
        authorization: Option<HeaderValue>,
        url: &str,
        most: u64,
    ) -> Result<Vec<u8>, FetchError> {
        let mut sink = Sink::Memory(Vec::new());
        let request = DownloadRequest::new(url, None, most, false)?;
        let request = DownloadRequest { part: true, authorization, ..request };
        self.run(&request, &mut sink, &Silent).await?;
        Ok(sink.into_bytes())
    }

    /// Passes a file to `reader` while it is downloaded, hashed and resumed after an interruption;
    /// the file itself is not stored. `reader` may be called again where the download starts over;
    /// only the last result counts, and only if this returns without an error: the digest is known
    /// last. Nothing is read any more when this returns.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be downloaded, 13 where it differs from the expected file or is
    /// longer than `limit`, and the errors of `reader` where the file is the expected one.
    pub async fn stream(
        &self,
        url: &str,
        sha256: &str,
        limit: u64,
        reader: &Reader,
        task: &dyn Task,
    ) -> Result<(), FetchError> {
        self.stream_as(None, url, sha256, limit, reader, task).await
    }

    /// Like [`Fetcher::stream`], with an Authorization header, which is sent to the URL's own host alone.
    ///
    /// # Errors
    /// As [`Fetcher::stream`].
    pub async fn stream_as(
        &self,
        authorization: Option<HeaderValue>,
        url: &str,
        sha256: &str,
        limit: u64,
        reader: &Reader,
        task: &dyn Task,
    ) -> Result<(), FetchError> {
        let writers = WriterGroup::default();
        let request = DownloadRequest::new(url, None, limit, true)?;
        let request = DownloadRequest { authorization, ..request };
        let start = || Ok(Sink::Reader(Reading::start(reader, writers.alive())));
        let expected = Expected { sha256: Some(sha256.to_owned()), size: None };
        let fetched = self.whole(&request, &expected, task, start).await;
        writers.all_ended().await;
        fetched.map(drop)
    }

    /// Fetches a file into the store, hashed while it streams and resumed after an interruption;
    /// returns its sha256 (hex). A failed download leaves nothing behind, and never writes more
    /// than the promised size.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be downloaded, 13 where it differs from the expected file, 15
    /// where the store is full or cannot be written.
    pub async fn blob(
        &self,
        url: &str,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
    ) -> Result<String, FetchError> {
        let writers = WriterGroup::default();
        let fetched = self.blob_among(url, expected, store, task, writers.alive()).await;
        writers.all_ended().await;
        fetched
    }

    /// Like [`Fetcher::blob`], for a caller of many that may drop some: the caller waits for the
    /// writers.
    pub async fn blob_among(
        &self,
        url: &str,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
        alive: &WriterGuard,
    ) -> Result<String, FetchError> {
        self.blob_as(None, url, expected, store, task, alive).await
    }

    /// Like [`Fetcher::blob`], with an Authorization header, for a caller of many that may drop
    /// some: the caller waits for the writers. The header is sent to the URL's own host alone, and
    /// not with a redirection elsewhere.
    pub async fn blob_as(
        &self,
        authorization: Option<HeaderValue>,
        url: &str,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
        alive: &WriterGuard,
    ) -> Result<String, FetchError> {
        let limit = expected.size.unwrap_or(MOST_BYTES);
        let mut request =
            DownloadRequest::new(url, expected.size, limit, expected.sha256.is_some())?;
        request.authorization = authorization;
        space::require(store.writable(), expected.size.unwrap_or(0))?;
        let start = || Ok(Sink::Blob(Writing::start(store, alive)?));
        self.whole(&request, expected, task, start).await
    }

    /// Returns the client that writes the requests for [`Fetcher::send`].
    pub fn client(&self) -> &reqwest::Client {
        self.client.writer()
    }

    /// Fetches into a sink; starts over once if resumed pieces did not make up the file.
    async fn whole(
        &self,
        request: &DownloadRequest,
        expected: &Expected,
        task: &dyn Task,
        start: impl Fn() -> Result<Sink, Failure>,
    ) -> Result<String, FetchError> {
        let mut pieced = true;
        loop {
            let mut sink = start()?;
            // Pieces of different versions of a file may not fit together; that justifies one fresh
            // start.
            pieced = self.run(request, &mut sink, task).await? && pieced;
            match sink.commit(expected.sha256.clone()).await? {
                Committed::Right(sha256) => return Ok(sha256),
                Committed::Wrong(_) if pieced => pieced = false,
                Committed::Wrong(failure) => {
                    return Err(FetchError::Failed(request.wrong(failure)));
                }
            }
        }
    }
}

/// Paths of certificate bundles: Debian's, and Red Hat's (a link to an absolute path).
const BUNDLES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Returns the certificates, in PEM, beside those of this file system's bundle.
fn beside_the_own(host_root: &Path) -> Vec<String> {
    let mounted = certificates::mounted(Path::new(certificates::DIR));
    host_certificates(host_root).into_iter().chain(mounted).collect()
}

/// Reads the host's certificate bundle, if it differs from this file system's. Links are resolved
/// within the host's root.
fn host_certificates(host_root: &Path) -> Option<String> {
    if host_root == Path::new("/") {
        return None;
    }
    let bundle = |path: &&str| match read_below(host_root, Path::new(path)) {
        Ok(pem) => certificates::checked(pem)
            .inspect_err(|e| tracing::warn!("the host's certificates in {path} are not used: {e}"))
            .ok(),
        Err(e) if is_absent(&e) => None,
        Err(e) => {
            tracing::warn!("the host's certificates are not used: {e}");
            None
        }
    };
    BUNDLES.iter().find_map(bundle)
}

#[cfg(test)]
mod tests;
