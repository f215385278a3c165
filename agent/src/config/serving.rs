//! Serving of metrics: the address with its TLS and review of tokens.

use std::path::{Path, PathBuf};

use super::Fragment;
use super::listen::Listen;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::value::AbsolutePath;

/// Name of the agent's own socket in the state directory.
pub const SOCKET: &str = "agent.sock";

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
    pub(super) fn from_fragment(all: &Fragment, state: &Path) -> Result<Self, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

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
        let found = ServingConfig::from_fragment(&all, Path::new("/run/longshore"));
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
}
