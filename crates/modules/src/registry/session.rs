//! Session with one repository: requests with limits, retries, and authentication as far as the
//! registry requires it.

use std::path::Path;

use reqwest::header::HeaderValue;
use reqwest::{Method, StatusCode, Url};
use tokio::sync::Mutex;

use super::call::{Call, RegistryResponse, send};
use super::credentials::DockerConfig;
use super::login::Login;
use super::login_rules::{LoginRules, Withheld};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::image_reference::Repository;
use longshore_fetch::http::{Fetcher, Policy, Reach, Redirections, Request};

/// Maximum number of login steps for one request: the anonymous token, the login's token, and each
/// of them again after it expired.
pub(crate) const MOST_LOGINS: usize = 4;

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
        let reach = Reach::from_host(home);
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
    pub async fn exchange(&self, call: &Call) -> Result<RegistryResponse, Failure> {
        let at_home = self.is_at_home(call.url());
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
    fn asks_for_login(&self, answer: &RegistryResponse) -> bool {
        matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            && self.is_at_home(&answer.url)
    }

    async fn log_in(
        &self,
        answer: &RegistryResponse,
        used: Option<HeaderValue>,
    ) -> Result<(), Failure> {
        let mut login = self.login.lock().await;
        if login.header() != used {
            // Another request has logged in meanwhile.
            return Ok(());
        }
        login.next(&self.direct, answer).await.map_err(|Withheld { why, remedy }| {
            let cause = format!(
                "{} does not grant access: {}{}",
                self.repository,
                answer.status,
                answer.error_text()
            );
            Failure::new(FailureKind::Download, cause)
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
