//! Downloads over http and https, and copies from file URLs.

use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, RANGE};
use reqwest::{Response, StatusCode, Url};

use super::sink::{Alive, Sink, Writers, Writing};
use super::space;
use crate::failure::{ExitCode, Failure};
use crate::progress::{Silent, Task};
use crate::store::Store;

/// A file whose size nobody knows beforehand may not be longer.
const MOST_BYTES: u64 = 16 << 30;

/// An attempt that brought this much was worth it: the count of attempts begins anew.
const WORTHWHILE: u64 = 1 << 20;

/// How long to wait and how often to try.
#[derive(Debug, Clone)]
pub struct Policy {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes.
    pub stall: Duration,
    /// Bytes per second that a download must keep up with, on the whole.
    pub slowest: u64,
    /// Attempts in a row that bring next to nothing.
    pub attempts: u32,
    /// Before the second attempt; doubles for each further one.
    pub backoff: Duration,
    /// The longest wait between attempts.
    pub longest_backoff: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            slowest: 8 << 10,
            attempts: 5,
            backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(10),
        }
    }
}

impl Policy {
    /// Before attempt `attempt` + 1: doubled each time, and shortened by up to a half at random so
    /// that many hosts do not come back at once.
    fn wait(&self, attempt: u32) -> Duration {
        let full = self.backoff.saturating_mul(1 << attempt.saturating_sub(1).min(16));
        // std seeds every RandomState differently; that is random enough to spread requests.
        let random = std::hash::RandomState::new().build_hasher().finish();
        full.min(self.longest_backoff).mul_f64(0.5 + (random % 1000) as f64 / 2000.0)
    }

    /// The longest that one attempt at `bytes` may take.
    fn deadline(&self, bytes: u64) -> Duration {
        self.connect + self.stall + Duration::from_secs(bytes / self.slowest.max(1))
    }
}

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
    /// Anything else.
    Failed(Failure),
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Missing(failure) | FetchError::Failed(failure) => failure,
        }
    }
}

impl From<Failure> for FetchError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// How an attempt ended that did not bring the file.
enum Ended {
    /// It makes sense to try again.
    Again(Failure),
    /// It does not.
    For(FetchError),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::For(FetchError::Failed(failure))
    }
}

/// Fetches URLs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fetcher {
    client: reqwest::Client,
    policy: Policy,
}

impl Fetcher {
    /// A fetcher that honours the proxy variables, and trusts the certificates of this file system
    /// and those of the host below `host_root`.
    ///
    /// # Errors
    /// Exit code 2 where a client cannot be made of that.
    pub fn new(policy: Policy, host_root: &Path) -> Result<Self, Failure> {
        // Whoever installs a provider first wins; there is only one here.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            reqwest::Client::builder()
                .connect_timeout(policy.connect)
                .read_timeout(policy.stall)
                .user_agent(concat!("longshore/", env!("CARGO_PKG_VERSION")))
                .redirect(reqwest::redirect::Policy::limited(10))
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
        Ok(Self { client, policy })
    }

    /// Fetches a small file into memory; more than `limit` bytes are refused.
    ///
    /// # Errors
    /// Exit code 12, or 13 where it is too long.
    pub async fn bytes(&self, url: &str, limit: u64) -> Result<Vec<u8>, FetchError> {
        let mut sink = Sink::Memory(Vec::new());
        let goal = Goal { url: parse(url)?, size: None, limit, pinned: false };
        self.run(&goal, &mut sink, &Silent).await?;
        match sink {
            Sink::Memory(bytes) => Ok(bytes),
            Sink::Blob(_) => Ok(Vec::new()),
        }
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
        let goal = Goal {
            url: parse(url)?,
            size: expected.size,
            limit: expected.size.unwrap_or(MOST_BYTES),
            pinned: expected.sha256.is_some(),
        };
        space::require(store.root(), expected.size.unwrap_or(0))?;
        let mut pieced = true;
        loop {
            let mut sink = Sink::Blob(Writing::start(store, alive)?);
            // Pieces of different versions of a file may not fit; once, it is worth a fresh start.
            pieced = self.run(&goal, &mut sink, task).await? && pieced;
            let Sink::Blob(writing) = sink else { return Ok(String::new()) };
            match writing.commit(expected.sha256.clone()).await {
                Ok(sha256) => return Ok(sha256),
                Err(failure) if failure.code() != ExitCode::Verification => {
                    return Err(FetchError::Failed(failure));
                }
                Err(_) if pieced => pieced = false,
                Err(failure) => return Err(FetchError::Failed(goal.wrong(failure))),
            }
        }
    }

    /// Tries until the sink has the file; says whether it took several attempts.
    async fn run(&self, goal: &Goal, sink: &mut Sink, task: &dyn Task) -> Result<bool, FetchError> {
        let mut mark = Mark { task, etag: None, seen: 0 };
        let mut pieced = false;
        let mut attempt = 1;
        loop {
            let before = mark.seen;
            let deadline = self.policy.deadline(goal.size.unwrap_or(goal.limit));
            let ended = match goal.url.scheme() {
                "file" => copy(goal, sink, &mut mark).await,
                _ => {
                    match tokio::time::timeout(deadline, self.attempt(goal, sink, &mut mark)).await
                    {
                        Ok(ended) => ended,
                        Err(_) => Err(Ended::Again(goal.failure("it takes too long"))),
                    }
                }
            };
            match ended {
                Ok(()) => return Ok(pieced),
                Err(Ended::For(error)) => return Err(error),
                Err(Ended::Again(failure)) => {
                    if mark.seen - before >= WORTHWHILE {
                        attempt = 1;
                    }
                    if attempt >= self.policy.attempts {
                        return Err(FetchError::Failed(failure));
                    }
                    tracing::info!(url = %goal.url, attempt, error = %failure.report(), "fetching again");
                }
            }
            tokio::time::sleep(self.policy.wait(attempt)).await;
            attempt += 1;
            pieced = true;
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
        if offset > 0 {
            request = request.header(RANGE, format!("bytes={offset}-"));
            if let Some(etag) = mark.etag.as_deref().filter(|_| !goal.pinned) {
                request = request.header(IF_RANGE, etag);
            }
        }
        let response = request.send().await.map_err(|e| self.broken(goal, e))?;
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
        while let Some(chunk) = response.chunk().await.map_err(|e| self.broken(goal, e))? {
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
            skip -= known as u64;
            let new = &chunk[known..];
            if sink.size() + new.len() as u64 > goal.limit {
                return Err(goal.too_long().into());
            }
            sink.put(new).await?;
            mark.reached(sink.size());
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
        if error.is_redirect() || error.is_builder() {
            return Ended::For(FetchError::Failed(failure));
        }
        Ended::Again(failure)
    }
}

/// A file to fetch.
struct Goal {
    url: Url,
    /// Bytes, where known.
    size: Option<u64>,
    /// More bytes are refused.
    limit: u64,
    /// Whether a digest will tell if parts of it do not belong together.
    pinned: bool,
}

impl Goal {
    fn failure(&self, why: &str) -> Failure {
        Failure::new(ExitCode::Download, format!("fetching {} failed", self.url))
            .because(why)
            .remedy("check the URL, the network and the proxy variables")
    }

    fn not_as_promised(&self, what: &str) -> Failure {
        Failure::new(
            ExitCode::Verification,
            format!("{} is not what was promised: {what}", self.url),
        )
        .remedy("a proxy or mirror serves something else, or is being updated: try again, or use another mirror; nothing of it was kept")
    }

    fn wrong(&self, failure: Failure) -> Failure {
        self.not_as_promised("its digest differs").because(failure)
    }

    fn too_long(&self) -> Failure {
        self.not_as_promised(&format!("it has more than {} bytes", self.limit))
    }

    fn check_whole(&self, size: u64) -> Result<(), Ended> {
        match self.size {
            Some(promised) if size < promised => Err(Ended::Again(
                self.failure(&format!("it ended after {size} of {promised} bytes")),
            )),
            _ => Ok(()),
        }
    }
}

/// What is remembered from one attempt to the next.
struct Mark<'a> {
    task: &'a dyn Task,
    /// Names the content that was being served.
    etag: Option<String>,
    /// The most bytes the sink ever had.
    seen: u64,
}

impl Mark<'_> {
    fn reached(&mut self, size: u64) {
        if size > self.seen {
            self.task.advance(size - self.seen);
            self.seen = size;
        }
    }
}

/// From where the next attempt goes on. What nothing will tell apart afterwards begins anew.
fn resume_from(goal: &Goal, sink: &mut Sink, mark: &Mark<'_>) -> Result<u64, Failure> {
    if !goal.pinned && mark.etag.is_none() {
        sink.restart()?;
    }
    Ok(sink.size())
}

/// Judges the answer's head; gives how many bytes of its body the sink has already.
fn accept(goal: &Goal, sink: &mut Sink, response: &Response, offset: u64) -> Result<u64, Ended> {
    let status = response.status();
    let length = response.content_length();
    match status {
        StatusCode::OK => {
            if let (Some(length), Some(size)) = (length, goal.size)
                && length != size
            {
                let what = format!("the server has {length} bytes, the index says {size}");
                return Err(goal.not_as_promised(&what).into());
            }
            if length.is_some_and(|length| length > goal.limit) {
                return Err(goal.too_long().into());
            }
            if !goal.pinned {
                sink.restart()?;
                return Ok(0);
            }
            Ok(offset)
        }
        StatusCode::PARTIAL_CONTENT if starts_at(response.headers(), offset) => Ok(0),
        StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
            sink.restart()?;
            Err(Ended::Again(goal.failure("the server cannot go on where it stopped")))
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            Err(Ended::For(FetchError::Missing(goal.failure(&format!("the server says {status}")))))
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            Err(Ended::Again(goal.failure(&format!("the server says {status}"))))
        }
        _ if status.is_server_error() => {
            Err(Ended::Again(goal.failure(&format!("the server says {status}"))))
        }
        _ => Err(goal.failure(&format!("the server says {status}")).into()),
    }
}

/// Whether `Content-Range: bytes OFFSET-...` says so.
fn starts_at(headers: &HeaderMap, offset: u64) -> bool {
    let range = headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let start = range.and_then(|r| r.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
    start == Some(offset)
}

fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    (!etag.starts_with("W/")).then(|| etag.to_owned())
}

/// Copies from a file URL.
async fn copy(goal: &Goal, sink: &mut Sink, mark: &mut Mark<'_>) -> Result<(), Ended> {
    sink.restart()?;
    let path = goal.url.to_file_path().map_err(|()| goal.failure("it names no local path"))?;
    let mut file = match std::fs::File::open(&path) {
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
        if sink.size() + n as u64 > goal.limit {
            return Err(goal.too_long().into());
        }
        sink.put(&buffer[..n]).await?;
        mark.reached(sink.size());
    }
    match goal.check_whole(sink.size()) {
        Err(Ended::Again(_)) => {
            let what = format!("it has only {} bytes", sink.size());
            Err(goal.not_as_promised(&what).into())
        }
        whole => whole,
    }
}

fn parse(url: &str) -> Result<Url, Failure> {
    let bad = |what: String| {
        Failure::new(ExitCode::Usage, format!("{url} is no URL that can be fetched: {what}"))
            .remedy("give an http, https or file URL")
    };
    let parsed = Url::parse(url).map_err(|e| bad(e.to_string()))?;
    match parsed.scheme() {
        "http" | "https" | "file" => Ok(parsed),
        scheme => Err(bad(format!("the scheme {scheme} is not known"))),
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

/// The text of the innermost error: the system's answer, without the layers above it.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("ftp://archive.example.com/x")]
    #[case("cdrom:[Debian]/")]
    #[case("nonsense")]
    fn other_urls_are_refused(#[case] url: &str) {
        let failure = parse(url).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.to_string().contains(url));
    }

    #[test]
    fn waits_grow_up_to_a_bound() {
        let policy = Policy::default();
        for attempt in 1..40 {
            let wait = policy.wait(attempt);
            let full = policy.backoff.saturating_mul(1 << (attempt - 1).min(16));
            let full = full.min(policy.longest_backoff);
            assert!(wait >= full / 2 && wait <= full, "{attempt}: {wait:?}");
        }
    }

    #[rstest]
    #[case(Some("bytes 5-9/10"), 5, true)]
    #[case(Some("bytes 4-9/10"), 5, false)]
    #[case(Some("bytes */10"), 5, false)]
    #[case(None, 0, false)]
    fn a_part_must_begin_where_the_rest_was_asked_for(
        #[case] value: Option<&str>,
        #[case] offset: u64,
        #[case] expected: bool,
    ) {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(CONTENT_RANGE, value.parse().expect("value"));
        }
        assert_eq!(starts_at(&headers, offset), expected);
    }
}
