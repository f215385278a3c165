//! A plan in two passes: the decisions, each made from those before it; then their steps, findings and reasons, each a
//! list in its order.

use super::cdi::{self, Publishing};
use super::daemons::{self, Daemons};
use super::install::{self, Install};
use super::live::{self, Differences};
use super::outcome::Plan;
use super::values::{Choice, Inputs, Reason, Supply, wanted_modules};
use super::{
    acquire, distribution, in_tree, labels, mofed, next_kernel, operator, preflight, signing,
    sources, support, symbols,
};
use crate::config::Config;
use crate::steps::{Step, WriteFeatures};
use longshore_core::finding::{self, About, Code, Finding};
use longshore_core::source_id::SourceId;

/// True for a finding about archives that did not answer, and about what is unknown for it.
fn is_of_archives(finding: &Finding) -> bool {
    finding.code.entry().is_about(About::Archives)
}

/// Condition of a part that every plan has.
const ALWAYS: bool = true;

/// Decisions of one plan, with the inputs that they were made from.
pub(super) struct Decisions<'a> {
    inputs: Inputs<'a>,
    choice: Choice,
    supply: Supply<'a>,
    install: Install,
    daemons: Daemons,
    publishing: Publishing,
    live: Differences,
    /// Reason for the mode of coherent memory.
    memory: Option<Reason>,
    /// True if modules are to be loaded.
    loads: bool,
}

impl<'a> Decisions<'a> {
    /// Decides, from the chosen driver to the differences with the loaded one.
    pub(super) fn make(inputs: Inputs<'a>, choice: Choice, memory: Option<Reason>) -> Self {
        let Inputs { config, facts, .. } = inputs;
        let wanted = wanted_modules(config);
        let supply = acquire::supply(inputs, &choice, &wanted);
        let install = install::install(inputs, &choice, &supply, &wanted);
        let daemons = daemons::daemons(inputs, &choice, supply.userspace);
        let publishing = cdi::publishing(config, facts);
        let (set, modules) = (supply.set, wanted.as_slice());
        let live = live::differences(live::Wanted { config, facts, choice: &choice, set, modules });
        let is_unloaded = |name: &&str| !facts.loaded.contains_key(*name);
        let loads = wanted.iter().any(is_unloaded) || !live.replaced.is_empty();
        Self { inputs, choice, supply, install, daemons, publishing, live, memory, loads }
    }

    /// Puts the plan together.
    pub(super) fn into_plan(self) -> Plan {
        let findings = self.findings();
        Plan {
            undecided: self.is_undecided(&findings),
            findings,
            reasons: self.reasons(),
            install: self.steps(),
            next_kernel: next_kernel::planned(self.inputs, &self.choice),
            driver_version: self.choice.version,
            flavour: self.choice.flavour,
            kernel_release: self.inputs.facts.kernel.release.clone(),
            acquire: self.supply.acquire,
            replaces: self.live.replaced,
            exact: self.install.exact,
            idle: false,
        }
    }

    /// Returns the steps. The CDI spec comes late: a container that gets the driver by it finds the whole driver.
    fn steps(&self) -> Vec<Step> {
        let Self { inputs: Inputs { config, .. }, choice, .. } = self;
        [
            part(ALWAYS, self.install.steps.clone()),
            part(ALWAYS, self.daemons.steps.clone()),
            part(ALWAYS, self.publishing.step.clone()),
            part(config.cluster.features_file, [features(config, choice)]),
            part(ALWAYS, operator::last(config)),
        ]
        .concat()
    }

    /// Returns the findings, gravest first; those of one code in the order of this list.
    fn findings(&self) -> Vec<Finding> {
        let Self { inputs, supply, live, loads, .. } = self;
        let Inputs { config, facts, catalog } = *inputs;
        let is_adopted = self.choice.live && live.replaced.is_empty() && live.finding.is_none();
        let (symbols, _) = symbols::judged(catalog, supply);
        let mut findings: Vec<Finding> = [
            part(ALWAYS, preflight::findings(config, facts)),
            part(ALWAYS, self.choice.findings.clone()),
            part(ALWAYS, support::findings(*inputs, &self.choice)),
            part(is_adopted, preflight::missing_gpus(config, facts)),
            part(ALWAYS, live.finding.clone()),
            part(*loads, distribution::finding(*inputs, supply)),
            part(*loads, signing::finding(*inputs, supply)),
            part(*loads, signing::unsignable(*inputs, supply)),
            part(*loads, symbols),
            part(ALWAYS, preflight::room(facts, &supply.acquire)),
            part(ALWAYS, supply.findings.clone()),
            part(ALWAYS, self.install.findings.clone()),
            part(ALWAYS, self.daemons.findings.clone()),
            part(ALWAYS, self.publishing.finding.clone()),
            part(ALWAYS, mofed::unusable(catalog)),
            part(ALWAYS, operator::findings(config)),
            part(ALWAYS, sources::left_out(catalog)),
            part(ALWAYS, sources::apt_proxies(catalog)),
            part(ALWAYS, labels::finding(facts)),
        ]
        .concat();
        let is_unknown = has(&findings, Code::KernelUnknown);
        findings.extend(part(!is_unknown, preflight::kernel_unknown(facts)));
        // The driver itself is unknown then, and so is all that belongs to it: one cause, told once.
        if has(&findings, Code::ArchivesUnread) {
            findings.retain(|f| f.code == Code::ArchivesUnread || !is_of_archives(f));
        }
        finding::sort(&mut findings);
        findings
    }

    /// Returns the reasons of all choices.
    fn reasons(&self) -> Vec<Reason> {
        let Self { inputs: Inputs { config, facts, catalog }, supply, .. } = self;
        let (_, symbols) = symbols::judged(catalog, supply);
        [
            part(ALWAYS, self.choice.reasons.clone()),
            part(ALWAYS, supply.reasons.clone()),
            part(self.loads, symbols),
            part(ALWAYS, self.live.reason.clone()),
            part(ALWAYS, self.memory.clone()),
            part(ALWAYS, self.daemons.reasons.clone()),
            part(ALWAYS, operator::reason(config)),
            part(ALWAYS, preflight::store_of_host(config)),
            part(ALWAYS, in_tree::reasons(config, facts)),
            part(ALWAYS, self.publishing.reason.clone()),
            part(ALWAYS, labels::reason(facts)),
        ]
        .concat()
    }

    /// True if an acquisition needs sources of another machine, and none of them answered here.
    fn is_undecided(&self, findings: &[Finding]) -> bool {
        self.inputs.config.paths.is_captured()
            && !self.supply.acquire.is_empty()
            && self.inputs.catalog.failure_of(SourceId::Archives).is_some()
            && findings.iter().any(is_of_archives)
    }
}

/// Returns a part of a list if its condition holds.
fn part<T>(applies: bool, part: impl IntoIterator<Item = T>) -> Vec<T> {
    part.into_iter().filter(|_| applies).collect()
}

/// True if one of the findings has this code.
pub(super) fn has(findings: &[Finding], code: Code) -> bool {
    findings.iter().any(|finding| finding.code == code)
}

/// Returns the step that writes the features file for labels of the node.
fn features(config: &Config, choice: &Choice) -> Step {
    Step::WriteFeatures(WriteFeatures {
        host_root: config.paths.host_root.clone(),
        version: choice.version.clone(),
        flavour: choice.flavour.to_string(),
    })
}
