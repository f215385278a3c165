//! Errors of the HTTP client: their classes, and the texts of their causes.

use std::error::Error;

use super::Policy;
use super::reach::OutOfReach;
use super::transport::{AttemptError, Request};
use longshore_core::redact::redacted_text;

/// Class of a client's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// The server's certificate is at fault.
    Certificate,
    /// The request or its redirections are at fault.
    Request,
    /// The server sent nothing within the time limit.
    Silent,
    /// The connection failed, or broke.
    Broken,
}

impl Class {
    fn of(error: &reqwest::Error) -> Self {
        match () {
            () if is_certificate(error) => Self::Certificate,
            () if error.is_redirect() || error.is_builder() => Self::Request,
            () if is_out_of_reach(error) => Self::Request,
            () if error.is_timeout() => Self::Silent,
            () => Self::Broken,
        }
    }
}

/// Returns the failure of an attempt that ended with a client's error.
pub(super) fn attempt_error<R: Request>(
    policy: &Policy,
    request: &R,
    error: &reqwest::Error,
) -> AttemptError {
    let failure = request.failure(&cause(policy, error));
    match Class::of(error) {
        Class::Certificate => failure.remedy(R::CERTIFICATE_REMEDY).into(),
        Class::Request => failure.into(),
        Class::Silent => AttemptError::Silent(failure),
        Class::Broken => AttemptError::Retry(failure),
    }
}

fn cause(policy: &Policy, error: &reqwest::Error) -> String {
    match (error.is_timeout(), error.is_connect()) {
        (true, true) => format!("no connection within {:?}", policy.connect),
        (true, false) => format!("no data for {:?}", policy.stall),
        (false, _) => root_cause(error),
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
