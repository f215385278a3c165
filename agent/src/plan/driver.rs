//! Which driver version and flavour: what was asked for, what is live, what is at hand, and what
//! the GPUs can be driven by.

use std::cmp::Ordering;

use super::Reason;
use super::candidate::{
    Candidate, candidates, compare_versions, is_within, names_run_files, newest, offer, run_files,
};
use super::gpu::{self, Generation, Unfit};
use crate::catalog::Catalog;
use crate::catalog::Chip;
use crate::config::Config;
use crate::finding::{Code, Finding, Severity};
use crate::flavour::Flavour;
use crate::host::HostFacts;
use crate::host::facts::{DeviceKind, Known, PciDevice};
use crate::source::runfile::AvailableRunFile;

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

/// Chooses version and flavour.
pub(super) fn choose(config: &Config, facts: &HostFacts, catalog: &Catalog) -> Choice {
    let question = Question { config, facts, gpus: gpus(facts), run_files: run_files(catalog) };
    let candidates = candidates(config, facts, catalog);
    if let Some(choice) = question.adopt(&candidates) {
        return choice;
    }
    let matching: Vec<Candidate<'_>> =
        candidates.iter().copied().filter(|c| question.is_asked_for(c)).collect();
    let mut fitting: Vec<Candidate<'_>> =
        matching.iter().copied().filter(|c| question.fits(c.version, c.flavour).is_ok()).collect();
    // Where the kernel asks for signatures, what has one comes before what is newer.
    if fitting.iter().any(|c| c.loadable) {
        fitting.retain(|c| c.loadable);
    }
    fitting.sort_by(|a, b| compare_versions(b.version, a.version));
    match (fitting.first(), newest(&matching)) {
        (Some(best), _) => question.settle(best.version, &fitting, &matching),
        (None, Some(newest)) => question.refuse_gpu(newest),
        (None, None) => question.refuse_offer(&candidates, catalog),
    }
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
    run_files: &'a [AvailableRunFile],
}

impl Question<'_> {
    fn version_matches(&self, version: &str) -> bool {
        // Who names a .run file and no version wants the version of the file.
        let of_a_file = self.run_files.iter().any(|file| file.version == version);
        match self.config.driver.version.as_deref() {
            Some(wish) => is_within(version, wish),
            None => self.run_files.is_empty() || of_a_file,
        }
    }

    /// What the driver of a version says of a GPU, where that driver is of a .run file.
    fn said_of(&self, device: &PciDevice, version: &str) -> Option<&Chip> {
        let file = self.run_files.iter().find(|file| file.version == version)?;
        file.gpus.as_ref()?.chip(device.device)
    }

    /// Whether a GPU takes a flavour: by what the driver says, else by its generation; None where
    /// neither is known.
    fn takes(&self, gpu: Gpu<'_>, version: &str, flavour: Flavour) -> Option<bool> {
        let (device, generation) = gpu;
        let said = self.said_of(device, version).and_then(|chip| chip.takes(flavour));
        said.or_else(|| generation.map(|generation| generation.takes(flavour)))
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
            if let Some(chip) = self.said_of(device, version) {
                let fits = gpu::driver_says_it_fits(chip, version, flavour);
                fits.map_err(|unfit| (name_of(device), unfit))?;
                if chip.takes(flavour).is_some() {
                    continue;
                }
            }
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
        if fitting.iter().all(|c| c.loadable)
            && matching.iter().any(|c| !c.loadable && self.fits(c.version, c.flavour).is_ok())
        {
            why_version.push_str(" that the kernel may take the signature of");
        }
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
            let mut gpus = self.gpus.iter().copied();
            gpus.find(|gpu| self.takes(*gpu, version, flavour) == Some(false))
        };
        if let Some(gpu) = refuses(Flavour::Open) {
            let what = "which has no GPU System Processor for the open modules";
            return (Flavour::Proprietary, self.because_of(gpu, version, what));
        }
        if let Some(gpu) = refuses(Flavour::Proprietary) {
            return (Flavour::Open, self.because_of(gpu, version, "driven by open only"));
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

    /// A GPU and why it decides, by the driver's own list where that names it.
    fn because_of(&self, gpu: Gpu<'_>, version: &str, what: &str) -> String {
        let (device, generation) = gpu;
        let of_list = self.said_of(device, version).map(|chip| chip.name.clone());
        let by = if of_list.is_some() { " (supported-gpus.json)" } else { "" };
        let is = of_list.or_else(|| generation.map(|g| g.to_string())).unwrap_or_default();
        format!("{} is {is}, {what}{by}", name_of(device))
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
            return Finding::refusal(Code::GpuTooOld, seen);
        }
        let seen = format!("{device}: {}", unfit.why);
        Finding::refusal(Code::GpuUnsupported, seen).remedy(unfit.remedy.clone())
    }

    /// Nothing that was asked for is at hand, or nothing at all.
    fn refuse_offer(&self, candidates: &[Candidate<'_>], catalog: &Catalog) -> Choice {
        let wish = self.config.driver.version.clone().or_else(|| self.last_branch());
        let wish = wish.as_deref().unwrap_or("newest");
        let mut choice = self.unmet(wish, self.config.driver.flavour);
        if let Err((device, unfit)) = self.fits(&choice.version, choice.flavour) {
            choice.findings.push(self.unsupported(&device, &unfit));
        }
        let wanted = match self.config.driver.flavour {
            Some(flavour) => format!("driver {} {flavour}", choice.version),
            None => format!("driver {}", choice.version),
        };
        if !self.config.may_compile() {
            // Only built sets count then; that none is at hand is found with the modules.
            return choice;
        }
        if names_run_files(self.config, catalog) {
            choice.findings.push(no_run_file(&wanted, candidates, catalog));
            return choice;
        }
        choice.findings.push(match &catalog.drivers {
            // For a captured tree the sources are not at hand, and nothing is installed.
            Known::Unknown(why) => Finding::new(
                if self.config.paths.is_captured() { Severity::Warning } else { Severity::Refusal },
                Code::ArchivesUnread,
                format!("where {wanted} comes from is not known: {why}"),
            ),
            Known::Yes(_) if candidates.is_empty() => Finding::refusal(
                Code::DriverNotOffered,
                format!("{wanted} is wanted, and no source that was read has an NVIDIA driver"),
            )
            .remedy(
                "add an archive, suite or component that has one ([[archive]] in the configuration \
                 file, --archive-suite, --archive-component), or give a prebuilt set",
            ),
            Known::Yes(_) => Finding::refusal(
                Code::DriverNotOffered,
                format!("no source offers {wanted}; {}", offer(candidates)),
            ),
        });
        choice
    }

    /// The newest branch that drives every GPU, where support for one of them has ended.
    fn last_branch(&self) -> Option<String> {
        let last = self.gpus.iter().filter_map(|(_, generation)| (*generation)?.branches().1);
        last.min().map(|branch| branch.to_string())
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
            None if gpu::branch_of(version).is_some() => {
                "the newest branch that drives every GPU; which versions there are is not known"
            }
            None => "which versions there are is not known",
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

/// No .run file is of what is wanted, or what they are of could not be read.
fn no_run_file(wanted: &str, candidates: &[Candidate<'_>], catalog: &Catalog) -> Finding {
    match &catalog.run_files {
        Known::Unknown(why) => Finding::refusal(
            Code::RunFileUnread,
            format!("whether the .run files hold {wanted} is not known: {why}"),
        ),
        Known::Yes(_) => Finding::refusal(
            Code::DriverNotOffered,
            format!("no .run file named holds {wanted}; {}", offer(candidates)),
        )
        .remedy("ask for one of those, or name the .run file of the version that is wanted"),
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
