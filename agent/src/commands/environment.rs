//! Environment variables that are no usable settings.

use std::collections::BTreeSet;
use std::ffi::OsString;

use crate::config;
use longshore_core::failure::{Failure, FailureKind};

/// Returns a variable of this process.
pub(super) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Warns about unknown settings in the environment, which may be misspelt; refuses one about
/// signatures, because ignoring it could permit unsigned modules.
pub(super) fn check_unknown(asked: &BTreeSet<String>) -> Result<(), Failure> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    for warning in warnings(all, asked)? {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Returns the warnings about `all` variables but those that were `asked` for.
fn warnings(
    all: impl Iterator<Item = (String, String)>,
    asked: &BTreeSet<String>,
) -> Result<Vec<String>, Failure> {
    let (mut warnings, mut of_services) = (Vec::new(), Vec::new());
    for (name, value) in all {
        if asked.contains(&name) || !is_meant_for_us(&name) {
            continue;
        }
        let is_of_fabric = name.starts_with(config::FABRIC_VARIABLES);
        // Kubernetes sets these for every Service of the namespace whose name begins so.
        if config::is_of_service(&name, &value) {
            if is_of_fabric {
                of_services.push(name);
            }
            continue;
        }
        if is_of_fabric {
            return Err(config::unknown_fabric_variable(&name));
        }
        let cause = format!("the environment variable {name} is not a setting of longshore");
        if name.contains("SIGNATURE") {
            return Err(Failure::new(FailureKind::Usage, cause).remedy(
                "LONGSHORE_REQUIRE_SIGNATURE, LONGSHORE_SIGNATURE_KEYS and \
                 LONGSHORE_MODULE_SIGNATURES are; correct or unset it",
            ));
        }
        warnings.push(cause);
    }
    if !of_services.is_empty() {
        of_services.sort();
        warnings.push(format!(
            "ignoring {}: variables of a Kubernetes Service, and no values of fabricmanager.cfg \
             (enableServiceLinks: false in the pod leaves them out)",
            of_services.join(", ")
        ));
    }
    Ok(warnings)
}

fn is_meant_for_us(name: &str) -> bool {
    name.starts_with(config::FABRIC_VARIABLES) || name.starts_with("LONGSHORE_")
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

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;

    fn warned(pairs: &[(&str, &str)]) -> Result<Vec<String>, Failure> {
        let all = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        warnings(all, &BTreeSet::from(["LONGSHORE_STORE".to_owned()]))
    }

    /// A user who may create a Service in the namespace gives each new pod these variables.
    #[test]
    fn a_service_named_as_a_family_of_settings_ends_no_agent() {
        let of_fabric = [
            ("NVFM_CONFIG_SERVICE_HOST", "10.96.0.7"),
            ("NVFM_CONFIG_SERVICE_PORT", "4"),
            ("NVFM_CONFIG_PORT", "tcp://1.1.1.1:4"),
            ("NVFM_CONFIG_PORT_4_TCP_ADDR", "1.1.1.1"),
        ];
        let warned_of = warned(&of_fabric).expect("ignored");
        assert_eq!(warned_of.len(), 1, "{warned_of:?}");
        assert!(of_fabric.iter().all(|(name, _)| warned_of[0].contains(name)), "{warned_of:?}");
        let of_agent = [
            ("LONGSHORE_STORE", "/store"),
            ("LONGSHORE_PORT", "tcp://1.1.1.1:4"),
            ("LONGSHORE_SIGNATURE_SERVICE_HOST", "10.96.0.7"),
            ("GDRCOPY_SERVICE_HOST", "10.96.0.7"),
            ("KUBERNETES_PORT", "tcp://1.1.1.1:443"),
        ];
        assert_eq!(warned(&of_agent).expect("ignored"), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_services_is_refused_or_warned_of() {
        for name in ["NVFM_CONFIG_SERVICE_HOST", "NVFM_CONFIG_PORT", "LONGSHORE_SIGNATURE_PORT"] {
            let failure = warned(&[(name, "/etc/passwd")]).expect_err("refused");
            assert_eq!(failure.code(), ExitCode::Usage);
            assert!(failure.to_string().contains(name), "{failure}");
        }
        let warned = warned(&[("LONGSHORE_STOER", "/store")]).expect("a warning");
        assert!(warned.len() == 1 && warned[0].contains("LONGSHORE_STOER"), "{warned:?}");
    }
}
