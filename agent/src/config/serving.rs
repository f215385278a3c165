//! Listening address of the status server, and path of the termination message.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use longshore_core::value::{AbsolutePath, BadValue};

/// Default listening address.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9470);

/// File that Kubernetes makes, and shows as the reason why a container ended (the pod's
/// `terminationMessagePath`).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Longest socket path: sun_path has 108 bytes (unix(7)), one of them the terminating 0.
const LONGEST_SOCKET: usize = 107;

/// Address that health, metrics and status are served on.
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
