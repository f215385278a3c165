//! The file to download, and the checks of a server's response.

use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderValue};
use reqwest::{StatusCode, Url};

use super::super::sink::Sink;
use super::FetchError;
use super::response::Response;
use super::retry::is_busy;
use super::transport::{AttemptError, Request, causes};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::Task;
use longshore_core::redact::redacted;

/// A file to fetch.
pub(super) struct DownloadRequest {
    pub(super) url: Url,
    /// The URL without secrets, as messages show it.
    pub(super) redacted: String,
    /// Size in bytes, if known.
    pub(super) size: Option<u64>,
    /// Maximum number of bytes; more are refused.
    pub(super) limit: u64,
    /// True if a digest will detect pieces that do not belong together.
    pub(super) pinned: bool,
    /// Authorization header, if the server requires one.
    pub(super) authorization: Option<HeaderValue>,
    /// Only the first `limit` bytes are wanted.
    pub(super) part: bool,
}

impl DownloadRequest {
    /// # Errors
    /// Exit code 2 for a URL that cannot be fetched.
    pub(super) fn new(
        url: &str,
        size: Option<u64>,
        limit: u64,
        pinned: bool,
    ) -> Result<Self, Failure> {
        let authorization = None;
        let (url, redacted) = (parse(url)?, redacted(url));
        Ok(Self { url, redacted, size, limit, pinned, authorization, part: false })
    }

    pub(super) fn not_as_promised(&self, what: &str) -> Failure {
        let cause = format!("{} is not what was promised: {what}", self.redacted);
        Failure::new(FailureKind::Verification, cause)
        .remedy("a proxy or mirror serves something else, or is being updated: try again, or use another mirror; nothing was kept")
    }

    pub(super) fn wrong(&self, failure: Failure) -> Failure {
        self.not_as_promised("its digest differs").with_source(failure)
    }

    /// Returns the part of `new` that is still wanted after `had` bytes.
    pub(super) fn wanted<'a>(&self, new: &'a [u8], had: u64) -> &'a [u8] {
        let left = usize::try_from(self.limit.saturating_sub(had)).unwrap_or(usize::MAX);
        if self.part { &new[..new.len().min(left)] } else { new }
    }

    pub(super) fn has_enough(&self, size: u64) -> bool {
        self.part && size >= self.limit
    }

    /// Returns the maximum length of a body that begins at `start`; of one that is longer than a
    /// wanted part, the rest is left.
    pub(super) fn body_limit(&self, start: u64) -> u64 {
        if self.part { u64::MAX } else { self.limit.saturating_sub(start) }
    }

    /// Returns the promised size, where `size` is less.
    pub(super) fn promised_beyond(&self, size: u64) -> Option<u64> {
        self.size.filter(|promised| size < *promised)
    }

    fn refused(&self, status: StatusCode) -> Failure {
        self.failure(&format!("the server says {status}"))
    }
}

impl Request for DownloadRequest {
    const CERTIFICATE_REMEDY: &'static str = "add the certificate authority to the host's or the \
         image's certificates; an archive may also be read over http, because everything in it is \
         verified";

    fn url(&self) -> &Url {
        &self.url
    }

    fn size(&self) -> u64 {
        self.size.unwrap_or(self.limit)
    }

    fn failure(&self, cause: &str) -> Failure {
        Failure::new(FailureKind::Download, format!("fetching {} failed", self.redacted))
            .with_source(cause)
            .remedy(match self.url.scheme() {
                "file" => "check the path, and that it is mounted in the container".to_owned(),
                _ => format!("check the URL, the network and {}", proxies()),
            })
    }

    fn too_long(&self) -> Failure {
        self.not_as_promised(&format!("it has more than {} bytes", self.limit))
    }

    fn overdue(&self, _: Duration) -> String {
        "it takes too long".to_owned()
    }

    fn log_retry(&self, failure: &Failure) {
        // The URL is a field of the log line, and the cause is reported once, with the final
        // failure.
        tracing::info!(url = self.redacted, "retrying the download: {}", causes(failure));
    }
}

/// State kept from one attempt to the next.
pub(super) struct DownloadProgress<'a> {
    pub(super) task: &'a dyn Task,
    /// Entity tag of the content being served.
    pub(super) etag: Option<String>,
    /// The most bytes the sink ever had.
    pub(super) seen: u64,
    /// True if the server ever answered.
    pub(super) answered: bool,
    /// Number of attempts.
    pub(super) attempts: u32,
}

impl<'a> DownloadProgress<'a> {
    pub(super) fn new(task: &'a dyn Task) -> Self {
        Self { task, etag: None, seen: 0, answered: false, attempts: 0 }
    }

    pub(super) fn reached(&mut self, size: u64) {
        if size > self.seen {
            self.task.advance(size - self.seen);
            self.seen = size;
        }
    }
}

/// Returns the offset of the next attempt. Content without digest and ETag starts over, because
/// mixed pieces would not be detected.
pub(super) fn resume_from(
    request: &DownloadRequest,
    sink: &mut Sink,
    progress: &DownloadProgress<'_>,
) -> Result<u64, Failure> {
    if !request.pinned && progress.etag.is_none() {
        sink.restart()?;
    }
    Ok(sink.size())
}

/// Checks the response's head; returns the number of its body's bytes that the sink already has,
/// which is of the content with the tag `etag`.
pub(super) fn accept(
    request: &DownloadRequest,
    sink: &mut Sink,
    response: &Response,
    offset: u64,
    etag: Option<&str>,
) -> Result<u64, AttemptError> {
    let status = response.status();
    let length = response.content_length();
    match status {
        StatusCode::OK => {
            if let (Some(length), Some(size)) = (length, request.size)
                && length != size
            {
                let what = format!("the server has {length} bytes, the index says {size}");
                return Err(request.not_as_promised(&what).into());
            }
            if !request.part && length.is_some_and(|length| length > request.limit) {
                return Err(request.too_long().into());
            }
            if !request.pinned {
                sink.restart()?;
                return Ok(0);
            }
            Ok(offset)
        }
        StatusCode::PARTIAL_CONTENT
            if starts_at(response.headers(), offset)
                && (request.pinned || is_same(response.headers(), offset, etag)) =>
        {
            Ok(0)
        }
        StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
            sink.restart()?;
            Err(AttemptError::Retry(request.failure("the server cannot resume the transfer")))
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            Err(AttemptError::Fatal(FetchError::Missing(request.refused(status))))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(AttemptError::Fatal(FetchError::Denied(request.refused(status))))
        }
        _ if is_busy(status) => {
            Err(AttemptError::busy(request.refused(status), response.headers()))
        }
        _ => Err(request.refused(status).into()),
    }
}

/// True if the response has `Content-Range: bytes OFFSET-...`.
fn starts_at(headers: &HeaderMap, offset: u64) -> bool {
    let range = headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let start = range.and_then(|r| r.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
    start == Some(offset)
}

/// True if a part from `offset` on is of the content with the tag `etag`. Some servers honour Range
/// and ignore If-Range: only parts with the same strong validator belong together (RFC 9110, 15.3.7.3).
fn is_same(headers: &HeaderMap, offset: u64, etag: Option<&str>) -> bool {
    offset == 0 || strong_etag(headers).as_deref() == etag
}

pub(super) fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    (!etag.starts_with("W/")).then(|| etag.to_owned())
}

fn parse(url: &str) -> Result<Url, Failure> {
    let bad = |what: String| {
        let cause = format!("{} is not a URL that can be fetched: {what}", redacted(url));
        Failure::new(FailureKind::Usage, cause).remedy("give an http, https or file URL")
    };
    let parsed = Url::parse(url).map_err(|e| bad(e.to_string()))?;
    match parsed.scheme() {
        "http" | "https" | "file" => Ok(parsed),
        scheme => Err(bad(format!("the scheme {scheme} is not known"))),
    }
}

/// Names the proxy variables that are set: their values may hold passwords.
pub fn proxies() -> String {
    let names = ["http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"];
    let set: Vec<&str> =
        names.into_iter().filter(|name| std::env::var_os(name).is_some()).collect();
    match &set[..] {
        [] => "whether a proxy is needed (http_proxy, https_proxy)".to_owned(),
        set => format!("the proxy ({} is set)", set.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    #[rstest]
    #[case::absent(std::io::ErrorKind::NotFound)]
    #[case::no_regular_file(std::io::ErrorKind::InvalidInput)]
    #[case::of_its_disk(std::io::ErrorKind::Other)]
    #[case::not_allowed(std::io::ErrorKind::PermissionDenied)]
    fn a_mirror_of_files_that_cannot_be_read_is_a_failed_download_for_another_mirror_may_serve(
        #[case] error: std::io::ErrorKind,
    ) {
        let request =
            DownloadRequest::new("file:///srv/mirror/file", None, 1, false).expect("a URL");
        let failure = request.failure(&std::io::Error::from(error).to_string());
        assert_eq!(failure.kind(), FailureKind::Download);
        assert_eq!(failure.to_string(), "fetching file:///srv/mirror/file failed");
        assert_eq!(failure.chain().count(), 1);
    }

    #[rstest]
    #[case::path("file:///srv/mirror/file", "check the path, ")]
    #[case::server("https://archive.example.com/file", "check the URL, the network and ")]
    fn a_failed_download_names_what_to_check(#[case] url: &str, #[case] remedy: &str) {
        let request = DownloadRequest::new(url, None, 1, false).expect("a URL");
        let failure = request.failure("it is absent");
        assert!(failure.remedy_or_default().starts_with(remedy), "{failure:?}");
    }

    #[rstest]
    #[case("ftp://archive.example.com/x")]
    #[case("cdrom:[Debian]/")]
    #[case("nonsense")]
    fn other_urls_are_refused(#[case] url: &str) {
        let failure = parse(url).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.to_string().contains(url));
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
