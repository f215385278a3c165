//! Checks that a loaded module has the wanted version and parameters, as the kernel reports them.

use super::LoadModule;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::module_parameters::{same_value, split};
use longshore_host::Host;
use longshore_host::verbs::ModuleState;
/// Compares version and srcversion of a loaded module with those of its step.
///
/// # Errors
/// 16 where they differ.
pub(super) fn versions(step: &LoadModule, state: &ModuleState) -> Result<(), Failure> {
    let LoadModule { name, version, srcversion, .. } = step;
    let pairs =
        [("version", version, &state.version), ("srcversion", srcversion, &state.srcversion)];
    for (what, wanted, live) in pairs {
        if wanted.is_some() && wanted != live {
            let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
            return Err(Failure::new(
                FailureKind::KernelRefused,
                format!(
                    "{name}: the live module has {what} {}, wanted is {}",
                    text(live),
                    text(wanted)
                ),
            )
            .remedy("unload the other driver first, with the tool that loaded it"));
        }
    }
    Ok(())
}

/// Compares the parameters that a loaded module reports with those it was given; `kernel_log` has
/// the kernel's messages of the load.
///
/// # Errors
/// 16 where a value differs, or the kernel ignored a parameter.
pub(super) fn parameters(
    host: &dyn Host,
    module: &str,
    given: &str,
    kernel_log: &[String],
) -> Result<(), Failure> {
    for (name, wanted) in split(given) {
        if ignored(kernel_log, name) {
            return Err(Failure::new(
                FailureKind::KernelRefused,
                format!("{module} has no parameter {name}: the kernel ignored it"),
            )
            .remedy("see `modinfo -p` of the driver; correct or remove the parameter"));
        }
        let live = host
            .module_parameter(module, name)
            .or_fail(FailureKind::KernelRefused, || format!("reading {module}'s {name}"))?;
        if let Some(live) = live
            && !same_value(wanted, &live)
        {
            return Err(Failure::new(
                FailureKind::KernelRefused,
                format!("{module}: parameter {name} was given as {wanted:?} and is {live:?}"),
            )
            .remedy("the driver does not accept that value: correct or remove the parameter"));
        }
    }
    Ok(())
}

/// True if the kernel logged that a module does not have this parameter (kernel/module/main.c,
/// unknown_module_param_cb).
fn ignored(kernel_log: &[String], name: &str) -> bool {
    let warning = format!("unknown parameter '{name}' ignored");
    kernel_log.iter().any(|line| line.contains(&warning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;

    #[test]
    fn a_parameter_the_kernel_ignored_is_recognised() {
        let kernel_log = ["nvidia: unknown parameter 'NVreg_Typo' ignored".to_owned()];
        assert!(ignored(&kernel_log, "NVreg_Typo"));
        assert!(!ignored(&kernel_log, "NVreg_Ty"));
    }

    #[test]
    fn another_version_is_refused_and_no_request_is_fine() {
        let step = |version: Option<&str>| LoadModule {
            name: "nvidia".to_owned(),
            origin: crate::steps::ModuleOrigin::Driver { sha256: String::new() },
            parameters: String::new(),
            version: version.map(str::to_owned),
            srcversion: None,
        };
        let live = ModuleState { version: Some("535.1".to_owned()), ..ModuleState::default() };
        versions(&step(None), &live).unwrap();
        versions(&step(Some("535.1")), &live).unwrap();
        let failure = versions(&step(Some("550.1")), &live).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "nvidia: the live module has version 535.1, wanted is 550.1"
        );
        assert_eq!(failure.code(), ExitCode::KernelRefused);
    }
}
