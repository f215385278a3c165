//! Credentials from a docker `config.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::image_reference::Repository;

/// Maximum size of a docker configuration.
const MOST_BYTES: u64 = 1 << 20;

/// A login.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credential {
    /// User and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that the realm exchanges for one of its own.
    Identity(String),
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(..)")
    }
}

/// Logins in a docker configuration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DockerConfig {
    auths: BTreeMap<String, Auth>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
    #[serde(skip)]
    path: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl DockerConfig {
    /// Reads the configuration that `DOCKER_CONFIG` names (a directory with `config.json` or a
    /// Kubernetes secret's `.dockerconfigjson`, or the file itself), else `$HOME/.docker`; empty
    /// where there is none.
    ///
    /// # Errors
    /// Exit code 2 where a file exists and cannot be read, or `DOCKER_CONFIG` names none.
    pub fn find(env: Env<'_>) -> Result<Self, Failure> {
        let set = |name| env(name).filter(|v: &String| !v.is_empty()).map(PathBuf::from);
        let (place, named) = match (set("DOCKER_CONFIG"), set("HOME")) {
            (Some(place), _) => (place, true),
            (None, Some(home)) => (home.join(".docker"), false),
            (None, None) => return Ok(Self::default()),
        };
        let files = [place.join("config.json"), place.join(".dockerconfigjson"), place.clone()];
        match files.iter().find(|f| f.is_file()) {
            Some(file) => Self::read(file),
            None if named && !place.is_dir() => Err(Failure::new(
                FailureKind::Usage,
                format!("DOCKER_CONFIG={}: there is no such directory", place.display()),
            )
            .remedy("name a directory that has a config.json, or unset it")),
            None => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let what = || format!("reading the docker configuration {}", path.display());
        let text = longshore_core::bounded_read::read_text(path, MOST_BYTES)
            .or_fail(FailureKind::Usage, what)?;
        let config: Self = serde_json::from_str(&text).map_err(|e| {
            // serde_json's own message may quote secrets from the file.
            Failure::new(FailureKind::Usage, what())
                .with_source(format!(
                    "line {}, column {}: not what it should be",
                    e.line(),
                    e.column()
                ))
                .remedy("correct it, or name another one by DOCKER_CONFIG")
        })?;
        Ok(Self { path: Some(path.to_path_buf()), ..config })
    }

    /// Returns the login for a repository: the most specific entry (host, or host and path) wins.
    pub(super) fn credential(&self, repository: &Repository) -> Option<Credential> {
        let name = repository.name();
        let hub = matches!(repository.host(), "docker.io" | "index.docker.io");
        let matches = |key: &str| {
            let plain = key
                .trim_start_matches("https://")
                .trim_start_matches("http://")
                .trim_end_matches('/');
            let plain = plain.strip_suffix("/v1").or(plain.strip_suffix("/v2")).unwrap_or(plain);
            let plain = if hub && plain == "index.docker.io" { repository.host() } else { plain };
            let within = name.strip_prefix(plain).is_some_and(|rest| rest.starts_with('/'));
            (within || name == plain).then_some(plain.len())
        };
        let best = self.auths.iter().filter_map(|(key, auth)| Some((matches(key)?, auth)));
        best.max_by_key(|(length, _)| *length).and_then(|(_, auth)| auth.credential())
    }

    /// Describes why there is no login for a repository, with a remedy.
    pub(super) fn lack(&self, repository: &Repository) -> String {
        let Some(path) = &self.path else {
            return "give a docker config.json with a login: DOCKER_CONFIG names its directory"
                .into();
        };
        let helper = self.cred_helpers.get(repository.host()).or(self.creds_store.as_ref());
        match helper {
            Some(helper) => format!(
                "{} leaves the login to docker-credential-{helper}, which is not asked: put it \
                 under auths, as `docker login` without a helper does",
                path.display()
            ),
            None => format!("add a login for {} to {}", repository.host(), path.display()),
        }
    }
}

impl Auth {
    fn credential(&self) -> Option<Credential> {
        if let Some(token) = self.identitytoken.as_ref().filter(|t| !t.is_empty()) {
            return Some(Credential::Identity(token.clone()));
        }
        if let Some(auth) = self.auth.as_ref().filter(|a| !a.is_empty()) {
            let decoded = STANDARD.decode(auth.trim()).ok()?;
            let text = String::from_utf8(decoded).ok()?;
            let (user, password) = text.trim_end_matches('\0').split_once(':')?;
            return Some(Credential::Password { user: user.into(), password: password.into() });
        }
        let (user, password) = (self.username.clone()?, self.password.clone()?);
        Some(Credential::Password { user, password })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    fn config(json: &str) -> DockerConfig {
        serde_json::from_str(json).expect("parses")
    }

    fn user(config: &DockerConfig, repository: &str) -> Option<String> {
        match config.credential(&repository.parse().expect("a repository"))? {
            Credential::Password { user, password } => Some(format!("{user}:{password}")),
            Credential::Identity(token) => Some(token),
        }
    }

    #[rstest]
    // "u:p:q" and "v:w" in base64.
    #[case::auth(r#"{"auths":{"r.example.com":{"auth":"dTpwOnE="}}}"#, Some("u:p:q"))]
    #[case::fields(r#"{"auths":{"r.example.com":{"username":"u","password":"p"}}}"#, Some("u:p"))]
    #[case::identity(
        r#"{"auths":{"r.example.com":{"auth":"dTpw","identitytoken":"t"}}}"#,
        Some("t")
    )]
    #[case::url(r#"{"auths":{"https://r.example.com/v1/":{"auth":"djp3"}}}"#, Some("v:w"))]
    #[case::longest(
        r#"{"auths":{"r.example.com":{"auth":"dTpwOnE="},"r.example.com/nv":{"auth":"djp3"}}}"#,
        Some("v:w")
    )]
    #[case::other_port(r#"{"auths":{"r.example.com:5000":{"auth":"djp3"}}}"#, None)]
    #[case::other_host(r#"{"auths":{"r.example.co":{"auth":"djp3"}}}"#, None)]
    #[case::no_base64(r#"{"auths":{"r.example.com":{"auth":"%%%"}}}"#, None)]
    #[case::empty_entry(r#"{"auths":{"r.example.com":{}}}"#, None)]
    #[case::empty("{}", None)]
    #[case::more(r#"{"auths":{},"HttpHeaders":{"a":"b"},"currentContext":"x"}"#, None)]
    fn logins(#[case] json: &str, #[case] expected: Option<&str>) {
        assert_eq!(user(&config(json), "r.example.com/nv/modules").as_deref(), expected);
    }

    #[test]
    fn docker_hub_goes_by_its_old_name() {
        let config = config(r#"{"auths":{"https://index.docker.io/v1/":{"auth":"djp3"}}}"#);
        assert_eq!(user(&config, "docker.io/a/b").as_deref(), Some("v:w"));
    }

    #[rstest]
    #[case("config.json")]
    #[case(".dockerconfigjson")]
    fn it_is_found_where_docker_config_says(#[case] file: &str) {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join(file), r#"{"auths":{"r.example.com":{"auth":"djp3"}}}"#)
            .expect("write");
        let place = dir.path().to_str().expect("a path").to_owned();
        let env = |name: &str| (name == "DOCKER_CONFIG").then(|| place.clone());
        let found = DockerConfig::find(&env).expect("reads");
        assert_eq!(user(&found, "r.example.com/a").as_deref(), Some("v:w"));
    }

    #[test]
    fn what_is_wrong_with_it_is_told_without_its_content() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join("config.json"), r#"{"auths":"secret"}"#).expect("write");
        let place = dir.path().to_str().expect("a path").to_owned();
        let env = |name: &str| (name == "DOCKER_CONFIG").then(|| place.clone());
        let failure = DockerConfig::find(&env).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(!failure.report().contains("secret"), "{}", failure.report());
        let env = |name: &str| (name == "DOCKER_CONFIG").then(|| "/no/such".to_owned());
        assert_eq!(DockerConfig::find(&env).expect_err("refused").code(), ExitCode::Usage);
        assert!(DockerConfig::find(&|_| None).is_ok());
    }

    #[test]
    fn a_credential_helper_is_named() {
        let mut config = config(r#"{"credHelpers":{"r.example.com":"ecr-login"}}"#);
        config.path = Some("/c/config.json".into());
        let lack = config.lack(&"r.example.com/a".parse().expect("a repository"));
        assert!(lack.contains("docker-credential-ecr-login"), "{lack}");
    }
}
