//! Rules of where a registry's login and token requests go.
//!
//! A challenge names any realm, as docker's and containerd's clients accept it; clients have leaked logins so
//! (CVE-2020-15157). Here a realm is on the registry's own host, below its registrable domain (`registry.example.com`
//! and `auth.example.com`), or on a host that the configuration names.

use reqwest::Url;

use longshore_core::image_reference::{Host, Repository};
use longshore_core::redact::redacted;

/// Rules of logins, beside the docker configuration that has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoginRules {
    /// Registries that get their login without TLS, too.
    pub insecure: Vec<Host>,
    /// Hosts of realms, beside those of the registries themselves.
    pub realms: Vec<Host>,
}

/// Reason why a login or a token request is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Withheld {
    /// The reason.
    pub(super) why: String,
    /// Remedy, where there is one of its own.
    pub(super) remedy: Option<String>,
}

impl From<String> for Withheld {
    fn from(why: String) -> Self {
        Self { why, remedy: None }
    }
}

impl From<&str> for Withheld {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl LoginRules {
    /// Checks that the login of `repository` may be sent: over TLS, or to a registry that is named. Signatures prove
    /// where modules come from, and keep no login secret; on loopback, any user can have the registry's port.
    pub(super) fn check_login(&self, repository: &Repository) -> Result<(), Withheld> {
        if !repository.plain_http() || self.insecure.iter().any(|host| host.has(repository)) {
            return Ok(());
        }
        let host = repository.host();
        Err(Withheld {
            why: format!("the login for {host} is not sent without TLS"),
            remedy: Some(format!(
                "use TLS; where the network may read the login, say so: insecure-registries = \
                 [\"{host}\"], --insecure-registry or LONGSHORE_INSECURE_REGISTRIES"
            )),
        })
    }

    /// Parses the URL of a realm, and checks that `repository` may name it.
    pub(super) fn realm(&self, repository: &Repository, realm: &str) -> Result<Url, Withheld> {
        let url = Url::parse(realm)
            .map_err(|e| format!("its realm {:?} is not a URL: {e}", redacted(realm)))?;
        // A registry's realm URL may contain a token.
        let realm = redacted(realm);
        if url.scheme() != "https" && !(repository.plain_http() && url.scheme() == "http") {
            return Err(format!("its realm {realm} is not reached over TLS").into());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(format!("its realm {realm} names a user").into());
        }
        if self.realms.iter().any(|host| is_at(host, &url)) || is_own(repository, &url) {
            return Ok(url);
        }
        let host = host_and_port(&url);
        Err(Withheld {
            why: format!("its realm {realm} is on another host than the registry"),
            remedy: Some(format!(
                "check that {host} issues the tokens of {}; if so, name it: registry-realms = \
                 [\"{host}\"], --registry-realm or LONGSHORE_REGISTRY_REALMS",
                repository.host()
            )),
        })
    }
}

/// True if a realm is the registry's own. Without TLS that is its origin alone: other ports may be other users'.
fn is_own(repository: &Repository, realm: &Url) -> bool {
    let Ok(own) = Url::parse(&repository.url("")) else { return false };
    let (Some(host), Some(of_realm)) = (own.host_str(), realm.host_str()) else { return false };
    if realm.scheme() == "http" {
        return host == of_realm && own.port_or_known_default() == realm.port_or_known_default();
    }
    host == of_realm || own.domain().zip(realm.domain()).is_some_and(|(a, b)| is_related(a, b))
}

/// True if two names are below one registrable domain of the public suffix list, or of an unlisted top-level domain.
fn is_related(a: &str, b: &str) -> bool {
    psl::domain_str(a).is_some_and(|domain| psl::domain_str(b) == Some(domain))
}

/// True if a host of the configuration is that of a URL; without a port, on the scheme's own.
fn is_at(host: &Host, url: &Url) -> bool {
    let is_named = |name: &str| host.as_str().eq_ignore_ascii_case(name);
    is_named(&host_and_port(url)) || {
        let port = url.port_or_known_default().unwrap_or_default();
        is_named(&format!("{}:{port}", url.host_str().unwrap_or_default()))
    }
}

/// Returns host and, where it is not the scheme's own, port of a URL.
fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn repository(text: &str) -> Repository {
        text.parse().expect("a repository")
    }

    /// Rules that name one realm.
    fn rules() -> LoginRules {
        let realms = vec!["tokens.example.net".parse().expect("a host")];
        LoginRules { insecure: Vec::new(), realms }
    }

    #[rstest]
    #[case::own("registry.example.com/a", "https://registry.example.com/token", None)]
    #[case::own_port("registry.example.com:5000/a", "https://registry.example.com/token", None)]
    #[case::sister("registry.example.com/a", "https://auth.example.com/token", None)]
    #[case::above("registry.example.com/a", "https://example.com/jwt/auth", None)]
    #[case::below("example.com/a", "https://auth.example.com/token", None)]
    #[case::farther("registry.eu.example.com/a", "https://sso.example.com/auth", None)]
    #[case::docker("docker.io/library/a", "https://auth.docker.io/token", None)]
    #[case::unlisted("registry.corp.local/a", "https://auth.corp.local/token", None)]
    #[case::named("registry.example.com/a", "https://tokens.example.net/token", None)]
    #[case::named_with_port("registry.example.com/a", "https://tokens.example.net:443/t", None)]
    #[case::own_address("10.0.0.1:5000/a", "https://10.0.0.1/token", None)]
    #[case::other("registry.example.com/a", "https://auth.example.org/t", Some("another host"))]
    #[case::other_port_of_named(
        "registry.example.com/a",
        "https://tokens.example.net:8443/t",
        Some("another host")
    )]
    #[case::public_suffix("example.co.uk/a", "https://other.co.uk/t", Some("another host"))]
    #[case::top_level("registry.local/a", "https://auth.local/t", Some("another host"))]
    #[case::ends_alike("registry.example.com/a", "https://evilexample.com/t", Some("another host"))]
    #[case::other_address("10.0.0.1:5000/a", "https://10.0.0.2/token", Some("another host"))]
    #[case::metadata("registry.example.com/a", "https://169.254.169.254/t", Some("another host"))]
    #[case::plain("registry.example.com/a", "http://registry.example.com/t", Some("over TLS"))]
    #[case::scheme("registry.example.com/a", "file:///etc/passwd", Some("over TLS"))]
    #[case::user("registry.example.com/a", "https://u:p@registry.example.com/t", Some("a user"))]
    #[case::no_url("registry.example.com/a", "/token", Some("not a URL"))]
    #[case::plain_own("http://registry.example.com/a", "http://registry.example.com/t", None)]
    #[case::plain_to_tls("http://registry.example.com/a", "https://auth.example.com/t", None)]
    #[case::plain_other_port(
        "http://127.0.0.1:5000/a",
        "http://127.0.0.1:18556/latest/meta-data/iam",
        Some("another host")
    )]
    #[case::plain_sister(
        "http://registry.example.com/a",
        "http://auth.example.com/t",
        Some("another host")
    )]
    #[case::plain_named("http://registry.example.com/a", "http://tokens.example.net/t", None)]
    fn realms(#[case] of: &str, #[case] realm: &str, #[case] refused: Option<&str>) {
        let found = rules().realm(&repository(of), realm);
        assert_eq!(found.is_err(), refused.is_some(), "{found:?}");
        if let (Err(withheld), Some(said)) = (found, refused) {
            assert!(withheld.why.contains(said), "{withheld:?}");
            assert!(!withheld.why.contains("u:p"), "{withheld:?}");
        }
    }

    #[rstest]
    #[case::tls("registry.example.com/a", true)]
    #[case::plain("http://registry.example.com/a", false)]
    #[case::loopback("http://127.0.0.1:5000/a", false)]
    #[case::named("http://registry.local:5000/a", true)]
    #[case::other_port("http://registry.local/a", false)]
    fn a_login_is_sent(#[case] to: &str, #[case] sent: bool) {
        let insecure = vec!["registry.local:5000".parse().expect("a host")];
        let rules = LoginRules { insecure, realms: Vec::new() };
        assert_eq!(rules.check_login(&repository(to)).is_ok(), sent);
    }
}
