//! Download of a file: each attempt resumes at the end of the last.

use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, IF_RANGE, RANGE};

use super::local::copy;
use super::request::{DownloadProgress, DownloadRequest, accept, resume_from, strong_etag};
use super::response::Response;
use super::transport::{AttemptError, Exchange, Request};
use super::{FetchError, Fetcher};
use crate::sink::Sink;
use longshore_core::progress::Task;

/// Exchange that downloads a file into a sink.
struct Download<'d> {
    fetcher: &'d Fetcher,
    request: &'d DownloadRequest,
    sink: &'d mut Sink,
    progress: DownloadProgress<'d>,
}

impl Exchange for Download<'_> {
    type Request = DownloadRequest;
    type Response = ();

    fn request(&self) -> &DownloadRequest {
        self.request
    }

    fn received(&self) -> u64 {
        self.progress.seen
    }

    fn is_answered(&self) -> bool {
        self.progress.answered
    }

    async fn attempt(&mut self) -> Result<(), AttemptError> {
        self.progress.attempts += 1;
        let offset = resume_from(self.request, self.sink, &self.progress)?;
        let response = self.fetcher.send(self.request, self.from(offset)).await?;
        self.progress.answered = true;
        let etag = self.progress.etag.as_deref();
        let skip = accept(self.request, self.sink, &response, offset, etag)?;
        self.progress.etag = strong_etag(response.headers());
        self.receive(response, skip).await
    }
}

impl Download<'_> {
    /// Returns the request for the bytes from `offset` on.
    fn from(&self, offset: u64) -> RequestBuilder {
        let request = self.request;
        let mut builder = self.fetcher.client().get(request.url.clone());
        if let Some(authorization) = &request.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        } else if let Some(login) = self.fetcher.logins.login_for(&request.url) {
            builder = builder.basic_auth(&login.user, Some(&login.password));
        }
        if request.part {
            let last = request.limit.max(1) - 1;
            return builder.header(RANGE, format!("bytes={offset}-{last}"));
        }
        if offset == 0 {
            return builder;
        }
        builder = builder.header(RANGE, format!("bytes={offset}-"));
        match self.progress.etag.as_deref().filter(|_| !request.pinned) {
            Some(etag) => builder.header(IF_RANGE, etag),
            None => builder,
        }
    }

    /// Streams a body into the sink, without its first `skip` bytes.
    async fn receive(&mut self, response: Response, mut skip: u64) -> Result<(), AttemptError> {
        let (request, sink) = (self.request, &mut *self.sink);
        let limit = request.body_limit(sink.size() - skip);
        let mut body = self.fetcher.body(request, response, limit);
        while let Some(chunk) = body.chunk().await? {
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
            skip -= known as u64;
            sink.put(request.wanted(&chunk[known..], sink.size())).await?;
            self.progress.reached(sink.size());
            if request.has_enough(sink.size()) {
                return Ok(());
            }
        }
        match request.promised_beyond(sink.size()) {
            Some(promised) => {
                let cause = format!("it ended after {} of {promised} bytes", sink.size());
                Err(AttemptError::Retry(request.failure(&cause)))
            }
            None => Ok(()),
        }
    }
}

impl Fetcher {
    /// Retries until the sink has the file; returns true if it took several attempts.
    pub(super) async fn run(
        &self,
        request: &DownloadRequest,
        sink: &mut Sink,
        task: &dyn Task,
    ) -> Result<bool, FetchError> {
        let mut progress = DownloadProgress::new(task);
        if request.url.scheme() == "file" {
            copy(request, sink, &mut progress).await?;
            return Ok(false);
        }
        let mut download = Download { fetcher: self, request, sink, progress };
        self.exchange(&mut download).await?;
        Ok(download.progress.attempts > 1)
    }
}
