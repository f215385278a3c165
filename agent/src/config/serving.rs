//! Address that metrics are served on, with its TLS and review of tokens, and path of the termination message.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::Fragment;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::value::{AbsolutePath, BadValue};

/// Default listening address.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9470);

/// File that Kubernetes makes, and shows as the reason why a container ended (the pod's
/// `terminationMessagePath`).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Name of the agent's own socket in the state directory.
pub const SOCKET: &str = "agent.sock";

/// Longest socket path: sun_path has 108 bytes (unix(7)), one of them the terminating 0.
const LONGEST_SOCKET: usize = 107;

/// Address that metrics are served on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// Not served.
    Off,
    /// TCP address; port 0 picks a free port.
    Tcp(SocketAddr),
    /// Unix socket at this path.
    Unix(PathBuf),
}

impl Default for Listen {
    fn default() -> Self {
        Self::Tcp(USUAL)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let wanted = "an address such as 127.0.0.1:9470 or [::1]:9470, unix:/a/path, or off";
        let bad = || BadValue::new(text, wanted);
        match text.strip_prefix("unix:") {
            _ if text == "off" => Ok(Self::Off),
            Some(path) if path.len() <= LONGEST_SOCKET => AbsolutePath::strict(path)
                .map(|p| Self::Unix(p.as_path().into()))
                .map_err(|_| bad()),
            Some(_) => Err(bad()),
            None => text.parse().map(Self::Tcp).map_err(|_| bad()),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
}

/// Serving of metrics to others than root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServingConfig {
    /// Address.
    pub listen: Listen,
    /// Files of the certificate; None for clear text.
    pub tls: Option<TlsFiles>,
    /// True if clients need a token that the cluster allows to read the metrics.
    pub token_review: bool,
}

/// Files of a certificate and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those of the authorities between it and the root.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

impl ServingConfig {
    /// Returns the settings with their defaults; `state` is the state directory.
    ///
    /// # Errors
    /// 2 for a certificate without a key or the reverse, tokens that would be sent in clear text, and the
    /// address of the agent's own socket.
    pub(super) fn of(all: &Fragment, state: &Path) -> Result<Self, Failure> {
        let usage = |cause: String, remedy: &str| {
            Err(Failure::new(FailureKind::Usage, cause).remedy(remedy))
        };
        let path = |path: &AbsolutePath| path.as_path().to_path_buf();
        let tls = match (&all.listen_certificate, &all.listen_key) {
            (Some(certificate), Some(key)) => {
                Some(TlsFiles { certificate: path(certificate), key: path(key) })
            }
            (None, None) => None,
            (given, _) => {
                let (one, other) = match given {
                    Some(_) => ("listen-certificate", "listen-key"),
                    None => ("listen-key", "listen-certificate"),
                };
                let cause = format!("{one} is set, and {other} is not: TLS needs both");
                return usage(cause, "set both of them to files in PEM, or none");
            }
        };
        let listen = all.listen.clone().unwrap_or_default();
        let token_review = all.listen_token_review.unwrap_or_default();
        match &listen {
            Listen::Tcp(address)
                if token_review && tls.is_none() && !address.ip().is_loopback() =>
            {
                let cause =
                    format!("listen-token-review: tokens would be sent to {listen} in clear text");
                return usage(cause, "set listen-certificate and listen-key");
            }
            Listen::Unix(path)
                if path.parent() == Some(state) && path.file_name() == Some(SOCKET.as_ref()) =>
            {
                let cause = format!("listen: {} is the agent's own socket", path.display());
                return usage(cause, "set another path: this one serves metrics already, to root");
            }
            _ => {}
        }
        Ok(Self { listen, tls, token_review })
    }
}

/// File that `run` writes the reason of its failure to: a path, or `off`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TerminationMessage(Option<PathBuf>);

impl TerminationMessage {
    /// Returns the file for a setting; without one, Kubernetes' own file where it exists.
    pub fn path_of(given: Option<&Self>) -> Option<PathBuf> {
        match given {
            Some(Self(path)) => path.clone(),
            None => Some(PathBuf::from(TERMINATION_LOG)).filter(|path| Path::exists(path)),
        }
    }
}

impl FromStr for TerminationMessage {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if text == "off" {
            return Ok(Self(None));
        }
        let path = AbsolutePath::strict(text)
            .map_err(|_| BadValue::new(text, "an absolute path, or off"))?;
        Ok(Self(Some(path.as_path().to_path_buf())))
    }
}

impl TryFrom<String> for TerminationMessage {
    type Error = BadValue;

    fn try_from(text: String) -> Result<Self, BadValue> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("off", Some("off"))]
    #[case("127.0.0.1:9470", Some("127.0.0.1:9470"))]
    #[case("0.0.0.0:0", Some("0.0.0.0:0"))]
    #[case("[::1]:80", Some("[::1]:80"))]
    #[case("unix:/run/longshore/http", Some("unix:/run/longshore/http"))]
    #[case("unix:http", None)]
    #[case("unix:", None)]
    #[case("9470", None)]
    #[case(":9470", None)]
    #[case("localhost:9470", None)]
    #[case("127.0.0.1:99999", None)]
    #[case("", None)]
    fn places_to_listen(#[case] text: &str, #[case] wanted: Option<&str>) {
        let parsed = text.parse::<Listen>().ok().map(|listen| listen.to_string());
        assert_eq!(parsed.as_deref(), wanted);
    }

    #[test]
    fn a_sockets_name_has_to_fit_its_address() {
        let path = |len: usize| format!("unix:/{}", "a".repeat(len - 1));
        assert!(path(107).parse::<Listen>().is_ok());
        assert!(path(108).parse::<Listen>().is_err());
    }

    #[test]
    fn it_is_loopback_unless_something_else_is_said() {
        assert_eq!(Listen::default().to_string(), "127.0.0.1:9470");
    }

    const CERTIFICATE: &str = "listen-certificate = '/tls/tls.crt'\n";
    const KEY: &str = "listen-key = '/tls/tls.key'\n";
    const REVIEW: &str = "listen-token-review = true\n";

    #[rstest]
    #[case::nothing(&[], Ok((false, false)))]
    #[case::tls(&[CERTIFICATE, KEY], Ok((true, false)))]
    #[case::both(&[CERTIFICATE, KEY, REVIEW, "listen = '0.0.0.0:9470'"], Ok((true, true)))]
    #[case::review_on_loopback(&[REVIEW], Ok((false, true)))]
    #[case::review_on_a_socket(&[REVIEW, "listen = 'unix:/run/a'"], Ok((false, true)))]
    #[case::no_key(&[CERTIFICATE], Err("listen-certificate is set, and listen-key is not"))]
    #[case::no_certificate(&[KEY], Err("listen-key is set, and listen-certificate is not"))]
    #[case::in_clear_text(&[REVIEW, "listen = '[::]:1'"], Err("would be sent to [::]:1 in clear text"))]
    #[case::own_socket(&["listen = 'unix:/run/longshore/agent.sock'"], Err("is the agent's own socket"))]
    fn metrics_are_served_by_settings_that_fit(
        #[case] lines: &[&str],
        #[case] wanted: Result<(bool, bool), &str>,
    ) {
        let all: Fragment = toml::from_str(&lines.concat()).unwrap();
        let found = ServingConfig::of(&all, Path::new("/run/longshore"));
        match (found, wanted) {
            (Ok(found), Ok(wanted)) => {
                assert_eq!((found.tls.is_some(), found.token_review), wanted)
            }
            (Err(failure), Err(why)) => {
                assert_eq!(failure.code(), longshore_core::failure::ExitCode::Usage);
                assert!(failure.to_string().contains(why), "{failure}");
            }
            (found, _) => panic!("{found:?}"),
        }
    }

    #[rstest]
    #[case("off", Some(None))]
    #[case("/dev/why", Some(Some("/dev/why")))]
    #[case("why", None)]
    fn termination_messages(#[case] text: &str, #[case] wanted: Option<Option<&str>>) {
        let parsed = text.parse::<TerminationMessage>().ok();
        let path = parsed.map(|given| TerminationMessage::path_of(Some(&given)));
        assert_eq!(path, wanted.map(|path| path.map(PathBuf::from)));
    }
}
