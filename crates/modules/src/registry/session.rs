//! Session with one repository: requests with limits, retries, and authentication as far as the
//! registry requires it.

use std::path::Path;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, StatusCode, Url};
use tokio::sync::Mutex;

use super::credentials::DockerConfig;
use super::login::Login;
use super::login_rules::{LoginRules, Withheld};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::image_reference::Repository;
use longshore_core::redact::redacted;
use longshore_fetch::http::{
    AttemptError, Exchange, Fetcher, Policy, Reach, Redirections, Request, is_busy, proxies,
};

/// Maximum size of an answer read into memory.
const MAX_ANSWER: u64 = 4 << 20;
/// Size of an error's text that is always read.
const MAX_ERROR: u64 = 64 << 10;
/// Maximum length of a registry's error text in a message.
const MAX_ERROR_TEXT: usize = 300;
/// Maximum number of login steps for one request: the anonymous token, the login's token, and each
/// of them again after it expired.
pub(crate) const MOST_LOGINS: usize = 4;

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
pub struct Answer {
    /// URL of the answering server, after all redirections.
    pub(crate) url: Url,
    /// Status of the answer.
    pub status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns the text of the registry's error JSON.
    fn error_text(&self) -> String {
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

/// A session with one repository.
pub struct Session {
    pub(crate) repository: Repository,
    fetcher: Fetcher,
    /// For realms: a request to one must not be sent on to a redirection's target.
    direct: Fetcher,
    login: Mutex<Login>,
}

impl Session {
    /// Opens a session; nothing is sent yet. `actions` is `pull` or `pull,push`.
    ///
    /// # Errors
    /// As [`Fetcher::within`].
    pub(crate) fn open(
        repository: Repository,
        actions: &'static str,
        docker: &DockerConfig,
        policy: &Policy,
        host_root: &Path,
    ) -> Result<Self, Failure> {
        let home = Url::parse(&repository.url("")).ok();
        let home = home.as_ref().and_then(Url::host_str).unwrap_or(repository.host());
        let reach = Reach::of(home);
        let fetcher =
            |redirections| Fetcher::within(&reach, redirections, policy.clone(), host_root);
        // A tag is only as trustworthy as the connection it was resolved over.
        let fetched = match repository.plain_http() {
            true => Redirections::Followed,
            false => Redirections::FollowedOverHttps,
        };
        let (fetcher, direct) = (fetcher(fetched)?, fetcher(Redirections::Returned)?);
        let login = Mutex::new(Login::new(repository.clone(), actions, docker));
        Ok(Self { repository, fetcher, direct, login })
    }

    /// Applies these rules of logins in place of the strictest.
    pub(super) fn apply(&mut self, rules: LoginRules) {
        self.login.get_mut().apply(rules);
    }

    /// Returns the URL of `rest` in the repository.
    ///
    /// # Errors
    /// Exit code 2 where that is not a URL.
    pub fn url(&self, rest: &str) -> Result<Url, Failure> {
        let text = self.repository.url(rest);
        Url::parse(&text).map_err(|e| {
            Failure::new(FailureKind::Usage, format!("{text} is not a URL: {e}"))
                .remedy("correct the registry's reference")
        })
    }

    pub(crate) fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Returns the `Authorization` header for URLs of the repository's host.
    pub(crate) async fn authorization(&self) -> Option<HeaderValue> {
        self.login.lock().await.header()
    }

    /// Sends a request and reads the answer; transient statuses and those that require a login are
    /// handled here, all others are the caller's.
    ///
    /// # Errors
    /// Exit code 12 where there is no answer or the registry denies access.
    pub async fn exchange(&self, call: &Call) -> Result<Answer, Failure> {
        let at_home = self.is_at_home(&call.url);
        let mut logins = 0;
        loop {
            let header = if at_home { self.authorization().await } else { None };
            let answer = send(&self.fetcher, call, header.clone()).await?;
            if !at_home || !self.asks_for_login(&answer) || logins == MOST_LOGINS {
                return Ok(answer);
            }
            self.log_in(&answer, header).await?;
            logins += 1;
        }
    }

    /// Like [`Session::exchange`], for a download that was denied with the header `used`: logs in,
    /// if there is a next level, unless another request has done so meanwhile.
    ///
    /// # Errors
    /// Exit code 12 where the registry denies access, and `denied` where it grants it: then a
    /// server behind it denied the download, which must not get the registry's login.
    pub(crate) async fn log_in_for(
        &self,
        url: Url,
        used: Option<HeaderValue>,
        denied: Failure,
    ) -> Result<(), Failure> {
        if self.authorization().await != used {
            return Ok(());
        }
        let call = Call::new(Method::HEAD, url);
        let answer = send(&self.fetcher, &call, used.clone()).await?;
        if self.asks_for_login(&answer) { self.log_in(&answer, used).await } else { Err(denied) }
    }

    /// True if the registry itself requires a login. A redirection's target may require one too,
    /// and name a realm of its own: it does not get the login.
    fn asks_for_login(&self, answer: &Answer) -> bool {
        matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            && self.is_at_home(&answer.url)
    }

    async fn log_in(&self, answer: &Answer, used: Option<HeaderValue>) -> Result<(), Failure> {
        let mut login = self.login.lock().await;
        if login.header() != used {
            // Another request has logged in meanwhile.
            return Ok(());
        }
        login.next(&self.direct, answer).await.map_err(|Withheld { why, remedy }| {
            Failure::new(
                FailureKind::Download,
                format!(
                    "{} does not grant access: {}{}",
                    self.repository,
                    answer.status,
                    answer.error_text()
                ),
            )
            .with_source(why)
            .remedy(remedy.unwrap_or_else(|| login.remedy()))
        })
    }

    /// True if a URL is the registry's own: same host, and with TLS where the registry uses it.
    fn is_at_home(&self, url: &Url) -> bool {
        self.url("").is_ok_and(|home| {
            home.host_str() == url.host_str()
                && home.port_or_known_default() == url.port_or_known_default()
                && home.scheme() == url.scheme()
        })
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
pub(crate) fn unexpected(call: &Call, answer: &Answer) -> Failure {
    let failure = Failure::new(
        FailureKind::Download,
        format!("{}: the registry says {}{}", call.redacted(), answer.status, answer.error_text()),
    )
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
        Failure::new(
            FailureKind::Verification,
            format!("{}: the answer has more than {} bytes", self.redacted(), self.most),
        )
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
    type Answer = Answer;

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

    async fn attempt(&mut self) -> Result<Answer, AttemptError> {
        let response = self.fetcher.send(self.call, self.builder()).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let url = response.url().clone();
        let body = self.fetcher.body(self.call, response, self.call.most).bytes().await?;
        let answer = Answer { url, status, headers, body };
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
) -> Result<Answer, Failure> {
    let mut exchange = CallExchange { fetcher, call, authorization, is_answered: false };
    Ok(fetcher.exchange(&mut exchange).await?)
}

#[cfg(test)]
mod tests;
