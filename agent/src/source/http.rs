//! Downloads over http and https, and copies from file URLs.

mod goal;
mod pace;
mod patience;
mod policy;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use reqwest::Response;
use reqwest::header::{AUTHORIZATION, HeaderValue, IF_RANGE, RANGE};
use reqwest::redirect::Policy as Redirects;

use goal::{Ended, Goal, Mark, accept, resume_from, strong_etag};
pub(crate) use goal::{is_certificate, proxies, root_cause, shown};
pub(crate) use pace::Pace;
pub use patience::Away;
pub(crate) use patience::{Patience, Trouble, is_busy, retry_after};
pub use policy::Policy;

use super::sink::{Alive, Committed, Reading, Sink, Writers, Writing};
pub(super) use super::sink::{ReadOnce, Reader};
use super::space;
use crate::failure::{ExitCode, Failure};
use crate::progress::{Silent, Task};
use crate::store::Store;

/// A file whose size nobody knows beforehand may not be longer.
const MOST_BYTES: u64 = 16 << 30;

/// An attempt that brought this much was worth it: the count of attempts begins anew.
const WORTHWHILE: u64 = 1 << 20;

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

    /// As [`Fetcher::blob`], saying who asks. The header goes to the URL's own host alone, and not
    /// along with a redirection elsewhere.
    pub(crate) async fn blob_as(
        &self,
        authorization: Option<HeaderValue>,
        url: &str,
        expected: &Expected,
        store: &Store,
        task: &dyn Task,
    ) -> Result<String, FetchError> {
        let limit = expected.size.unwrap_or(MOST_BYTES);
        let mut goal = Goal::new(url, expected.size, limit, expected.sha256.is_some())?;
        goal.authorization = authorization;
        let writers = Writers::new();
        let fetched = self.blob_for(&goal, expected, store, task, writers.alive()).await;
        writers.all_ended().await;
        fetched
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

    /// Tries until the sink has the file; says whether it took several attempts.
    async fn run(&self, goal: &Goal, sink: &mut Sink, task: &dyn Task) -> Result<bool, FetchError> {
        if let Some(why) = self.policy.away.why(&goal.url) {
            return Err(FetchError::Failed(goal.failure(&why)));
        }
        let mut mark = Mark { task, etag: None, seen: 0, answered: false };
        let mut patience = Patience::new(&self.policy);
        let mut pieced = false;
        loop {
            let (before, since) = (mark.seen, Instant::now());
            let ended = self.attempt_in_time(goal, sink, &mut mark).await;
            let (failure, trouble) = match ended {
                Ok(()) => return Ok(pieced),
                Err(Ended::For(error)) => return Err(error),
                Err(Ended::Again(failure)) => (failure, Trouble::Broken),
                Err(Ended::Silent(failure)) => (failure, Trouble::Silent(since.elapsed())),
                Err(Ended::Busy(failure, again)) => {
                    (failure, Trouble::Busy(since.elapsed(), again))
                }
            };
            if mark.seen - before >= WORTHWHILE {
                patience.restore();
            }
            let Some(wait) = patience.after(trouble) else {
                return Err(FetchError::Failed(self.given_up(goal, failure, &mark)));
            };
            // The URL stands beside it, and the cause is said once, by whoever gives up.
            let why: Vec<String> = failure.chain().map(ToString::to_string).collect();
            tracing::info!(url = goal.shown, "fetching again: {}", why.join(": "));
            tokio::time::sleep(wait).await;
            pieced = true;
        }
    }

    /// Remembers a server that gave no answer at all, so that it is not asked for the next file.
    fn given_up(&self, goal: &Goal, failure: Failure, mark: &Mark<'_>) -> Failure {
        if !mark.answered && goal.url.has_host() {
            let why: Vec<String> = failure.chain().map(ToString::to_string).collect();
            self.policy.away.note(&goal.url, &why.join(": "));
        }
        failure
    }

    async fn attempt_in_time(
        &self,
        goal: &Goal,
        sink: &mut Sink,
        mark: &mut Mark<'_>,
    ) -> Result<(), Ended> {
        if goal.url.scheme() == "file" {
            return copy(goal, sink, mark).await;
        }
        let deadline = self.policy.deadline(goal.size.unwrap_or(goal.limit));
        match tokio::time::timeout(deadline, self.attempt(goal, sink, mark)).await {
            Ok(ended) => ended,
            Err(_) => Err(Ended::Silent(goal.failure("it takes too long"))),
        }
    }

    async fn attempt(
        &self,
        goal: &Goal,
        sink: &mut Sink,
        mark: &mut Mark<'_>,
    ) -> Result<(), Ended> {
        let offset = resume_from(goal, sink, mark)?;
        let mut request = self.client.get(goal.url.clone());
        if let Some(authorization) = &goal.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if goal.part {
            request = request.header(RANGE, format!("bytes={offset}-{}", goal.limit.max(1) - 1));
        } else if offset > 0 {
            request = request.header(RANGE, format!("bytes={offset}-"));
            if let Some(etag) = mark.etag.as_deref().filter(|_| !goal.pinned) {
                request = request.header(IF_RANGE, etag);
            }
        }
        let response = request.send().await.map_err(|e| self.broken(goal, e))?;
        mark.answered = true;
        let skip = accept(goal, sink, &response, offset)?;
        mark.etag = strong_etag(response.headers());
        self.receive(goal, sink, mark, response, skip).await
    }

    /// Streams a body into the sink, without its first `skip` bytes.
    async fn receive(
        &self,
        goal: &Goal,
        sink: &mut Sink,
        mark: &mut Mark<'_>,
        mut response: Response,
        mut skip: u64,
    ) -> Result<(), Ended> {
        let mut pace = Pace::new(&self.policy);
        loop {
            let since = Instant::now();
            let chunk = response.chunk().await.map_err(|e| self.broken(goal, e))?;
            let Some(chunk) = chunk else { break };
            pace.note(since.elapsed(), chunk.len())
                .map_err(|slow| Ended::Silent(goal.failure(&slow)))?;
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
            skip -= known as u64;
            let new = goal.wanted(&chunk[known..], sink.size());
            if sink.size() + new.len() as u64 > goal.limit {
                return Err(goal.too_long().into());
            }
            sink.put(new).await?;
            mark.reached(sink.size());
            if goal.has_enough(sink.size()) {
                return Ok(());
            }
        }
        goal.check_whole(sink.size())
    }

    /// What broke an attempt; all of it may be better next time.
    fn broken(&self, goal: &Goal, error: reqwest::Error) -> Ended {
        let why = match (error.is_timeout(), error.is_connect()) {
            (true, true) => format!("no connection within {:?}", self.policy.connect),
            (true, false) => format!("no data for {:?}", self.policy.stall),
            _ => root_cause(&error),
        };
        let failure = goal.failure(&why);
        if is_certificate(&error) {
            let failure = failure.remedy(
                "add the certificate authority to the host's or the image's certificates; \
                 an archive may also be read over http, for everything of it is verified",
            );
            return Ended::For(FetchError::Failed(failure));
        }
        if error.is_redirect() || error.is_builder() {
            return Ended::For(FetchError::Failed(failure));
        }
        if error.is_timeout() { Ended::Silent(failure) } else { Ended::Again(failure) }
    }
}

/// Opens a regular file: at a pipe that nobody writes to this would wait for ever, and hear no TERM.
fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    if !std::fs::metadata(path)?.is_file() {
        let what = "it is no regular file";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
    }
    std::fs::File::open(path)
}

/// Copies from a file URL.
async fn copy(goal: &Goal, sink: &mut Sink, mark: &mut Mark<'_>) -> Result<(), Ended> {
    sink.restart()?;
    let path = goal.url.to_file_path().map_err(|()| goal.failure("it names no local path"))?;
    let mut file = match open_regular(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Ended::For(FetchError::Missing(goal.failure(&e.to_string()))));
        }
        Err(e) => return Err(goal.failure(&e.to_string()).into()),
    };
    let mut buffer = vec![0; 1 << 18];
    loop {
        // A read of a local file is short; what is slow (write and hash) has its own thread.
        let n = file.read(&mut buffer).map_err(|e| goal.failure(&e.to_string()))?;
        if n == 0 {
            break;
        }
        let new = goal.wanted(&buffer[..n], sink.size());
        if sink.size() + new.len() as u64 > goal.limit {
            return Err(goal.too_long().into());
        }
        sink.put(new).await?;
        mark.reached(sink.size());
        if goal.has_enough(sink.size()) {
            break;
        }
    }
    match goal.check_whole(sink.size()) {
        Err(Ended::Again(_)) => {
            let what = format!("it has only {} bytes", sink.size());
            Err(goal.not_as_promised(&what).into())
        }
        whole => whole,
    }
}

/// The host's certificate bundle, where it differs from this file system's.
fn host_certificates(host_root: &Path) -> Vec<reqwest::Certificate> {
    if host_root == Path::new("/") {
        return Vec::new();
    }
    ["etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt"]
        .iter()
        .filter_map(|path| std::fs::read(host_root.join(path)).ok())
        .filter_map(|pem| reqwest::Certificate::from_pem_bundle(&pem).ok())
        .next()
        .unwrap_or_default()
}
