//! References to repositories and their contents, by the grammar of the distribution project's
//! reference package.

use std::fmt;
use std::str::FromStr;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::digest::is_sha256;
use crate::redact::redacted;

/// Error of an invalid reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a reference to a registry: {why}")]
pub struct BadReference {
    given: String,
    why: &'static str,
}

/// A repository of a registry: `registry.example.com/nvidia/modules`.
///
/// The host is always named; a leading `http://` means without TLS.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Display, Serialize, Deserialize)]
#[display("{}{host}/{path}", if *plain_http { "http://" } else { "" })]
#[serde(try_from = "String", into = "String")]
pub struct Repository {
    /// Host and, if it is not the scheme's default, port.
    host: String,
    /// The part after the host.
    path: String,
    /// True to connect without TLS.
    plain_http: bool,
}

impl Repository {
    /// Returns host and port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the repository's name within its registry.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// True if it is connected to without TLS.
    pub fn plain_http(&self) -> bool {
        self.plain_http
    }

    /// True where the connection stays on this machine: `localhost`, or a loopback address.
    pub fn is_loopback(&self) -> bool {
        let name = match self.host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.host.split(':').next().unwrap_or_default(),
        };
        let is_address = |a: std::net::IpAddr| a.is_loopback();
        name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_address)
    }

    /// Returns the same repository, without TLS if `plain`.
    #[must_use]
    pub fn with_plain_http(mut self, plain: bool) -> Self {
        self.plain_http |= plain;
        self
    }

    /// Returns host and path: the name in a signature.
    pub fn name(&self) -> String {
        format!("{}/{}", self.host, self.path)
    }

    /// Returns the URL of `rest` (for example `tags/list`) in the repository.
    pub fn url(&self, rest: &str) -> String {
        let scheme = if self.plain_http { "http" } else { "https" };
        // Docker Hub's registry is on another host than its name.
        let host = match self.host.as_str() {
            "docker.io" | "index.docker.io" => "registry-1.docker.io",
            host => host,
        };
        format!("{scheme}://{host}/v2/{}/{rest}", self.path)
    }
}

impl From<Repository> for String {
    fn from(repository: Repository) -> Self {
        repository.to_string()
    }
}

crate::from_string!(Repository, Host);

impl FromStr for Repository {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        let reference: Reference = text.parse()?;
        match (reference.tag, reference.digest) {
            (None, None) => Ok(reference.repository),
            _ => Err(bad(text, "a repository is wanted here, without tag and digest")),
        }
    }
}

/// A manifest in a repository: by tag, by digest, or by neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Repository that has it.
    pub repository: Repository,
    /// Its tag.
    pub tag: Option<String>,
    /// `sha256:...` of its manifest; takes precedence over the tag.
    pub digest: Option<String>,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        let (rest, plain_http) = match (text.strip_prefix("http://"), text.strip_prefix("https://"))
        {
            (Some(rest), _) => (rest, true),
            (None, Some(rest)) => (rest, false),
            (None, None) => (text, false),
        };
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        if digest.is_some_and(|d| d.strip_prefix("sha256:").is_none_or(|hex| !is_sha256(hex))) {
            return Err(bad(text, "the part after @ is not sha256: and 64 hex digits"));
        }
        let (host, rest) = rest
            .split_once('/')
            .ok_or_else(|| bad(text, "give host and repository, as in HOST/REPOSITORY"))?;
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        if !is_host(host) {
            let why = "it must begin with the registry's host (docker.io for Docker Hub), which \
                       has a dot or a port, or is localhost";
            return Err(bad(text, why));
        }
        if host.len() + path.len() > 254 || !path.split('/').all(is_component) {
            return Err(bad(
                text,
                "a repository's name is made of lower-case letters, digits and single . _ -",
            ));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(bad(text, "a tag is at most 128 letters, digits, _ . and -"));
        }
        let repository = Repository { host: host.to_owned(), path: path.to_owned(), plain_http };
        Ok(Self { repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
    }
}

/// A registry's host, with its port if that is not the scheme's default:
/// `registry.example.com:5000`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Host(String);

impl Host {
    /// Returns host and, where it was given, port.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for a repository of this host.
    pub fn has(&self, repository: &Repository) -> bool {
        self.0.eq_ignore_ascii_case(&repository.host)
    }
}

impl FromStr for Host {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        if is_host(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(bad(text, "a host is wanted here, without scheme and repository, as in HOST:PORT"))
        }
    }
}

fn bad(given: &str, why: &'static str) -> BadReference {
    BadReference { given: redacted(given), why }
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                if address.parse::<std::net::Ipv6Addr>().is_err() {
                    return false;
                }
                ("v6.", port.strip_prefix(':').or((!port.is_empty()).then_some("")))
            }
            None => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let label = |l: &str| {
        !l.is_empty()
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    let named = name == "v6." || name.split('.').all(label);
    let told_from_path = name == "localhost" || name.contains('.') || port.is_some();
    named && told_from_path && port.is_none_or(|p| p.parse::<u16>().is_ok_and(|p| p > 0))
}

/// True for `[a-z0-9]+` joined by `.`, `_`, `__` or any number of `-`.
fn is_component(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if !part.bytes().next().is_some_and(plain) || !part.bytes().last().is_some_and(plain) {
        return false;
    }
    part.split(|c: char| c.is_ascii() && plain(c as u8))
        .filter(|between| !between.is_empty())
        .all(|between| matches!(between, "." | "_" | "__") || between.bytes().all(|b| b == b'-'))
}

/// True for a valid tag.
pub fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const HEX: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[rstest]
    #[case("registry.example.com/a", "registry.example.com", "a", None)]
    #[case(
        "registry.example.com:5000/a/b-c:1.0",
        "registry.example.com:5000",
        "a/b-c",
        Some("1.0")
    )]
    #[case("localhost/a__b:x", "localhost", "a__b", Some("x"))]
    #[case("[::1]:5000/a:t", "[::1]:5000", "a", Some("t"))]
    #[case("https://registry.example.com/a", "registry.example.com", "a", None)]
    #[case("docker.io/library/debian:12", "docker.io", "library/debian", Some("12"))]
    fn references(
        #[case] text: &str,
        #[case] host: &str,
        #[case] path: &str,
        #[case] tag: Option<&str>,
    ) {
        let parsed: Reference = text.parse().expect("parses");
        assert_eq!((parsed.repository.host(), parsed.repository.path()), (host, path));
        assert_eq!(parsed.tag.as_deref(), tag);
        assert!(!parsed.repository.plain_http());
        assert_eq!(parsed.to_string(), text.trim_start_matches("https://"));
    }

    #[rstest]
    #[case::no_host("debian:12")]
    #[case::no_host_but_path("library/debian")]
    #[case::empty("")]
    #[case::no_path("registry.example.com/")]
    #[case::capitals("registry.example.com/A")]
    #[case::parent("registry.example.com/../a")]
    #[case::two_dots("registry.example.com/a..b")]
    #[case::three_underscores("registry.example.com/a___b")]
    #[case::ends_so("registry.example.com/a-")]
    #[case::double_slash("registry.example.com//a")]
    #[case::bad_tag("registry.example.com/a:+1")]
    #[case::tag_begins_so("registry.example.com/a:-1")]
    #[case::bad_digest("registry.example.com/a@sha256:1")]
    #[case::other_hash("registry.example.com/a@md5:d41d8cd98f00b204e9800998ecf8427e")]
    #[case::bad_port("registry.example.com:99999/a")]
    #[case::query("registry.example.com/a?b")]
    #[case::user("user@registry.example.com/a")]
    #[case::other_scheme("ftp://registry.example.com/a")]
    #[case::bad_v6("[::g]:1/a")]
    fn what_is_no_reference_is_refused(#[case] text: &str) {
        assert!(text.parse::<Reference>().is_err(), "{text}");
    }

    #[test]
    fn a_digest_and_plain_http_are_kept() {
        let text = format!("http://localhost:5000/a:t@sha256:{HEX}");
        let parsed: Reference = text.parse().expect("parses");
        assert!(parsed.repository.plain_http());
        assert_eq!(parsed.digest, Some(format!("sha256:{HEX}")));
        assert_eq!(parsed.to_string(), text);
        assert_eq!(parsed.repository.url("tags/list"), "http://localhost:5000/v2/a/tags/list");
    }

    #[rstest]
    #[case("localhost/a", true)]
    #[case("LOCALHOST:5000/a", true)]
    #[case("127.0.0.1:5000/a", true)]
    #[case("127.8.9.1:5000/a", true)]
    #[case("[::1]:5000/a", true)]
    #[case("[::2]:5000/a", false)]
    #[case("10.0.0.1:5000/a", false)]
    #[case("localhost.example.com/a", false)]
    #[case("127.0.0.1.example.com/a", false)]
    fn loopback(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(text.parse::<Repository>().expect("parses").is_loopback(), expected);
    }

    #[rstest]
    #[case("https://secret@registry.example.com/a")]
    #[case("user:secret@registry.example.com/a")]
    #[case("registry.example.com/a?secret")]
    fn a_secret_in_what_is_no_reference_is_not_shown(#[case] text: &str) {
        let bad = text.parse::<Reference>().expect_err("refused").to_string();
        assert!(bad.contains("registry.example.com") && !bad.contains("secret"), "{bad}");
    }

    #[test]
    fn docker_hub_is_elsewhere() {
        let parsed: Repository = "docker.io/library/debian".parse().expect("parses");
        assert_eq!(parsed.url("x"), "https://registry-1.docker.io/v2/library/debian/x");
    }

    #[test]
    fn a_repository_has_neither_tag_nor_digest() {
        assert!("registry.example.com/a:1".parse::<Repository>().is_err());
        assert!(format!("registry.example.com/a@sha256:{HEX}").parse::<Repository>().is_err());
    }
}
