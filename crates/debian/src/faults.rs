//! Failures of packages that cannot be used.

use std::io;

use super::compression::host_failure;
use longshore_core::failure::{Failure, FailureKind};

/// The failure of a package with forbidden contents.
pub fn bad(package: &str, what: &str) -> Failure {
    Failure::new(FailureKind::Verification, format!("the package {package} cannot be used: {what}"))
        .remedy("fetch it again, or report it to the archive it came from")
}

/// The failure of a package that cannot be read to its end.
pub fn damaged(package: &str, error: io::Error) -> Failure {
    host_failure(&error).unwrap_or_else(|| {
        let cause = format!("the package {package} is cut off or damaged");
        Failure::new(FailureKind::Verification, cause)
            .with_source(error)
            .remedy("remove its blob from the store and run again, so that it is fetched anew")
    })
}
