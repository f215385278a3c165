//! Errors of the HTTP client: their classes, and the texts of their causes.

use std::error::Error;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::reach::OutOfReach;
use longshore_core::redact::redacted_text;

/// Class of a client's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Class {
    /// The server's certificate is at fault.
    Certificate,
    /// The request or its redirections are at fault.
    Request,
    /// The server sent nothing within the time limit.
    Silent,
    /// The connection failed, or broke.
    Broken,
    /// This machine does not let a process download.
    Host,
}

impl Class {
    fn from_error(error: &reqwest::Error) -> Self {
        match () {
            () if is_certificate(error) => Self::Certificate,
            () if error.is_redirect() || error.is_builder() => Self::Request,
            () if is_out_of_reach(error) => Self::Request,
            () if error.is_timeout() => Self::Silent,
            () => Self::Broken,
        }
    }
}

/// Error of the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClientError {
    pub(super) class: Class,
    pub(super) cause: String,
}

impl ClientError {
    pub(super) fn new(class: Class, cause: impl Into<String>) -> Self {
        Self { class, cause: cause.into() }
    }

    /// Returns that of a client with these timeouts.
    pub(super) fn from_error(connect: Duration, stall: Duration, error: &reqwest::Error) -> Self {
        let cause = match (error.is_timeout(), error.is_connect()) {
            (true, true) => format!("no connection within {connect:?}"),
            (true, false) => format!("no data for {stall:?}"),
            (false, _) => root_cause(error),
        };
        Self { class: Class::from_error(error), cause }
    }
}

/// Returns the text of the innermost error: the system's error, without the layers above it.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    // reqwest's own errors contain the URL.
    redacted_text(&innermost.to_string()).into_owned()
}

/// True if the host's addresses were refused: retrying does not help.
fn is_out_of_reach(error: &(dyn Error + 'static)) -> bool {
    error.is::<OutOfReach>() || error.source().is_some_and(is_out_of_reach)
}

/// True if the server's certificate is at fault: retrying does not help.
fn is_certificate(error: &(dyn Error + 'static)) -> bool {
    if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
        return true;
    }
    // An io::Error does not return the wrapped error as its source.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(|e| e.get_ref());
    match wrapped {
        Some(wrapped) => is_certificate(wrapped),
        None => error.source().is_some_and(is_certificate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_certificate_is_told_from_a_bad_line() {
        let bad = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(is_certificate(&std::io::Error::other(std::io::Error::other(bad))));
        assert!(!is_certificate(&std::io::Error::from_raw_os_error(111)));
    }
}
