//! One request to a registry, with its answer and the failures of both.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, StatusCode, Url};

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::redact::redacted;
use longshore_fetch::http::{AttemptError, Exchange, Fetcher, Request, is_busy, proxies};

/// Maximum size of an answer read into memory.
const MAX_ANSWER: u64 = 4 << 20;
/// Size of an error's text that is always read.
const MAX_ERROR: u64 = 64 << 10;
/// Maximum length of a registry's error text in a message.
const MAX_ERROR_TEXT: usize = 300;

/// A request.
pub struct Call {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    /// Maximum size of the answer.
    most: u64,
}

impl Call {
    /// Returns a call without headers and body.
    pub fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Vec::new(), most: MAX_ANSWER }
    }

    /// Limits the answer to a size that is known, at least that of an error's text.
    pub(crate) fn at_most(mut self, bytes: u64) -> Self {
        self.most = bytes.clamp(MAX_ERROR, MAX_ANSWER);
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    pub(crate) fn authorization(mut self, value: Option<HeaderValue>) -> Self {
        if let Some(value) = value {
            self.headers.insert(AUTHORIZATION, value);
        }
        self
    }

    pub(crate) fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    fn redacted(&self) -> String {
        // The query of an upload's URL may contain a state that grants access.
        format!("{} {}", self.method, redacted(self.url.as_str()))
    }
}

/// A complete answer.
pub struct RegistryResponse {
    /// URL of the answering server, after all redirections.
    pub(crate) url: Url,
    /// Status of the answer.
    pub status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl RegistryResponse {
    /// Returns the text of the registry's error JSON.
    pub(super) fn error_text(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let first = &json["errors"][0];
        let text = |key: &str| first[key].as_str().unwrap_or_default();
        let both = format!("{} {}", text("code"), text("message"));
        let printable: String = both.trim().chars().filter(|c| !c.is_control()).collect();
        match printable.chars().take(MAX_ERROR_TEXT).collect::<String>() {
            empty if empty.is_empty() => String::new(),
            error_text => format!(" ({error_text})"),
        }
    }
}

/// Mark of a refusal of exactly what was sent, in the chain of its failure: an immutable tag, a blob that is too large.
/// The registry can be used for other things.
#[derive(Debug, thiserror::Error)]
#[error("it refuses what was sent")]
pub struct ContentRefused;

/// True if the registry refused exactly what was sent, so that anything else may be sent to it meanwhile.
pub fn is_of_content(failure: &Failure) -> bool {
    failure.chain().any(|error| error.is::<ContentRefused>())
}

/// Returns the failure for an unexpected status.
pub(crate) fn unexpected(call: &Call, answer: &RegistryResponse) -> Failure {
    let (call_text, error_text) = (call.redacted(), answer.error_text());
    let cause = format!("{call_text}: the registry says {}{error_text}", answer.status);
    let failure = Failure::new(FailureKind::Download, cause)
        .remedy("check the reference, and that the registry allows this");
    match refuses_content(&call.method, answer.status) {
        true => failure.with_source(ContentRefused),
        false => failure,
    }
}

/// True if a status refuses what a request has brought. Others are about the login (401, 403), a proxy (407), the
/// repository or an upload that is lost (404), a registry that takes nothing (405), or the time (408, 429).
fn refuses_content(method: &Method, status: StatusCode) -> bool {
    let brings = matches!(*method, Method::PUT | Method::POST | Method::PATCH);
    let others = [401, 403, 404, 405, 407, 408, 429];
    brings && status.is_client_error() && !others.contains(&status.as_u16())
}

impl Request for Call {
    const CERTIFICATE_REMEDY: &'static str = "add the certificate authority to the host's or the image's certificates; a registry \
         without TLS is named with http:// in front";

    fn url(&self) -> &Url {
        &self.url
    }

    fn size(&self) -> u64 {
        (self.body.len() as u64).max(MAX_ANSWER / 16)
    }

    fn failure(&self, cause: &str) -> Failure {
        Failure::new(FailureKind::Download, format!("{} failed", self.redacted()))
            .with_source(cause)
            .remedy(format!("check the registry, the network and {}", proxies()))
    }

    fn too_long(&self) -> Failure {
        let cause = format!("{}: the answer has more than {} bytes", self.redacted(), self.most);
        Failure::new(FailureKind::Verification, cause)
            .remedy("the server is not a registry, or it holds something else under this name")
    }

    fn overdue(&self, deadline: Duration) -> String {
        format!("no answer within {deadline:?}")
    }

    fn log_retry(&self, failure: &Failure) {
        tracing::info!("retrying: {}", failure.one_line());
    }
}

/// Exchange of a call with a server.
struct CallExchange<'c> {
    fetcher: &'c Fetcher,
    call: &'c Call,
    authorization: Option<HeaderValue>,
    is_answered: bool,
}

impl Exchange for CallExchange<'_> {
    type Request = Call;
    type Response = RegistryResponse;

    fn request(&self) -> &Call {
        self.call
    }

    /// An answer is received whole or again.
    fn received(&self) -> u64 {
        0
    }

    fn is_answered(&self) -> bool {
        self.is_answered
    }

    async fn attempt(&mut self) -> Result<RegistryResponse, AttemptError> {
        let response = self.fetcher.send(self.call, self.builder()).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let url = response.url().clone();
        let body = self.fetcher.body(self.call, response, self.call.most).bytes().await?;
        let answer = RegistryResponse { url, status, headers, body };
        if !is_busy(answer.status) {
            return Ok(answer);
        }
        self.is_answered = true;
        Err(AttemptError::busy(unexpected(self.call, &answer), &answer.headers))
    }
}

impl CallExchange<'_> {
    fn builder(&self) -> RequestBuilder {
        let call = self.call;
        let mut builder = self.fetcher.client().request(call.method.clone(), call.url.clone());
        builder = builder.headers(call.headers.clone());
        if let Some(authorization) = &self.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        match call.method {
            Method::GET | Method::HEAD => builder,
            _ => builder.body(call.body.clone()),
        }
    }
}

/// Sends a request until there is an answer that a retry would not change.
pub(crate) async fn send(
    fetcher: &Fetcher,
    call: &Call,
    authorization: Option<HeaderValue>,
) -> Result<RegistryResponse, Failure> {
    let mut exchange = CallExchange { fetcher, call, authorization, is_answered: false };
    Ok(fetcher.exchange(&mut exchange).await?)
}

#[cfg(test)]
mod tests;
