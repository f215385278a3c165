//! Pure planning: configuration, facts and catalog in; choices with reasons, and steps, out.

mod acquire;
mod acquisition;
mod candidate;
mod cdi;
mod compile;
mod conflicts;
mod daemon_place;
mod daemons;
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
mod symbols;
mod user_mode;
mod values;
mod which_set;

pub use acquisition::{Acquire, BuildSet};
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
pub use values::Reason;

pub use longshore_core::finding::{Finding, Severity};

use crate::catalog::Catalog;
use crate::config::Config;
use crate::steps::{Step, WriteFeatures};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::{self, Code};
use longshore_core::flavour::Flavour;
use longshore_host::HostFacts;

/// Codes of a source that did not answer, and of what is unknown for it.
const OF_SOURCES: [Code; 3] =
    [Code::ArchivesUnread, Code::UserspaceNotOffered, Code::HeadersUnknown];

/// Makes the plan; reads and changes nothing.
///
/// Obstacles are findings with [`Severity::Refusal`], so that the user sees all of them at once;
/// [`Plan::refusal`] is the failure to end a command with.
///
/// # Errors
/// Exit code 10 where the kernel release is unknown.
pub fn plan(config: &Config, facts: &HostFacts, catalog: &Catalog) -> Result<Plan, Failure> {
    if facts.kernel.release.is_empty() {
        let cause = "the facts have no kernel release";
        return Err(Failure::new(FailureKind::HostUnsupported, cause)
            .remedy("mount /proc in the container, or give the right --root"));
    }
    if let Some(note) = preflight::waits_for_device(config, facts) {
        return Ok(idle(config, facts, note));
    }
    let mut choice = driver::choose(config, facts, catalog);
    let wanted = values::wanted_modules(config);
    let mut supply = acquire::supply(config, facts, catalog, &choice, &wanted);
    let mut install = install::install(config, facts, &choice, &supply, &wanted);
    let daemons = daemons::daemons(config, facts, catalog, &choice, supply.userspace);
    install.steps.extend(daemons.steps);
    install.findings.extend(daemons.findings);
    // Last: a container that gets the driver by it finds the whole driver.
    let publishing = cdi::publishing(config, facts);
    install.steps.extend(publishing.step);
    install.steps.extend(features(config, &choice.version, choice.flavour));
    install.findings.extend(publishing.finding);
    install.steps.extend(operator::last(config));

    let mut findings = preflight::findings(config, facts);
    findings.append(&mut choice.findings);
    let set = supply.set;
    let modules = wanted.as_slice();
    let live = live::differences(live::Wanted { config, facts, choice: &choice, set, modules });
    if choice.live && live.replaced.is_empty() && live.finding.is_none() {
        findings.extend(preflight::missing_gpus(config, facts));
    }
    findings.extend(live.finding);
    if wanted.iter().any(|name| !facts.loaded.contains_key(*name)) || !live.replaced.is_empty() {
        findings.extend(distribution::finding(facts, catalog, &supply));
        findings.extend(signing::finding(facts, catalog, &supply));
        findings.extend(signing::unsignable(facts, catalog, &supply));
        let (finding, reason) = symbols::judged(catalog, &supply);
        findings.extend(finding);
        supply.reasons.extend(reason);
    }
    findings.extend(preflight::room(facts, &supply.acquire));
    findings.append(&mut supply.findings);
    findings.extend(install.findings);
    findings.extend(mofed::unusable(catalog));
    findings.extend(operator::findings(config));
    findings.extend(sources::left_out(catalog));
    findings.extend(sources::apt_proxies(catalog));
    findings.extend(labels::finding(facts));
    if !findings.iter().any(|f| f.code == Code::KernelUnknown) {
        findings.extend(preflight::kernel_unknown(facts));
    }
    // The driver itself is unknown then, and so is all that belongs to it: one cause, told once.
    if findings.iter().any(|f| f.code == Code::ArchivesUnread) {
        findings.retain(|f| f.code == Code::ArchivesUnread || !OF_SOURCES.contains(&f.code));
    }
    finding::sort(&mut findings);
    let undecided = config.paths.is_captured()
        && !supply.acquire.is_empty()
        && catalog.failures.archives.is_some()
        && findings.iter().any(|f| OF_SOURCES.contains(&f.code));

    let next_kernel = next_kernel::of(config, facts, catalog, &choice);
    let mut reasons = choice.reasons;
    reasons.append(&mut supply.reasons);
    reasons.extend(live.reason);
    reasons.extend(daemons.reasons);
    reasons.extend(operator::reason(config));
    reasons.extend(preflight::store_of_host(config));
    reasons.extend(in_tree::reasons(config, facts));
    reasons.extend(publishing.reason);
    reasons.extend(labels::reason(facts));
    Ok(Plan {
        driver_version: choice.version,
        flavour: choice.flavour,
        kernel_release: facts.kernel.release.clone(),
        reasons,
        acquire: supply.acquire,
        replaces: live.replaced,
        install: install.steps,
        exact: install.exact,
        findings,
        undecided,
        idle: false,
        next_kernel,
    })
}

/// True if the plan of these facts is to wait for a GPU, whatever the sources have.
pub fn is_idle(config: &Config, facts: &HostFacts) -> bool {
    preflight::waits_for_device(config, facts).is_some()
}

/// Returns the plan of a host without a device, on which the agent waits for one.
fn idle(config: &Config, facts: &HostFacts, note: Finding) -> Plan {
    let wish = config.driver.version.as_deref().unwrap_or("newest");
    let reason = "no GPU is here: `run` changes nothing, and waits for one (no-gpu = wait)";
    Plan {
        driver_version: wish.to_owned(),
        flavour: config.driver.flavour.unwrap_or(Flavour::Open),
        kernel_release: facts.kernel.release.clone(),
        reasons: vec![Reason::of("nothing to do", reason)],
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

/// Returns the step that writes the features file for labels of the node, where that is wanted.
fn features(config: &Config, version: &str, flavour: Flavour) -> Option<Step> {
    let step = WriteFeatures {
        host_root: config.paths.host_root.clone(),
        version: version.to_owned(),
        flavour: flavour.to_string(),
    };
    config.cluster.features_file.then_some(Step::WriteFeatures(step))
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
        && !(mofed::compiles_all(config) && leaves_mofed_out(plan))
}

fn leaves_mofed_out(plan: &Plan) -> bool {
    plan.findings.iter().any(|finding| finding.code == Code::MofedLeftOut)
}

#[cfg(test)]
mod tests;
