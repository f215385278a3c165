//! Which driver version and flavour: what was asked for, what is live, what is at hand, and what
//! the GPUs can be driven by.

use std::cmp::Ordering;

use super::gpu::{self, Generation, Unfit};
use super::{Finding, Reason};
use crate::artifact::Flavour;
use crate::catalog::{Catalog, SetAtHand, SetPlace};
use crate::config::Config;
use crate::host::HostFacts;
use crate::host::facts::{DeviceKind, Known, PciDevice};

/// What was chosen.
#[derive(Debug)]
pub(super) struct Choice {
    /// A version; or, where none is known, the branch or `newest` as it was asked for.
    pub(super) version: String,
    pub(super) flavour: Flavour,
    /// Whether the driver chosen is the one loaded now.
    pub(super) live: bool,
    pub(super) reasons: Vec<Reason>,
    pub(super) findings: Vec<Finding>,
}

/// Something that has a driver's modules or what they are compiled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate<'a> {
    version: &'a str,
    flavour: Flavour,
    from: Origin<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin<'a> {
    Store,
    Prebuilt,
    Archive { package: &'a str, suite: &'a str },
}

impl Origin<'_> {
    fn is_built(self) -> bool {
        !matches!(self, Self::Archive { .. })
    }

    fn describe(self) -> String {
        match self {
            Self::Store => "built in the store".into(),
            Self::Prebuilt => "built in a prebuilt directory".into(),
            Self::Archive { package, suite } => format!("{package} in {suite}"),
        }
    }
}

/// Chooses version and flavour.
pub(super) fn choose(config: &Config, facts: &HostFacts, catalog: &Catalog) -> Choice {
    let question = Question { config, facts, gpus: gpus(facts) };
    let candidates = candidates(config, facts, catalog);
    if let Some(choice) = question.adopt(&candidates) {
        return choice;
    }
    let matching: Vec<Candidate<'_>> =
        candidates.iter().copied().filter(|c| question.is_asked_for(c)).collect();
    let mut fitting: Vec<Candidate<'_>> =
        matching.iter().copied().filter(|c| question.fits(c.version, c.flavour).is_ok()).collect();
    fitting.sort_by(|a, b| compare_versions(b.version, a.version));
    match (fitting.first(), newest(&matching)) {
        (Some(best), _) => question.settle(best.version, &fitting, &matching),
        (None, Some(newest)) => question.refuse_gpu(newest),
        (None, None) => question.refuse_offer(&candidates, catalog),
    }
}

/// A set that was built for exactly the running kernel.
pub(super) fn is_for_kernel(at_hand: &SetAtHand, facts: &HostFacts) -> bool {
    let (key, kernel) = (&at_hand.set.key, &facts.kernel);
    key.kernel_release == kernel.release
        && key.kernel_version == kernel.version
        && key.arch == kernel.arch
}

fn candidates<'a>(config: &Config, facts: &HostFacts, catalog: &'a Catalog) -> Vec<Candidate<'a>> {
    let sets = catalog.sets.iter().filter(|s| is_for_kernel(s, facts)).map(|s| Candidate {
        version: &s.set.key.driver_version,
        flavour: s.set.key.flavour,
        from: match s.place {
            SetPlace::Store => Origin::Store,
            SetPlace::Layout { .. } => Origin::Prebuilt,
        },
    });
    let offered = match &catalog.drivers {
        Known::Yes(drivers) if config.compile => drivers.as_slice(),
        _ => &[],
    };
    let offered = offered.iter().map(|d| Candidate {
        version: &d.version,
        flavour: d.flavour,
        from: Origin::Archive { package: &d.package, suite: &d.suite },
    });
    sets.chain(offered).collect()
}

fn newest<'a>(candidates: &[Candidate<'a>]) -> Option<Candidate<'a>> {
    candidates.iter().copied().max_by(|a, b| compare_versions(a.version, b.version))
}

/// A GPU with its generation, where that is known.
type Gpu<'a> = (&'a PciDevice, Option<Generation>);

fn gpus(facts: &HostFacts) -> Vec<Gpu<'_>> {
    let gpus = facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
    gpus.map(|d| (d, gpu::generation_of(d.device))).collect()
}

/// What the choice is made from, but for what is at hand.
struct Question<'a> {
    config: &'a Config,
    facts: &'a HostFacts,
    gpus: Vec<Gpu<'a>>,
}

impl Question<'_> {
    fn version_matches(&self, version: &str) -> bool {
        self.config.driver.version.as_deref().is_none_or(|wish| is_within(version, wish))
    }

    fn flavour_matches(&self, flavour: Flavour) -> bool {
        self.config.driver.flavour.is_none_or(|wish| wish == flavour)
    }

    fn is_asked_for(&self, candidate: &Candidate<'_>) -> bool {
        self.version_matches(candidate.version) && self.flavour_matches(candidate.flavour)
    }

    /// Whether every GPU can be driven; the first that cannot, and why.
    fn fits(&self, version: &str, flavour: Flavour) -> Result<(), (String, Unfit)> {
        let Some(branch) = gpu::branch_of(version) else { return Ok(()) };
        for (device, generation) in &self.gpus {
            let Some(generation) = *generation else { continue };
            gpu::branch_fits(generation, branch)
                .and_then(|()| gpu::flavour_fits(generation, branch, flavour))
                .map_err(|unfit| (name_of(device), unfit))?;
        }
        Ok(())
    }

    /// The driver loaded now, where it is one that was asked for: nothing need be unloaded.
    fn adopt(&self, candidates: &[Candidate<'_>]) -> Option<Choice> {
        let live = self.facts.live_driver.as_ref()?;
        if !self.version_matches(&live.version) {
            return None;
        }
        let flavour = live.flavour.or(self.config.driver.flavour);
        let flavour = flavour.unwrap_or_else(|| self.preferred(&live.version).0);
        if !self.flavour_matches(flavour) || self.fits(&live.version, flavour).is_err() {
            return None;
        }
        let newer = newest(candidates)
            .filter(|c| compare_versions(c.version, &live.version) == Ordering::Greater)
            .filter(|c| self.is_asked_for(c));
        let also = newer.map_or_else(String::new, |c| {
            format!("; {} is to be had: ask for it by version to change to it", c.version)
        });
        Some(Choice {
            reasons: vec![
                reason(
                    format!("driver {}", live.version),
                    format!("adopted: live in the kernel already{also}"),
                ),
                reason(format!("flavour {flavour}"), "the live driver's"),
            ],
            version: live.version.clone(),
            flavour,
            live: true,
            findings: Vec::new(),
        })
    }

    fn settle(
        &self,
        version: &str,
        fitting: &[Candidate<'_>],
        matching: &[Candidate<'_>],
    ) -> Choice {
        let same: Vec<Candidate<'_>> =
            fitting.iter().copied().filter(|c| c.version == version).collect();
        let (flavour, why) = self.flavour_of(version, &same);
        let from = same.iter().find(|c| c.flavour == flavour).map(|c| c.from.describe());
        let mut why_version = match &self.config.driver.version {
            Some(wish) if wish == version => "asked for".to_owned(),
            Some(wish) => format!("newest at hand within {wish}"),
            None => "newest at hand".to_owned(),
        };
        if let Some(passed) = newest(matching).filter(|c| c.version != version)
            && let Err((device, unfit)) = self.fits(passed.version, passed.flavour)
        {
            why_version.push_str(&format!(
                " that drives every GPU ({} does not: {device}: {})",
                passed.version, unfit.why
            ));
        }
        if let Some(from) = from {
            why_version.push_str(&format!("; {from}"));
        }
        Choice {
            reasons: vec![
                reason(format!("driver {version}"), why_version),
                reason(format!("flavour {flavour}"), why),
            ],
            version: version.to_owned(),
            flavour,
            live: false,
            findings: Vec::new(),
        }
    }

    /// One of the flavours `same` has, all of which fit.
    fn flavour_of(&self, version: &str, same: &[Candidate<'_>]) -> (Flavour, String) {
        if let Some(wish) = self.config.driver.flavour {
            return (wish, "asked for".into());
        }
        let (preferred, why) = self.preferred(version);
        let other = other(preferred);
        let has = |flavour, built: bool| {
            same.iter().any(|c| c.flavour == flavour && (!built || c.from.is_built()))
        };
        if !has(preferred, false) {
            return (
                other,
                format!("auto: only {other} is at hand ({preferred} preferred: {why})"),
            );
        }
        if !has(preferred, true) && has(other, true) {
            return (
                other,
                format!("auto: built for this kernel already ({preferred} preferred: {why})"),
            );
        }
        (preferred, format!("auto: {why}"))
    }

    /// The flavour auto prefers for a version, and why.
    fn preferred(&self, version: &str) -> (Flavour, String) {
        let refuses = |flavour| {
            let gpus = self.gpus.iter();
            gpus.filter_map(|(d, g)| Some((*d, (*g)?))).find(|(_, g)| !g.takes(flavour))
        };
        if let Some((device, generation)) = refuses(Flavour::Open) {
            let why = format!(
                "{} is {generation}, which has no GPU System Processor for the open modules",
                name_of(device)
            );
            return (Flavour::Proprietary, why);
        }
        if let Some((device, generation)) = refuses(Flavour::Proprietary) {
            let why = format!("{} is {generation}, driven by open only", name_of(device));
            return (Flavour::Open, why);
        }
        let since = gpu::OPEN_RECOMMENDED_BRANCH;
        match gpu::branch_of(version) {
            Some(branch) if branch < since => (
                Flavour::Proprietary,
                format!("NVIDIA recommends proprietary before branch {since}"),
            ),
            _ => (
                Flavour::Open,
                format!("NVIDIA recommends open from branch {since} on, and every GPU takes it"),
            ),
        }
    }

    /// Something matches, and no GPU-fitting flavour of it.
    fn refuse_gpu(&self, newest: Candidate<'_>) -> Choice {
        let mut choice = self.unmet(newest.version, Some(newest.flavour));
        if let Err((device, unfit)) = self.fits(newest.version, newest.flavour) {
            choice.findings.push(self.unsupported(&device, &unfit));
        }
        choice
    }

    fn unsupported(&self, device: &str, unfit: &Unfit) -> Finding {
        let too_old = self.gpus.iter().any(|(_, g)| *g == Some(Generation::Fermi));
        if too_old {
            let seen = format!("{device}: {}", unfit.why);
            return Finding::refusal(
                "gpu-too-old",
                seen,
                "longshore installs branch 470 and newer",
            );
        }
        let seen = format!("{device}: {}", unfit.why);
        Finding::refusal("gpu-unsupported", seen, unfit.remedy.clone())
    }

    /// Nothing that was asked for is at hand, or nothing at all.
    fn refuse_offer(&self, candidates: &[Candidate<'_>], catalog: &Catalog) -> Choice {
        let wish = self.config.driver.version.as_deref();
        let mut choice = self.unmet(wish.unwrap_or("newest"), self.config.driver.flavour);
        if let Err((device, unfit)) = self.fits(&choice.version, choice.flavour) {
            choice.findings.push(self.unsupported(&device, &unfit));
        }
        let wanted = match self.config.driver.flavour {
            Some(flavour) => format!("driver {} {flavour}", choice.version),
            None => format!("driver {}", choice.version),
        };
        if !self.config.compile {
            // Only built sets count then; that none is at hand is found with the modules.
            return choice;
        }
        choice.findings.push(match &catalog.drivers {
            Known::Unknown(why) => Finding::refusal(
                "archives-unread",
                format!("where {wanted} comes from is not known: {why}"),
                "make an archive reachable, or give a prebuilt set for this kernel",
            ),
            Known::Yes(_) => Finding::refusal(
                "driver-not-offered",
                format!("no source offers {wanted}; {}", offer(candidates)),
                "ask for one of those, or add an archive, suite or component that has it",
            ),
        });
        choice
    }

    /// A choice that cannot be carried out; the findings say why.
    fn unmet(&self, version: &str, flavour: Option<Flavour>) -> Choice {
        let (preferred, why) = self.preferred(version);
        let (flavour, why) = match (self.config.driver.flavour, flavour) {
            (Some(asked), _) => (asked, "asked for".to_owned()),
            (None, Some(only)) if only != preferred => {
                (only, format!("auto: only {only} is at hand"))
            }
            _ => (preferred, format!("auto: {why}")),
        };
        let why_version = match self.config.driver.version {
            Some(_) => "asked for",
            None => "newest at hand",
        };
        Choice {
            version: version.to_owned(),
            flavour,
            live: false,
            reasons: vec![
                reason(format!("driver {version}"), why_version),
                reason(format!("flavour {flavour}"), why),
            ],
            findings: Vec::new(),
        }
    }
}

fn offer(candidates: &[Candidate<'_>]) -> String {
    let mut offered: Vec<String> =
        candidates.iter().map(|c| format!("{} {}", c.version, c.flavour)).collect();
    offered.sort();
    offered.dedup();
    if offered.is_empty() {
        "they offer none".into()
    } else {
        format!("they offer {}", offered.join(", "))
    }
}

fn reason(what: impl Into<String>, why: impl Into<String>) -> Reason {
    Reason { what: what.into(), why: why.into() }
}

fn other(flavour: Flavour) -> Flavour {
    match flavour {
        Flavour::Open => Flavour::Proprietary,
        Flavour::Proprietary => Flavour::Open,
    }
}

/// A device as a person finds it: address, ids.
pub(super) fn name_of(device: &PciDevice) -> String {
    format!("{} (10de:{:04x})", device.address, device.device)
}

/// Whether `version` is `wish` or within its branch: 535.261.03 is within 535 and 535.261.
fn is_within(version: &str, wish: &str) -> bool {
    version.strip_prefix(wish).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Compares two versions number by number.
fn compare_versions(a: &str, b: &str) -> Ordering {
    let numbers = |v: &str| -> Vec<u64> { v.split('.').map(|n| n.parse().unwrap_or(0)).collect() };
    numbers(a).cmp(&numbers(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("535.261.03", "535", true)]
    #[case("535.261.03", "535.261", true)]
    #[case("535.261.03", "535.261.03", true)]
    #[case("535.261.03", "53", false)]
    #[case("535.261.03", "535.26", false)]
    #[case("535", "535.261.03", false)]
    fn within(#[case] version: &str, #[case] wish: &str, #[case] wanted: bool) {
        assert_eq!(is_within(version, wish), wanted);
    }

    #[rstest]
    #[case("535.261.03", "550.163.01", Ordering::Less)]
    #[case("535.99", "535.261.03", Ordering::Less)]
    #[case("535.261.03", "535.261.3", Ordering::Less)]
    #[case("535.261", "535.261", Ordering::Equal)]
    fn order(#[case] a: &str, #[case] b: &str, #[case] wanted: Ordering) {
        assert_eq!(compare_versions(a, b), wanted);
    }
}
