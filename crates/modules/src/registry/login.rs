//! Registry authentication: anonymous, then an anonymous token, then the docker configuration's
//! credentials.
//!
//! Implements the distribution project's "token authentication" (a bearer token from the realm in
//! the challenge) and Basic authentication.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::call::{Call, RegistryResponse, send};
use super::challenge::{self, Challenge};
use super::credentials::{Credential, DockerConfig};
use super::login_rules::{LoginRules, Withheld};
use longshore_core::image_reference::Repository;
use longshore_core::redact::redacted;
use longshore_fetch::http::Fetcher;

/// Age from which a refused token may have expired; a younger refused one is insufficient.
const MAY_HAVE_ENDED: std::time::Duration = std::time::Duration::from_secs(30);

/// Level of authentication reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// No Authorization header.
    Nobody,
    /// An anonymous token.
    Anybody,
    /// The docker configuration's login.
    Named,
}

/// Current Authorization header of a repository, and the next step after a refusal.
pub(super) struct Login {
    repository: Repository,
    actions: &'static str,
    credential: Option<Credential>,
    lack: String,
    level: Level,
    header: Option<HeaderValue>,
    since: Instant,
    challenges: Vec<Challenge>,
    rules: LoginRules,
}

/// A realm that may be asked.
struct Realm {
    url: Url,
    service: Option<String>,
}

/// A realm's answer.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Login {
    pub(super) fn new(
        repository: Repository,
        actions: &'static str,
        docker: &DockerConfig,
    ) -> Self {
        Self {
            credential: docker.credential(&repository),
            lack: docker.lack(&repository),
            repository,
            actions,
            level: Level::Nobody,
            header: None,
            since: Instant::now(),
            challenges: Vec::new(),
            rules: LoginRules::default(),
        }
    }

    /// Applies these rules in place of the strictest.
    pub(super) fn apply(&mut self, rules: LoginRules) {
        self.rules = rules;
    }

    pub(super) fn header(&self) -> Option<HeaderValue> {
        self.header.clone()
    }

    /// Returns the remedy for a registry that denies access.
    pub(super) fn remedy(&self) -> String {
        match (&self.credential, self.level) {
            (None, _) => self.lack.clone(),
            (Some(_), _) => format!(
                "check the login for {} in the docker configuration, and that it may {} there",
                self.repository.host(),
                self.actions
            ),
        }
    }

    /// Goes to the next level after a refusal. `fetcher` must not follow redirections.
    ///
    /// # Errors
    /// The reason why there is no next level.
    pub(super) async fn next(
        &mut self,
        fetcher: &Fetcher,
        refused: &RegistryResponse,
    ) -> Result<(), Withheld> {
        let headers = refused.headers.get_all(WWW_AUTHENTICATE);
        let asked: Vec<Challenge> =
            headers.iter().filter_map(|h| h.to_str().ok()).flat_map(challenge::parse).collect();
        if !asked.is_empty() {
            self.challenges = asked;
        }
        let bearer = self.challenges.iter().find(|c| matches!(c, Challenge::Bearer { .. }));
        let basic = self.challenges.contains(&Challenge::Basic);
        let has_ended = self.since.elapsed() > MAY_HAVE_ENDED;
        let bearer = bearer.map(|challenge| self.realm(challenge)).transpose()?;
        match (self.level, bearer) {
            (level, Some(bearer))
                if level == Level::Nobody || (level == Level::Anybody && has_ended) =>
            {
                match self.token(fetcher, &bearer, None).await {
                    Ok(token) => {
                        self.settle(Level::Anybody, token);
                        Ok(())
                    }
                    Err(why) => self.named(fetcher, bearer).await.map_err(|e| Withheld {
                        why: format!("{why}; {}", e.why),
                        remedy: e.remedy,
                    }),
                }
            }
            (Level::Anybody, Some(bearer)) => self.named(fetcher, bearer).await,
            (Level::Named, Some(bearer)) if has_ended => self.named(fetcher, bearer).await,
            (Level::Nobody, None) if basic => self.basic(),
            (Level::Named, _) => Err("the login was sent, but is insufficient".into()),
            _ => Err("it offers no supported login scheme".into()),
        }
    }

    /// Returns the realm of a challenge, if this registry may name it.
    fn realm(&self, challenge: &Challenge) -> Result<Realm, Withheld> {
        let Challenge::Bearer { realm, service, .. } = challenge else {
            return Err("it offers no token authentication".into());
        };
        let url = self.rules.realm(&self.repository, realm)?;
        Ok(Realm { url, service: service.clone() })
    }

    async fn named(&mut self, fetcher: &Fetcher, bearer: Realm) -> Result<(), Withheld> {
        let credential = self.credential.clone().ok_or("no login is configured for it")?;
        self.rules.check_login(&self.repository)?;
        let token = self.token(fetcher, &bearer, Some(&credential)).await?;
        self.settle(Level::Named, token);
        Ok(())
    }

    fn basic(&mut self) -> Result<(), Withheld> {
        match &self.credential {
            Some(Credential::Password { user, password }) => {
                self.rules.check_login(&self.repository)?;
                let header = basic(user, password)?;
                self.settle(Level::Named, header);
                Ok(())
            }
            Some(Credential::Identity(_)) => {
                Err("it requires a password, and the configuration has an identity token".into())
            }
            None => Err("no login is configured for it".into()),
        }
    }

    fn settle(&mut self, level: Level, header: HeaderValue) {
        self.level = level;
        self.header = Some(header);
        self.since = Instant::now();
    }

    /// Requests a token from the realm.
    async fn token(
        &self,
        fetcher: &Fetcher,
        Realm { url, service }: &Realm,
        credential: Option<&Credential>,
    ) -> Result<HeaderValue, String> {
        let mut url = url.clone();
        // A registry's realm URL may contain a token.
        let realm = redacted(url.as_str());
        let scope = format!("repository:{}:{}", self.repository.path(), self.actions);
        let call = match credential {
            Some(Credential::Identity(token)) => {
                let body = form(&[
                    ("grant_type", "refresh_token"),
                    ("refresh_token", token),
                    ("client_id", "longshore"),
                    ("service", service.as_deref().unwrap_or_default()),
                    ("scope", &scope),
                ]);
                Call::new(Method::POST, url)
                    .header("content-type", "application/x-www-form-urlencoded")
                    .body(body)
            }
            other => {
                if let Some(service) = service {
                    url.query_pairs_mut().append_pair("service", service);
                }
                url.query_pairs_mut().append_pair("scope", &scope);
                let header = match other {
                    Some(Credential::Password { user, password }) => Some(basic(user, password)?),
                    _ => None,
                };
                Call::new(Method::GET, url).authorization(header)
            }
        };
        let answer = send(fetcher, &call, None).await.map_err(|f| f.one_line())?;
        if !answer.status.is_success() {
            return Err(format!("{realm} gives no token: {}", answer.status));
        }
        let token: Token = serde_json::from_slice(&answer.body)
            .map_err(|_| format!("{realm} answers with something else than a token"))?;
        let token = token.token.or(token.access_token).filter(|t| !t.is_empty());
        let token = token.ok_or_else(|| format!("{realm} answers without a token"))?;
        secret(format!("Bearer {token}"))
    }
}

fn basic(user: &str, password: &str) -> Result<HeaderValue, String> {
    secret(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

fn secret(text: String) -> Result<HeaderValue, String> {
    let mut value =
        HeaderValue::try_from(text).map_err(|_| "it is not a valid header value".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn form(fields: &[(&str, &str)]) -> Vec<u8> {
    // A form is encoded like a URL's query.
    let mut url = match Url::parse("http://localhost/") {
        Ok(url) => url,
        Err(_) => return Vec::new(),
    };
    url.query_pairs_mut().extend_pairs(fields);
    url.query().unwrap_or_default().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_fetch::http::{Reach, Redirections};

    #[test]
    fn a_form_is_encoded() {
        assert_eq!(form(&[("a", "b c"), ("d", "e&f=")]), b"a=b+c&d=e%26f%3D");
    }

    /// A realm on loopback that answers the first `times` requests with a token; returns its URL
    /// and a thread that returns the number of requests without a login.
    fn realm(times: usize) -> (String, std::thread::JoinHandle<usize>) {
        use std::io::{BufRead, BufReader, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let url = format!("http://{}/token", listener.local_addr().expect("address"));
        let answer = |stream: std::net::TcpStream| {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let body = r#"{"token":"new"}"#;
            let length = body.len();
            write!(
                &stream,
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .expect("answers");
            !head.iter().any(|line| line.to_ascii_lowercase().starts_with("authorization:"))
        };
        let serve = move || {
            listener
                .incoming()
                .take(times)
                .filter_map(Result::ok)
                .map(answer)
                .filter(|anonymous| *anonymous)
                .count()
        };
        (url, std::thread::spawn(serve))
    }

    #[tokio::test]
    async fn anybodys_token_that_has_run_out_is_asked_for_anew_before_a_login() {
        let (realm, served) = realm(1);
        let repository: Repository = "http://127.0.0.1:1/a".parse().expect("a repository");
        let docker = DockerConfig::find(&|_| None).expect("none");
        let mut login = Login::new(repository, "pull", &docker);
        let host = realm.split('/').nth(2).expect("a host").parse().expect("a host");
        login.apply(LoginRules { realms: vec![host], insecure: Vec::new() });
        login.challenges = vec![Challenge::Bearer { realm, service: None, scope: None }];
        login.settle(Level::Anybody, HeaderValue::from_static("Bearer old"));
        let (reach, root) = (Reach::from_host("127.0.0.1"), std::path::Path::new("/"));
        let fetcher = Fetcher::within(&reach, Redirections::Returned, Default::default(), root)
            .expect("a fetcher");
        let refused = RegistryResponse {
            url: Url::parse("http://127.0.0.1:1/").expect("a URL"),
            status: reqwest::StatusCode::UNAUTHORIZED,
            headers: Default::default(),
            body: Vec::new(),
        };
        // A young token that is refused is insufficient, and there is no login.
        assert!(login.next(&fetcher, &refused).await.is_err());
        login.since = Instant::now().checked_sub(2 * MAY_HAVE_ENDED).expect("a machine that is up");
        login.next(&fetcher, &refused).await.expect("another token");
        assert_eq!(login.level, Level::Anybody);
        assert_eq!(login.header().expect("a header"), "Bearer new");
        assert_eq!(served.join().expect("ends"), 1);
    }

    #[test]
    fn a_secret_is_not_shown() {
        let header = basic("user", "password").expect("a header");
        assert!(header.is_sensitive());
        assert_eq!(header.to_str().expect("text"), "Basic dXNlcjpwYXNzd29yZA==");
    }
}
