//! Transport of downloads and of a registry's calls: the retries of an exchange, the body of its
//! answer, and the time limits of both. A request gives the texts of its failures, an exchange what
//! is special in an attempt: resuming a file, or logging in.

use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Url};

use super::client_error::{Class, ClientError};
use super::pace::StallDetector;
use super::response::Response;
use super::retry::{RetryBudget, Trouble, retry_after};
use super::{FetchError, Fetcher};
use longshore_core::failure::{Failure, FailureKind};

/// An attempt that received this much resets the count of attempts.
const WORTHWHILE: u64 = 1 << 20;

/// A request, with the texts of its failures.
pub trait Request: Sync {
    /// Remedy for a server whose certificate is at fault.
    const CERTIFICATE_REMEDY: &'static str;

    /// Returns the URL.
    fn url(&self) -> &Url;

    /// Returns the number of bytes to send or receive: the time limit of an attempt follows from it.
    fn size(&self) -> u64;

    /// Returns the failure of the request, with its cause.
    fn failure(&self, cause: &str) -> Failure;

    /// Returns the failure of an answer that is longer than its limit.
    fn too_long(&self) -> Failure;

    /// Returns the cause for an attempt that took as long as `deadline`.
    fn overdue(&self, deadline: Duration) -> String;

    /// Writes a line to the log: the request failed, and is retried.
    fn log_retry(&self, failure: &Failure);
}

/// A request with its answer, attempted until one attempt succeeds.
pub trait Exchange {
    /// Its request.
    type Request: Request;
    /// Answer of the attempt that succeeds.
    type Response;

    /// Returns the request.
    fn request(&self) -> &Self::Request;

    /// Returns the number of bytes that no further attempt has to receive again.
    fn received(&self) -> u64;

    /// True if the server ever answered: one that did not is remembered as unreachable.
    fn is_answered(&self) -> bool;

    /// Attempts it once. Dropped at the end of its time limit.
    ///
    /// # Errors
    /// The failure, and whether a further attempt is worth it.
    fn attempt(&mut self) -> impl Future<Output = Result<Self::Response, AttemptError>> + Send;
}

/// Failure of an attempt.
#[derive(Debug)]
pub enum AttemptError {
    /// Not worth retrying.
    Fatal(FetchError),
    /// Worth retrying.
    Retry(Failure),
    /// Worth few retries: the server sent nothing, or next to nothing.
    Silent(Failure),
    /// Worth retrying after a while, perhaps the one that the server names.
    Busy(Failure, Option<Duration>),
}

impl AttemptError {
    /// Returns the error of a server that answered with these headers that it is busy.
    pub fn busy(failure: Failure, headers: &HeaderMap) -> Self {
        Self::Busy(failure, retry_after(headers))
    }

    /// Returns the failure and its reason, for an attempt that took this long.
    ///
    /// # Errors
    /// The failure of an attempt that is not worth retrying.
    fn into_trouble(self, took: Duration) -> Result<(Failure, Trouble), FetchError> {
        match self {
            Self::Fatal(error) => Err(error),
            Self::Retry(failure) => Ok((failure, Trouble::Broken)),
            Self::Silent(failure) => Ok((failure, Trouble::Silent(took))),
            Self::Busy(failure, again) => Ok((failure, Trouble::Busy(took, again))),
        }
    }
}

impl ClientError {
    /// Returns the failure of an attempt that ended with this error.
    pub(super) fn into_attempt<R: Request>(self, request: &R) -> AttemptError {
        let failure = request.failure(&self.cause);
        match self.class {
            Class::Certificate => failure.remedy(R::CERTIFICATE_REMEDY).into(),
            Class::Request => failure.into(),
            Class::Silent => AttemptError::Silent(failure),
            Class::Broken => AttemptError::Retry(failure),
            Class::Host => Failure::new(FailureKind::HostUnsupported, self.cause)
                .remedy("longshore downloads in a process without rights: allow it seccomp(2), prctl(2) and a process more")
                .into(),
        }
    }
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Fatal(FetchError::Failed(failure))
    }
}

impl Fetcher {
    /// Attempts an exchange until it succeeds or retrying is pointless.
    ///
    /// # Errors
    /// The failure of the last attempt; that of the last exchange, where its server did not answer
    /// recently.
    pub async fn exchange<X: Exchange>(&self, exchange: &mut X) -> Result<X::Response, FetchError> {
        if let Some(Err(refused)) =
            self.reach.as_ref().map(|reach| reach.check(exchange.request().url()))
        {
            return Err(FetchError::Failed(exchange.request().failure(&refused.to_string())));
        }
        if let Some(cause) = self.policy.away.why(exchange.request().url()) {
            return Err(FetchError::Failed(exchange.request().failure(&cause)));
        }
        let mut budget = RetryBudget::new(&self.policy);
        loop {
            let (before, since) = (exchange.received(), Instant::now());
            // Before the time limit of the attempt: the start of a process says nothing of the server.
            let begun = self.client.begin(exchange.request().url()).await;
            let is_asked = begun.is_ok();
            let attempted = match begun {
                Ok(()) => self.attempt_in_time(exchange).await,
                Err(error) => Err(error.into_attempt(exchange.request())),
            };
            let error = match attempted {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let (failure, trouble) = error.into_trouble(since.elapsed())?;
            if exchange.received().saturating_sub(before) >= WORTHWHILE {
                budget.restore();
            }
            let Some(wait) = budget.after(trouble) else {
                if is_asked {
                    self.note_unreachable(exchange, &failure);
                }
                return Err(FetchError::Failed(failure));
            };
            exchange.request().log_retry(&failure);
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt_in_time<X: Exchange>(
        &self,
        exchange: &mut X,
    ) -> Result<X::Response, AttemptError> {
        let deadline = self.policy.deadline(exchange.request().size());
        match tokio::time::timeout(deadline, exchange.attempt()).await {
            Ok(attempted) => attempted,
            Err(_) => {
                let request = exchange.request();
                Err(AttemptError::Silent(request.failure(&request.overdue(deadline))))
            }
        }
    }

    /// Remembers a server that never answered, so that it is not tried for the next request.
    fn note_unreachable(&self, exchange: &impl Exchange, failure: &Failure) {
        let url = exchange.request().url();
        if !exchange.is_answered() && url.has_host() {
            self.policy.away.note(url, &causes(failure));
        }
    }

    /// Sends what `builder` has; returns the response when its headers are there.
    ///
    /// # Errors
    /// The failure of the attempt.
    pub async fn send(
        &self,
        request: &impl Request,
        builder: RequestBuilder,
    ) -> Result<Response, AttemptError> {
        self.client.send(builder.build()).await.map_err(|error| error.into_attempt(request))
    }

    /// Returns the body of a response, of which more than `limit` bytes are refused.
    pub fn body<'r, R: Request>(
        &self,
        request: &'r R,
        response: Response,
        limit: u64,
    ) -> Body<'r, R> {
        let stalls = StallDetector::new(&self.policy);
        Body { request, response, stalls, left: limit }
    }
}

/// Body of a response, as it arrives: checked for stalls and its length.
pub struct Body<'r, R> {
    request: &'r R,
    response: Response,
    stalls: StallDetector,
    /// Number of bytes that may still arrive.
    left: u64,
}

impl<R: Request> Body<'_, R> {
    /// Returns the next bytes; None at the end.
    ///
    /// # Errors
    /// The failure of the attempt.
    pub(super) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, AttemptError> {
        let since = Instant::now();
        let arrived = self.response.chunk().await;
        let arrived = arrived.map_err(|error| error.into_attempt(self.request))?;
        let Some(chunk) = arrived else { return Ok(None) };
        self.stalls
            .note(since.elapsed(), chunk.len())
            .map_err(|slow| AttemptError::Silent(self.request.failure(&slow)))?;
        let left = self.left.checked_sub(chunk.len() as u64);
        self.left = left.ok_or_else(|| self.request.too_long())?;
        Ok(Some(chunk))
    }

    /// Returns all bytes, in memory.
    ///
    /// # Errors
    /// The failure of the attempt.
    pub async fn bytes(mut self) -> Result<Vec<u8>, AttemptError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

/// Returns the causes of a failure, without the failure's own text.
pub(super) fn causes(failure: &Failure) -> String {
    let causes: Vec<String> = failure.chain().map(ToString::to_string).collect();
    causes.join(": ")
}

#[cfg(test)]
mod tests;
