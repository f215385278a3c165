//! Attempts of a download: each resumes at the end of the last, until the file is complete or
//! retrying is pointless.

use std::time::Instant;

use reqwest::Response;
use reqwest::header::{AUTHORIZATION, IF_RANGE, RANGE};

use super::goal::{
    Ended, Goal, Mark, accept, is_certificate, resume_from, root_cause, strong_etag,
};
use super::local::copy;
use super::pace::StallDetector;
use super::patience::{RetryBudget, Trouble};
use super::{FetchError, Fetcher};
use crate::sink::Sink;
use longshore_core::failure::Failure;
use longshore_core::progress::Task;

/// An attempt that received this much resets the count of attempts.
const WORTHWHILE: u64 = 1 << 20;

impl Fetcher {
    /// Retries until the sink has the file; returns true if it took several attempts.
    pub(super) async fn run(
        &self,
        goal: &Goal,
        sink: &mut Sink,
        task: &dyn Task,
    ) -> Result<bool, FetchError> {
        if let Some(why) = self.policy.away.why(&goal.url) {
            return Err(FetchError::Failed(goal.failure(&why)));
        }
        let mut mark = Mark { task, etag: None, seen: 0, answered: false };
        let mut patience = RetryBudget::new(&self.policy);
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
            // The URL is a field of the log line, and the cause is reported once, with the final
            // failure.
            let why: Vec<String> = failure.chain().map(ToString::to_string).collect();
            tracing::info!(url = goal.redacted, "retrying the download: {}", why.join(": "));
            tokio::time::sleep(wait).await;
            pieced = true;
        }
    }

    /// Remembers a server that never answered, so that it is not tried for the next file.
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
        let mut pace = StallDetector::new(&self.policy);
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

    /// The failure of a broken attempt; all of these may succeed next time.
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
                 an archive may also be read over http, because everything in it is verified",
            );
            return Ended::For(FetchError::Failed(failure));
        }
        if error.is_redirect() || error.is_builder() {
            return Ended::For(FetchError::Failed(failure));
        }
        if error.is_timeout() { Ended::Silent(failure) } else { Ended::Again(failure) }
    }
}
