//! Judgement of a driver by the support table: ended branches, open bulletins, floors of GPUs, exclusions; and the
//! driver that `auto` chooses by it.

use super::gpu::{self, Unfit};
use super::values::{Choice, Inputs};
use crate::config::{Config, Reaction};
use longshore_core::driver_version::DriverVersion;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::flavour::Flavour;
use longshore_core::pci_id::PciId;
use longshore_host::HostFacts;
use longshore_host::facts::DeviceKind;
use longshore_support::{
    Action, Branch, BranchKind, Chosen, Exclusion, Floor, OpenBulletin, Standing, Traits,
};

/// Number of bulletins that a finding names.
const NAMED: usize = 3;

/// Traits of a host, with what they are taken from.
struct HostTraits<'a> {
    facts: &'a HostFacts,
    gpus: Vec<u16>,
    nics: Vec<PciId>,
}

impl<'a> HostTraits<'a> {
    fn from_facts(facts: &'a HostFacts) -> Self {
        let gpus = facts.devices.iter().filter(|device| device.kind == DeviceKind::Gpu);
        Self {
            facts,
            gpus: gpus.map(|device| device.device).collect(),
            nics: facts.network_cards.iter().copied().collect(),
        }
    }

    fn traits(&self) -> Traits<'_> {
        Traits {
            gpus: &self.gpus,
            nics: &self.nics,
            kernel: &self.facts.kernel.release,
            cloud: self.facts.cloud.as_deref(),
        }
    }
}

/// Returns the standing of a version and flavour on the host.
fn standing<'a>(
    config: &'a Config,
    facts: &HostFacts,
    version: &str,
    flavour: Flavour,
) -> Standing<'a> {
    let table = config.support.table.as_ref();
    let host = HostTraits::from_facts(facts);
    let mut standing = Standing {
        ended: facts.today.and_then(|today| table.ended(version, today)),
        open: table.open_bulletins(version),
        floors: table.floors(version, &host.gpus),
        exclusions: table.exclusions(version, flavour, host.traits()),
        unlisted: table.unlisted(version, &host.gpus),
    };
    // A floor of the GPU says it with a source.
    standing.unlisted.retain(|(gpu, _)| standing.floors.iter().all(|(other, _)| other != gpu));
    standing
}

/// Chooses among offered versions and flavours by the table.
pub(super) fn choose<'c>(
    config: &Config,
    facts: &HostFacts,
    offered: &[(&'c str, Flavour)],
) -> Option<Chosen<'c>> {
    let host = HostTraits::from_facts(facts);
    // Without a day no branch has ended.
    let today = facts.today.unwrap_or_default();
    longshore_support::choose(&config.support.table, offered, host.traits(), today)
}

/// Checks that no floor of a GPU and no exclusion of the table refuses a driver.
///
/// # Errors
/// Names the device or host, the reason with its source, and what to select.
pub(super) fn refusal(
    config: &Config,
    facts: &HostFacts,
    version: &str,
    flavour: Flavour,
) -> Result<(), (String, Unfit)> {
    let standing = standing(config, facts, version, flavour);
    if let Some((gpu, floor)) = standing.floors.first() {
        let (why, remedy) = of_floor(version, floor);
        return Err((device(*gpu), Unfit { code: Code::GpuNeedsDriver, why, remedy }));
    }
    match standing.exclusions.iter().find(|row| row.action == Action::Refuse) {
        Some(row) => {
            let (why, remedy) = of_exclusion(row);
            let unfit = Unfit { code: Code::DriverExcluded, why, remedy };
            Err((format!("driver {version}"), unfit))
        }
        None => Ok(()),
    }
}

/// Returns an exclusion that warns of a version in this flavour and not in the other, of which no more rows warn.
pub(super) fn warned_more<'a>(
    config: &'a Config,
    facts: &HostFacts,
    version: &str,
    flavour: Flavour,
) -> Option<&'a Exclusion> {
    let host = HostTraits::from_facts(facts);
    let of = |flavour| config.support.table.exclusions(version, flavour, host.traits());
    let (rows, others) = (of(flavour), of(gpu::other(flavour)));
    let row = rows.iter().copied().find(|row| !others.contains(row));
    row.filter(|_| rows.len() > others.len())
}

/// Returns the findings about the chosen driver, and about rules that contradict each other.
pub(super) fn findings(inputs: Inputs<'_>, choice: &Choice) -> Vec<Finding> {
    let Inputs { config, facts, .. } = inputs;
    if let Err(conflict) = config.rule_for(&facts.devices) {
        return vec![Finding::refusal(Code::DriverRulesConflict, conflict.detail)];
    }
    let Choice { version, flavour, live, .. } = choice;
    let standing = match DriverVersion::parse(version) {
        Some(_) => standing(config, facts, version, *flavour),
        // A branch, of which no version is known: its support alone is.
        None => {
            let ended = facts.today.and_then(|today| config.support.table.ended(version, today));
            Standing { ended, ..Standing::default() }
        }
    };
    let policy = |reaction: Reaction| match reaction {
        // A table that was updated must not take a driver from the programs that use it.
        Reaction::Refuse if !live => Severity::Refusal,
        _ => Severity::Warning,
    };
    let mut found = Vec::new();
    if let Some(ended) = &standing.ended {
        let source = ended.branch.map(|branch| format!(" ({})", branch.provenance()));
        let detail = format!("driver {version}: {ended}{}", source.unwrap_or_default());
        let finding = Finding::new(policy(config.support.ended), Code::DriverEnded, detail);
        found.push(with_supported(finding, version, config, facts));
    }
    if !standing.open.is_empty() {
        let severity = policy(config.support.vulnerable);
        let detail = of_bulletins(version, &standing.open);
        let finding = Finding::new(severity, Code::DriverVulnerable, detail);
        found.push(match all_fixed_in(&standing.open) {
            Some(fixed) => {
                finding.remedy(format!("select driver {fixed} or a newer one of its branch"))
            }
            None => with_supported(finding, version, config, facts),
        });
    }
    let has_finding = |code: Code| choice.findings.iter().any(|finding| finding.code == code);
    let of_gpu = [Code::GpuNeedsDriver, Code::GpuUnsupported, Code::GpuTooOld];
    if !of_gpu.into_iter().any(has_finding) {
        found.extend(standing.floors.iter().map(|(gpu, floor)| {
            let (why, remedy) = of_floor(version, floor);
            let severity = if *live { Severity::Warning } else { Severity::Refusal };
            let seen = format!("{}: {why}", device(*gpu));
            Finding::new(severity, Code::GpuNeedsDriver, seen).remedy(remedy)
        }));
        found.extend(standing.unlisted.iter().map(|(gpu, row)| {
            let first = row.first.as_deref().unwrap_or_default();
            let seen = format!(
                "{}: {} is in the list of driver {first}, and in none of a branch before it that was examined",
                device(*gpu),
                row.name
            );
            let remedy = format!("select driver {first} or newer");
            Finding::warning(Code::GpuNeedsDriver, seen).remedy(remedy)
        }));
    }
    if !has_finding(Code::DriverExcluded) {
        found.extend(standing.exclusions.iter().map(|row| {
            let (why, remedy) = of_exclusion(row);
            let severity = match row.action {
                Action::Refuse if !live => Severity::Refusal,
                _ => Severity::Warning,
            };
            let seen = format!("driver {version}: {why}");
            Finding::new(severity, Code::DriverExcluded, seen).remedy(remedy)
        }));
    }
    found
}

fn device(gpu: u16) -> String {
    format!("GPU 10de:{gpu:04x}")
}

fn of_floor(version: &str, floor: &Floor) -> (String, String) {
    let Floor { why, version: oldest, .. } = floor;
    let why = format!("{why}, and this is {version} ({})", floor.provenance());
    (why, format!("select driver {oldest} or newer"))
}

fn of_exclusion(row: &Exclusion) -> (String, String) {
    let versions = match (&row.from, &row.below) {
        (Some(from), Some(below)) => format!("older than {from}, or {below} or newer"),
        (Some(from), None) => format!("older than {from}"),
        (None, Some(below)) => format!("{below} or newer"),
        (None, None) => format!("other than {}", row.versions.join(", ")),
    };
    let flavours = match row.flavours.as_slice() {
        [flavour] => format!(", or another flavour than {flavour}"),
        _ => String::new(),
    };
    let why = format!("{} ({}; row {})", row.why, row.provenance(), row.id);
    (why, format!("select a driver {versions}{flavours}"))
}

fn of_bulletins(version: &str, open: &[OpenBulletin<'_>]) -> String {
    let named: Vec<String> = open.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match open.len().saturating_sub(NAMED) {
        0 => String::new(),
        1 => "; and 1 older bulletin".to_owned(),
        n => format!("; and {n} older bulletins"),
    };
    let source = open.first().map(|newest| format!(" ({})", newest.bulletin.provenance()));
    format!("driver {version}: {}{more}{}", named.join("; "), source.unwrap_or_default())
}

/// Returns the first version of the driver's own branch that fixes all of them; None where a bulletin has no fix for it.
fn all_fixed_in<'a>(open: &[OpenBulletin<'a>]) -> Option<&'a str> {
    let fixed: Option<Vec<&str>> = open.iter().map(|one| one.fixed_in).collect();
    fixed?.into_iter().max_by_key(|version| DriverVersion::new(version))
}

/// Gives a finding about a version the remedy that names the branches which are supported, fit every GPU, and have fixes
/// of all bulletins; its own is none of them.
fn with_supported(finding: Finding, version: &str, config: &Config, facts: &HostFacts) -> Finding {
    let (table, host) = (config.support.table.as_ref(), HostTraits::from_facts(facts));
    let Some(today) = facts.today else { return finding };
    let fits = |number| {
        let mut generations = host.gpus.iter().filter_map(|gpu| table.generation(*gpu));
        generations.all(|generation| generation.is_supported_by(number))
    };
    let mut supported: Vec<&Branch> = table.branches().iter().collect();
    supported.retain(|branch| {
        branch.kind != BranchKind::NewFeature
            && (branch.first_day..=branch.last_day).contains(&today)
            && fits(branch.number)
    });
    let own = DriverVersion::new(version).branch();
    let fixed = supported
        .iter()
        .filter(|branch| Some(branch.number) != own && !table.lacks_a_fix(branch.number));
    let named: Vec<String> = fixed
        .map(|branch| format!("{} ({}, until {})", branch.number, branch.kind, branch.last_day))
        .collect();
    match named.as_slice() {
        [] if !supported.is_empty() => finding.remedy(
            "no supported branch that has every GPU of this host has the fixes yet: select one as soon as a newer \
             support table names its fixed version",
        ),
        [] => finding.remedy("no supported branch has every GPU of this host: plan its replacement"),
        named if config.driver.auto => finding.remedy(format!(
            "add a source of a supported branch, {}: auto chooses among the versions that the sources have, and keeps \
             a loaded driver",
            named.join(" or ")
        )),
        named => finding.remedy(format!(
            "select a supported branch, {}, from a source that has it; `driver = \"auto\"` chooses among those \
             that the sources have",
            named.join(" or ")
        )),
    }
}
