//! Address that metrics are served on.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use longshore_core::from_string;
use longshore_core::value::{AbsolutePath, BadValue};

/// Default listening address.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9470);

/// Longest socket path: sun_path has 108 bytes (unix(7)), one of them the terminating 0.
const LONGEST_SOCKET: usize = 107;

/// Address that metrics are served on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, derive_more::Display)]
#[serde(try_from = "String")]
pub enum Listen {
    /// Not served.
    #[display("off")]
    Off,
    /// TCP address; port 0 picks a free port.
    Tcp(SocketAddr),
    /// Unix socket at this path.
    #[display("unix:{}", _0.display())]
    Unix(PathBuf),
}

impl Default for Listen {
    fn default() -> Self {
        Self::Tcp(USUAL)
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

from_string!(Listen);

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
}
