//! Environment variables that are no usable settings.

use std::collections::BTreeSet;

use crate::config;
use longshore_core::failure::{Failure, FailureKind};

/// Warns about unknown settings in the environment, which may be misspelt; refuses one about
/// signatures, because ignoring it could permit unsigned modules.
pub(super) fn check_unknown(asked: &BTreeSet<String>) -> Result<(), Failure> {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if asked.contains(&*name) || !is_meant_for_us(&name) {
            continue;
        }
        if name.starts_with(config::FABRIC_VARIABLES) {
            return Err(config::unknown_fabric_variable(&name));
        }
        let cause = format!("the environment variable {name} is not a setting of longshore");
        if name.contains("SIGNATURE") {
            return Err(Failure::new(FailureKind::Usage, cause).remedy(
                "LONGSHORE_REQUIRE_SIGNATURE, LONGSHORE_SIGNATURE_KEYS and \
                 LONGSHORE_MODULE_SIGNATURES are; correct or unset it",
            ));
        }
        tracing::warn!("{cause}");
    }
    Ok(())
}

fn is_meant_for_us(name: &str) -> bool {
    // Kubernetes sets these for every service whose name begins with `longshore`.
    let of_service = name.contains("_SERVICE_") || name.contains("_PORT");
    name.starts_with(config::FABRIC_VARIABLES) || name.starts_with("LONGSHORE_") && !of_service
}

/// Refuses settings that are not UTF-8, which would otherwise count as absent.
pub(super) fn check_environment() -> Result<(), Failure> {
    let theirs = config::OPERATOR_VARIABLES;
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if value.to_str().is_none() && (name.starts_with("LONGSHORE_") || theirs.contains(&&*name))
        {
            let cause = format!("environment variable {name}={}: not UTF-8", value.display());
            return Err(Failure::new(FailureKind::Usage, cause).remedy("correct or unset it"));
        }
    }
    Ok(())
}
