//! Pure planning: configuration, facts and catalog in; choices with reasons, and steps, out.

mod acquire;
mod acquisition;
mod candidate;
mod cdi;
mod coherent;
mod compile;
mod conflicts;
mod daemon_place;
mod daemons;
mod decisions;
mod distribution;
mod driver;
mod fabric;
mod finished;
pub mod gpu;
mod in_tree;
mod install;
mod labels;
mod live;
mod mofed;
mod next_kernel;
mod operator;
mod outcome;
mod own_signature;
mod preflight;
mod render;
mod signing;
mod sources;
mod support;
mod symbols;
mod unmet;
mod user_mode;
mod values;
mod which_set;

pub use acquisition::{Acquire, BuildSet};
use decisions::Decisions;
pub(crate) use distribution::brings_driver;
pub(crate) use fabric::needs_manager as fabric_needs_manager;
pub(crate) use finished::unfit;
pub use live::Replaced;
pub use mofed::gives_way;
pub use next_kernel::PlannedKernel;
pub use outcome::Plan;
pub(crate) use outcome::UNDECIDED;
pub(crate) use preflight::{NEEDED, is_host_hidden};
pub use render::{View, render, render_for_kernel};
pub(crate) use render::{device_lines, security_line};
use values::Inputs;
pub use values::Reason;

use std::borrow::Cow;

pub use longshore_core::finding::{Finding, Severity};

use crate::catalog::Catalog;
use crate::config::Config;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::Code;
use longshore_core::flavour::Flavour;
use longshore_host::HostFacts;

/// Makes the plan; reads and changes nothing.
///
/// Obstacles are findings with [`Severity::Refusal`], so that the user sees all of them at once;
/// [`Plan::refusal`] is the failure to end a command with.
///
/// # Errors
/// Exit code 10 where the kernel release is unknown.
pub fn plan(config: &Config, facts: &HostFacts, catalog: &Catalog) -> Result<Plan, Failure> {
    check_kernel(facts)?;
    let config = &*with_rules(config, facts);
    if let Some(note) = preflight::waits_for_device(config, facts) {
        return Ok(idle(config, facts, note));
    }
    let choice = driver::choose(Inputs { config, facts, catalog }, !config.modules_only);
    let (config, memory) = coherent::with_default(config, facts, &choice.version);
    let inputs = Inputs { config: &config, facts, catalog };
    Ok(Decisions::make(inputs, choice, memory).into_plan())
}

/// Returns version and flavour of the driver that a plan of the modules alone would choose of `catalog`; where there is
/// none, the request.
///
/// # Errors
/// As of [`plan`].
pub fn choose_driver(
    config: &Config,
    facts: &HostFacts,
    catalog: &Catalog,
) -> Result<(String, Flavour), Failure> {
    check_kernel(facts)?;
    let config = &*with_rules(config, facts);
    if is_idle(config, facts) {
        return Ok(request(config));
    }
    let choice = driver::choose(Inputs { config, facts, catalog }, false);
    Ok((choice.version, choice.flavour))
}

/// Returns the configuration with the driver of the rule for the host's GPUs: they may have come after it was read.
fn with_rules<'a>(config: &'a Config, facts: &HostFacts) -> Cow<'a, Config> {
    match config.driver_rules.rules.is_empty() {
        true => Cow::Borrowed(config),
        false => Cow::Owned(config.clone().for_devices(&facts.devices)),
    }
}

fn check_kernel(facts: &HostFacts) -> Result<(), Failure> {
    if !facts.kernel.release.is_empty() {
        return Ok(());
    }
    let cause = "the facts have no kernel release";
    Err(Failure::new(FailureKind::HostUnsupported, cause)
        .remedy("mount /proc in the container, or give the right --root"))
}

/// Returns version and flavour as requested.
fn request(config: &Config) -> (String, Flavour) {
    let version = config.driver.version.as_deref().unwrap_or("newest");
    (version.to_owned(), config.driver.flavour.unwrap_or(Flavour::Open))
}

/// True if the plan of these facts is to wait for a GPU, whatever the sources have.
pub fn is_idle(config: &Config, facts: &HostFacts) -> bool {
    preflight::waits_for_device(config, facts).is_some()
}

/// Returns the plan of a host without a device, on which the agent waits for one.
fn idle(config: &Config, facts: &HostFacts, note: Finding) -> Plan {
    let (driver_version, flavour) = request(config);
    let reason = "no GPU is here: `run` changes nothing, and waits for one (no-gpu = wait)";
    Plan {
        driver_version,
        flavour,
        kernel_release: facts.kernel.release.clone(),
        reasons: vec![Reason::new("nothing to do", reason)],
        acquire: Vec::new(),
        replaces: Vec::new(),
        install: Vec::new(),
        exact: true,
        findings: vec![note],
        undecided: false,
        idle: true,
        next_kernel: None,
    }
}

/// True if the store has all modules and user-mode files of the driver that these inputs lead to: a plan acquires
/// nothing. Its refusals are not considered.
///
/// # Errors
/// As of [`plan`].
pub fn is_stored(config: &Config, facts: &HostFacts, catalog: &Catalog) -> Result<bool, Failure> {
    let plan = plan(config, facts, catalog)?;
    Ok(plan.acquire.is_empty() && plan.is_prebuilt() == Some(true))
}

/// True if `plan` leaves the loaded driver as it is, and acquires nothing for it: then no other
/// source than those that it was made from need be queried.
pub fn adopts(config: &Config, facts: &HostFacts, plan: &Plan) -> bool {
    let Some(live) = &facts.live_driver else { return false };
    // The version of a .run file is known only once it is read.
    if config.driver.version.is_none() && !config.run_files.is_empty() {
        return false;
    }
    plan.driver_version == live.version
        && live.flavour.is_none_or(|flavour| flavour == plan.flavour)
        && plan.replaces.is_empty()
        && plan.acquire.is_empty()
        && plan.exact
        && plan.refusal().is_none()
        && !(mofed::compiles_all(config) && decisions::has(&plan.findings, Code::MofedLeftOut))
}

#[cfg(test)]
mod tests;
