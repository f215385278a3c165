//! Checks of the driver's sources, of its daemons and of the settings.

use super::{Checked, Input, passed, skipped};
use crate::doctor::NOT_ASKED;
use crate::plan;
use longshore_core::driver_version::DriverVersion;

/// Describes the acquisition, where it is known without queries or the sources were queried.
pub(super) fn sources(input: &Input<'_>) -> Checked {
    let Some(plan) = input.plan else { return skipped(NOT_ASKED) };
    let driver = format!("driver {} ({})", plan.driver_version, plan.flavour);
    match (plan.acquire.is_empty(), input.look.online) {
        (true, _) => passed(format!("{driver}: everything needed is available")),
        (false, true) => passed(format!("{driver} is available")),
        (false, false) => skipped(NOT_ASKED),
    }
}

/// Describes the switches' need of a fabric manager, where it is known without queries or the sources were queried.
pub(super) fn daemons(input: &Input<'_>) -> Checked {
    let Some(plan) = input.plan else { return skipped(NOT_ASKED) };
    let Some(need) = plan::fabric_needs_manager(input.look.config, input.look.facts) else {
        return passed("none that the driver's user-mode files lack");
    };
    match plan.acquire.is_empty() || input.look.online {
        true => passed(format!("{need}, and driver {} has a fabric manager", plan.driver_version)),
        false => skipped(format!(
            "{need}, which need a fabric manager of the driver's version; {NOT_ASKED}"
        )),
    }
}

/// Describes the standing of the driver by the support table, where its version is known.
pub(super) fn support(input: &Input<'_>) -> Checked {
    let Some(plan) = input.plan else { return skipped(NOT_ASKED) };
    let table = input.look.config.support.table.as_ref();
    let issued = table.issued();
    let Some(version) = DriverVersion::parse(&plan.driver_version) else {
        return skipped(NOT_ASKED);
    };
    let driver = &plan.driver_version;
    match version.branch() {
        Some(branch) if table.branch(branch).is_none() => skipped(format!(
            "driver {driver}: branch {branch} is not in the support table of {issued}"
        )),
        _ => passed(format!(
            "driver {driver}: branch supported, no open bulletin (support table of {issued})"
        )),
    }
}

pub(super) fn settings(input: &Input<'_>) -> Checked {
    let driver = input.look.config.driver.version.as_deref();
    let driver = driver.unwrap_or(if input.look.config.driver.auto { "auto" } else { "newest" });
    passed(format!("driver = {driver}; every parameter belongs to a loaded module"))
}
