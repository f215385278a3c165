//! Downloads over http and https, and copies from file URLs.

mod attempts;
mod goal;
mod local;
mod pace;
mod patience;
mod policy;

use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;
use reqwest::redirect::Policy as Redirects;

use goal::Goal;
pub(crate) use goal::{is_certificate, proxies, root_cause};
pub(crate) use pace::Pace;
pub use patience::Away;
pub(crate) use patience::{Patience, Trouble, is_busy, retry_after};
pub use policy::Policy;

pub(crate) use super::sink::{Alive, Writers};
use super::sink::{Committed, Reading, Sink, Writing};
pub(super) use super::sink::{ReadOnce, Reader};
use super::space;
use crate::failure::{ExitCode, Failure};
use crate::progress::{Silent, Task};
use crate::root::{is_absent, read_below};
use crate::store::Store;

/// A file whose size nobody knows beforehand may not be longer.
const MOST_BYTES: u64 = 16 << 30;

/// What is known of a file before it is fetched.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Its sha256 (hex).
    pub sha256: Option<String>,
    /// Bytes.
    pub size: Option<u64>,
}

/// A download that failed.
#[derive(Debug)]
pub enum FetchError {
    /// The server has no such file (404, 410, or no such path).
    Missing(Failure),
    /// The server wants to know who asks, or does not let them (401, 403).
    Denied(Failure),
    /// Anything else.
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

impl From<Failure> for FetchError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Fetches URLs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fetcher {
    client: reqwest::Client,
    policy: Policy,
    host_root: PathBuf,
}

impl Fetcher {
    /// A fetcher that honours the proxy variables, and trusts the certificates of this file system
    /// and those of the host below `host_root`.
    ///
    /// # Errors
    /// Exit code 2 where a client cannot be made of that.
    pub fn new(policy: Policy, host_root: &Path) -> Result<Self, Failure> {
        Self::set_up(policy, host_root, |client| client.redirect(Redirects::limited(10)))
    }

    /// As [`Fetcher::new`], for requests that are for nobody but whom they are sent to: a
    /// redirection is the answer.
    ///
    /// # Errors
    /// As [`Fetcher::new`].
    pub(crate) fn without_redirects(policy: Policy, host_root: &Path) -> Result<Self, Failure> {
        Self::set_up(policy, host_root, |client| client.redirect(Redirects::none()))
    }

    /// As [`Fetcher::new`], but http is refused, also where an https URL is redirected to it: for
    /// what proves something because of the server that it comes from.
    ///
    /// # Errors
    /// As [`Fetcher::new`].
    pub(crate) fn over_https_only(&self) -> Result<Self, Failure> {
        Self::set_up(self.policy.clone(), &self.host_root, |client| {
            client.redirect(Redirects::limited(10)).https_only(true)
        })
    }

    fn set_up(
        policy: Policy,
        host_root: &Path,
        with: fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self, Failure> {
        // Whoever installs a provider first wins; there is only one here.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            let client = reqwest::Client::builder()
                .connect_timeout(policy.connect)
                .read_timeout(policy.stall)
                // A URL's query may hold a token, and is not for the host that a redirection names.
                .referer(false)
                .user_agent(concat!("longshore/", env!("CARGO_PKG_VERSION")));
            with(client)
        };
        let client = builder()
            .tls_certs_merge(host_certificates(host_root))
            .build()
            // An image without any certificate can still fetch over http: what is fetched is
            // verified by signature and digest anyway.
            .or_else(|_| builder().tls_certs_only([]).build())
            .map_err(|e| {
                Failure::new(ExitCode::Usage, "setting up downloads")
                    .because(root_cause(&e))
                    .remedy("check the proxy variables and the certificates")
            })?;
        Ok(Self { client, policy, host_root: host_root.to_path_buf() })
    }

    /// Fetches a small file into memory; more than `limit` bytes are refused.
    ///
    /// # Errors
    /// Exit code 12, or 13 where it is too long.
    pub async fn bytes(&self, url: &str, limit: u64) -> Result<Vec<u8>, FetchError> {
        let mut sink = Sink::Memory(Vec::new());
        let goal = Goal::new(url, None, limit, false)?;
        self.run(&goal, &mut sink, &Silent).await?;
        Ok(sink.into_bytes())
    }

    /// Fetches the first bytes of a file, at most `most`.
    ///
    /// # Errors
    /// Exit code 12.
    pub async fn head(&self, url: &str, most: u64) -> Result<Vec<u8>, FetchError> {
        let mut sink = Sink::Memory(Vec::new());
        let goal = Goal { part: true, ..Goal::new(url, None, most, false)? };
        self.run(&goal, &mut sink, &Silent).await?;
        Ok(sink.into_bytes())
    }

    /// Gives a file to `reader` while it arrives, hashed and resumed after a cut; the file itself
    /// is kept nowhere. `reader` may be called again where the download begins anew; only what was
    /// made last counts, and only when this returns without an error: the digest is known last.
    /// Nothing is read any more when this returns.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be downloaded, 13 where it is not what was expected or longer
    /// than `limit`, and what `reader` fails with where the file is the one expected.
    pub(super) async fn stream(
        &self,
        url: &str,
        sha256: &str,
        limit: u64,
        reader: &Reader,
        task: &dyn Task,
    ) -> Result<(), FetchError> {
        let writers = Writers::new();
        let goal = Goal::new(url, None, limit, true)?;
        let start = || Ok(Sink::Reader(Reading::start(reader, writers.alive())));
        let expected = Expected { sha256: Some(sha256.to_owned()), size: None };
        let fetched = self.whole(&goal, &expected, task, start).await;
        writers.all_ended().await;
        fetched.map(drop)
    }

    /// Fetches a file into the store, hashed while it streams and resumed after a cut; returns its
    /// sha256 (hex). Nothing is kept of what fails, and never more is written than was promised.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be downloaded, 13 where it is not what was expected, 15 where
    /// the store is full or cannot be written.
    pub async fn blob(
        &self,
        url: &str,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
    ) -> Result<String, FetchError> {
        let writers = Writers::new();
        let fetched = self.blob_among(url, expected, store, task, writers.alive()).await;
        writers.all_ended().await;
        fetched
    }

    /// As [`Fetcher::blob`], for a caller with many that may give some up: it waits for the writers.
    pub(super) async fn blob_among(
        &self,
        url: &str,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
        alive: &Alive,
    ) -> Result<String, FetchError> {
        let limit = expected.size.unwrap_or(MOST_BYTES);
        let goal = Goal::new(url, expected.size, limit, expected.sha256.is_some())?;
        self.blob_for(&goal, expected, store, task, alive).await
    }

    /// As [`Fetcher::blob`], saying who asks, for a caller with many that may give some up: it waits
    /// for the writers. The header goes to the URL's own host alone, and not along with a redirection
    /// elsewhere.
    pub(crate) async fn blob_as(
        &self,
        authorization: Option<HeaderValue>,
        url: &str,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
        alive: &Alive,
    ) -> Result<String, FetchError> {
        let limit = expected.size.unwrap_or(MOST_BYTES);
        let mut goal = Goal::new(url, expected.size, limit, expected.sha256.is_some())?;
        goal.authorization = authorization;
        self.blob_for(&goal, expected, store, task, alive).await
    }

    /// The client below, for requests that are no downloads.
    pub(crate) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// How patient it is.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    async fn blob_for(
        &self,
        goal: &Goal,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
        alive: &Alive,
    ) -> Result<String, FetchError> {
        space::require(store.root(), expected.size.unwrap_or(0))?;
        let start = || Ok(Sink::Blob(Writing::start(store, alive)?));
        self.whole(goal, expected, task, start).await
    }

    /// Fetches into a sink that is started anew once, where pieces did not make up the file.
    async fn whole(
        &self,
        goal: &Goal,
        expected: &Expected,
        task: &dyn Task,
        start: impl Fn() -> Result<Sink, Failure>,
    ) -> Result<String, FetchError> {
        let mut pieced = true;
        loop {
            let mut sink = start()?;
            // Pieces of different versions of a file may not fit; once, it is worth a fresh start.
            pieced = self.run(goal, &mut sink, task).await? && pieced;
            match sink.commit(expected.sha256.clone()).await? {
                Committed::Right(sha256) => return Ok(sha256),
                Committed::Wrong(_) if pieced => pieced = false,
                Committed::Wrong(failure) => return Err(FetchError::Failed(goal.wrong(failure))),
            }
        }
    }
}

/// Certificate bundles as distributions have them: Debian's, and Red Hat's (a link to an absolute
/// path).
const BUNDLES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// The host's certificate bundle, where it differs from this file system's. Links are resolved
/// within the host's root.
fn host_certificates(host_root: &Path) -> Vec<reqwest::Certificate> {
    if host_root == Path::new("/") {
        return Vec::new();
    }
    let bundle = |path: &&str| match read_below(host_root, Path::new(path)) {
        Ok(pem) => match reqwest::Certificate::from_pem_bundle(&pem) {
            Ok(found) => Some(found),
            Err(e) => {
                tracing::warn!(
                    "the host's certificates in {path} are not used: {}",
                    root_cause(&e)
                );
                None
            }
        },
        Err(e) if is_absent(&e) => None,
        Err(e) => {
            tracing::warn!("the host's certificates are not used: {e}");
            None
        }
    };
    BUNDLES.iter().find_map(bundle).unwrap_or_default()
}

#[cfg(test)]
mod tests;
