//! Failure of a table that is wrong.

use longshore_core::failure::{Failure, FailureKind};

/// Makes the failure of a table that is wrong: exit code 2.
pub(crate) fn wrong(cause: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Usage, format!("support table: {}", cause.into()))
        .remedy("correct the table: support-table.md of the documentation has its format")
}
