//! Failures of calls.

use std::fmt;
use std::time::Duration;

use http_body_util::LengthLimitError;

use crate::text::{in_line, is_name};

/// Length at which a server's message is cut.
const SHOWN: usize = 200;

/// Reason of the cause of a refused eviction (k8s.io/api/policy/v1, DisruptionBudgetCause).
const BUDGET: &str = "DisruptionBudget";

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {why}")]
pub struct Error {
    /// The call.
    pub call: &'static str,
    /// Kind of failure.
    pub kind: ApiErrorKind,
    why: String,
}

/// Kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApiErrorKind {
    /// Name of a node, pod or namespace that is none.
    Name,
    /// The service account's files cannot be used.
    Account,
    /// 401: the token is not valid any more.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    Missing,
    /// 410: the version to watch from is too old.
    Gone,
    /// Another status of the server.
    Status(u16),
    /// No connection, or one that broke.
    Unreachable,
    /// No answer within the time limit.
    Late,
    /// An answer that is not of the API.
    Garbled,
    /// An answer beyond the size limit: the same call has the same answer.
    TooLarge,
}

impl ApiErrorKind {
    fn from_status(code: u16) -> Self {
        match code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::Missing,
            410 => Self::Gone,
            // kube takes any JSON object for a status: without a code it is none.
            0 => Self::Garbled,
            code => Self::Status(code),
        }
    }

    /// True where the cluster does not offer the call to this account.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Forbidden | Self::Missing)
    }

    /// True where the same call may succeed later.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Unreachable | Self::Late | Self::Garbled | Self::Unauthorized => true,
            Self::Status(code) => code == 429 || code >= 500,
            _ => false,
        }
    }
}

impl Error {
    pub(crate) fn new(call: &'static str, kind: ApiErrorKind, why: impl fmt::Display) -> Self {
        Self { call, kind, why: in_line(&why.to_string(), SHOWN) }
    }

    pub(crate) fn late(call: &'static str, limit: Duration) -> Self {
        Self::new(call, ApiErrorKind::Late, format!("no answer of the API server within {limit:?}"))
    }

    /// Takes the failure of a status that the server sent.
    pub(crate) fn from_status(call: &'static str, status: &kube::core::Status) -> Self {
        let mut why = format!("the API server answered {}: {}", status.code, status.message);
        // The name of a PodDisruptionBudget is in the cause alone.
        let details = status.details.iter().flat_map(|details| &details.causes);
        if let Some(cause) = details.into_iter().find(|cause| cause.reason == BUDGET) {
            why = format!("{why} {}", cause.message);
        }
        Self::new(call, ApiErrorKind::from_status(status.code), why)
    }

    pub(crate) fn from_kube(call: &'static str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(call, status),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => Self::new(
                call,
                ApiErrorKind::Garbled,
                format!("an answer that is not of the API: {error}"),
            ),
            kube::Error::Auth(_) => Self::new(call, ApiErrorKind::Account, error),
            error if is_too_large(error) => Self::new(
                call,
                ApiErrorKind::TooLarge,
                "the API server's answer is beyond the size limit",
            ),
            _ => Self::new(call, ApiErrorKind::Unreachable, with_causes(error)),
        }
    }
}

/// True where the size limit of an answer was the cause. The end of a watch is not: it arrives as an I/O error.
fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_large)
}

/// Error with all that caused it: the outermost one of a connection says nothing.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

/// Refuses a name that is no part of a path.
pub(crate) fn check_names(call: &'static str, names: &[&str]) -> Result<(), Error> {
    match names.iter().find(|name| !is_name(name)) {
        Some(wrong) => Err(Error::new(call, ApiErrorKind::Name, format!("`{wrong}` is no name"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_tells_what_to_do_next() {
        for (code, kind, refusal, passes) in [
            (0, ApiErrorKind::Garbled, false, true),
            (401, ApiErrorKind::Unauthorized, false, true),
            (403, ApiErrorKind::Forbidden, true, false),
            (404, ApiErrorKind::Missing, true, false),
            (410, ApiErrorKind::Gone, false, false),
            (409, ApiErrorKind::Status(409), false, false),
            (429, ApiErrorKind::Status(429), false, true),
            (503, ApiErrorKind::Status(503), false, true),
        ] {
            let found = ApiErrorKind::from_status(code);
            assert_eq!((found, found.is_refusal(), found.may_pass()), (kind, refusal, passes));
        }
    }
}
