//! Selection of driver version and flavour from the configuration, the loaded driver, the available
//! candidates and the GPUs.

use std::cmp::Reverse;

use super::candidate::{Candidate, below_minimum, candidates, newest, offer};
use super::gpu::{self, Unfit};
use super::support;
use super::values::{Choice, Inputs, name_of, names_run_files, run_files, unread_sources};
use crate::catalog::{Catalog, Chip};
use crate::config::Config;
use longshore_core::driver_version::DriverVersion;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::flavour::Flavour;
use longshore_host::HostFacts;
use longshore_host::facts::{DeviceKind, PciDevice, Probe};
use longshore_sources::runfile::AvailableRunFile;
use longshore_support::{Chosen, Generation, SupportTable};

/// Selects version and flavour.
pub(super) fn choose(inputs: Inputs<'_>) -> Choice {
    let Inputs { config, facts, catalog } = inputs;
    let table = config.support.table.as_ref();
    let gpus = gpus(facts, table);
    let question = Question { config, facts, table, gpus, run_files: run_files(catalog) };
    let candidates = candidates(inputs);
    if let Some(choice) = question.adopt(&candidates) {
        return choice;
    }
    let matching: Vec<Candidate<'_>> =
        candidates.iter().copied().filter(|c| question.is_asked_for(c)).collect();
    let mut fitting: Vec<Candidate<'_>> =
        matching.iter().copied().filter(|c| question.suits(c.version, c.flavour).is_ok()).collect();
    // Signed candidates come before newer ones if the kernel requires signatures.
    if fitting.iter().any(|c| c.loadable) {
        fitting.retain(|c| c.loadable);
    }
    let left_out = question.leave_out_added(&mut fitting, &catalog.apt.unread);
    fitting.sort_by_key(|candidate| Reverse(DriverVersion::new(candidate.version)));
    let by_table = question.by_table(&fitting);
    let best = by_table.as_ref().map(|chosen| chosen.version);
    match (best.or(fitting.first().map(|newest| newest.version)), newest(&matching)) {
        (Some(version), _) => {
            let by_table = by_table.map(|chosen| chosen.reason);
            question.choose(
                version,
                by_table,
                Offered { fitting: &fitting, matching: &matching, left_out },
            )
        }
        (None, Some(newest)) => question.refuse_gpu(question.nearest(newest, &matching)),
        (None, None) => question.refuse_offer(&candidates, catalog),
    }
}

/// Reason for the open modules of a GPU that no table has.
const UNKNOWN_GPU: &str =
    "is newer than longshore's table, and NVIDIA supports new GPUs by the open modules alone";

/// A GPU with its generation, where that is known.
type Gpu<'a> = (&'a PciDevice, Option<&'a Generation>);

fn gpus<'a>(facts: &'a HostFacts, table: &'a SupportTable) -> Vec<Gpu<'a>> {
    let gpus = facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
    gpus.map(|d| (d, table.generation(d.device))).collect()
}

/// Candidates that a version is chosen from.
#[derive(Clone, Copy)]
struct Offered<'a> {
    /// Those that suit the host.
    fitting: &'a [Candidate<'a>],
    /// Those that the request matches.
    matching: &'a [Candidate<'a>],
    /// Newest one that was left out because its source was added for other packages.
    left_out: Option<Candidate<'a>>,
}

/// Inputs of the selection, except the candidates.
struct Question<'a> {
    config: &'a Config,
    facts: &'a HostFacts,
    table: &'a SupportTable,
    gpus: Vec<Gpu<'a>>,
    run_files: &'a [AvailableRunFile],
}

impl<'a> Question<'a> {
    fn version_matches(&self, version: &str) -> bool {
        self.config.driver.permits(version) && self.is_requested(version)
    }

    fn is_requested(&self, version: &str) -> bool {
        // A .run file without a configured version selects the file's version.
        let of_a_file = self.run_files.iter().any(|file| file.version == version);
        match self.config.driver.version.as_deref() {
            Some(requested) => DriverVersion::new(version).is_within(requested),
            None => self.run_files.is_empty() || of_a_file,
        }
    }

    /// Returns what a .run file's driver of this version lists for a GPU.
    fn said_of(&self, device: &PciDevice, version: &str) -> Option<&Chip> {
        let file = self.run_files.iter().find(|file| file.version == version)?;
        file.gpus.as_ref()?.chip(device.device)
    }

    /// Reports if a GPU supports a flavour: by the driver's own list, else by its generation; None
    /// where neither is known.
    fn takes(&self, gpu: Gpu<'a>, version: &str, flavour: Flavour) -> Option<bool> {
        let (device, generation) = gpu;
        let said = self.said_of(device, version).and_then(|chip| chip.takes(flavour));
        said.or_else(|| generation.map(|generation| generation.takes(flavour)))
    }

    fn flavour_matches(&self, flavour: Flavour) -> bool {
        self.config.driver.flavour.is_none_or(|requested| requested == flavour)
    }

    fn is_asked_for(&self, candidate: &Candidate<'_>) -> bool {
        self.version_matches(candidate.version) && self.flavour_matches(candidate.flavour)
    }

    /// Checks that every GPU is supported; names the first that is not, and why.
    fn fits(&self, version: &str, flavour: Flavour) -> Result<(), (String, Unfit)> {
        let Some(branch) = DriverVersion::new(version).branch() else { return Ok(()) };
        for (device, generation) in &self.gpus {
            if let Some(chip) = self.said_of(device, version) {
                let fits = gpu::driver_says_it_fits(chip, version, flavour);
                fits.map_err(|unfit| (name_of(device), unfit))?;
                if chip.takes(flavour).is_some() {
                    continue;
                }
            }
            let Some(generation) = generation else { continue };
            gpu::branch_fits(generation, branch)
                .and_then(|()| gpu::flavour_fits(generation, branch, flavour))
                .map_err(|unfit| (name_of(device), unfit))?;
        }
        Ok(())
    }

    /// Checks a driver that is to be chosen: as [`Question::fits`], and for a GPU that neither the driver's own list
    /// nor longshore's table has, that its modules are open ones. Such a GPU is newer than the table, and NVIDIA
    /// supports new GPUs since Blackwell by the open modules alone. A configured flavour counts more. Floors of GPUs and
    /// exclusions of the table count as well.
    fn suits(&self, version: &str, flavour: Flavour) -> Result<(), (String, Unfit)> {
        self.fits(version, flavour)?;
        support::refusal(self.config, self.facts, version, flavour)?;
        match self.unknown_gpu(version) {
            Some(device)
                if flavour == Flavour::Proprietary && self.config.driver.flavour.is_none() =>
            {
                let unfit = Unfit {
                    code: Code::GpuUnsupported,
                    why: format!(
                        "{UNKNOWN_GPU}, and driver {version} has the proprietary modules alone"
                    ),
                    remedy:
                        "add a source with a newer driver and its open modules, or select flavour \
                             proprietary to try these"
                            .to_owned(),
                };
                Err((name_of(device), unfit))
            }
            _ => Ok(()),
        }
    }

    /// Returns a GPU that neither the driver's own list nor longshore's table has.
    fn unknown_gpu(&self, version: &str) -> Option<&PciDevice> {
        let unknown = |(device, generation): &&Gpu<'_>| {
            generation.is_none() && self.said_of(device, version).is_none()
        };
        self.gpus.iter().find(unknown).map(|(device, _)| *device)
    }

    /// Selects the loaded driver, where it matches the request: nothing need be unloaded.
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
            .filter(|c| DriverVersion::new(c.version) > DriverVersion::new(&live.version))
            .filter(|c| self.is_asked_for(c));
        let also = newer.map_or_else(String::new, |c| {
            format!("; {} is available: select it by version to change to it", c.version)
        });
        let why = format!("adopted: loaded in the kernel already{also}");
        let choice = Choice::new((&live.version, why), (flavour, "that of the loaded driver"));
        Some(Choice { live: true, ..choice })
    }

    /// Leaves out the drivers of the host's flat sources where no version is wished and another archive has
    /// one: a source that was added for other packages must not change the driver. With `unread` sources, one of which
    /// may be the distribution's, a built set counts as well. Returns the newest of them.
    fn leave_out_added<'c>(
        &self,
        fitting: &mut Vec<Candidate<'c>>,
        unread: &[String],
    ) -> Option<Candidate<'c>> {
        let is_own = |c: &Candidate<'_>| match c.from.is_package() {
            true => !c.is_added,
            false => !unread.is_empty(),
        };
        let driver = &self.config.driver;
        if driver.version.is_some() || driver.auto || !fitting.iter().any(is_own) {
            return None;
        }
        let (flat, others): (Vec<_>, Vec<_>) = fitting.drain(..).partition(|c| c.is_added);
        *fitting = others;
        newest(&flat)
    }

    /// Returns the driver that `auto` chooses, where the configuration asks for that.
    fn by_table<'c>(&self, fitting: &[Candidate<'c>]) -> Option<Chosen<'c>> {
        if !self.config.driver.auto {
            return None;
        }
        let offered: Vec<(&'c str, Flavour)> =
            fitting.iter().map(|candidate| (candidate.version, candidate.flavour)).collect();
        support::choose(self.config, self.facts, &offered)
    }

    fn choose(&self, version: &str, by_table: Option<String>, offered: Offered<'_>) -> Choice {
        let Offered { fitting, matching, left_out } = offered;
        let is_by_table = by_table.is_some();
        let same: Vec<Candidate<'_>> =
            fitting.iter().copied().filter(|c| c.version == version).collect();
        let (flavour, why) = self.flavour_of(version, &same);
        let from = same.iter().find(|c| c.flavour == flavour).map(|c| c.from.describe());
        let mut why_version = match (by_table, &self.config.driver.version) {
            (Some(reason), _) => reason,
            (None, Some(requested)) if requested == version => "asked for".to_owned(),
            (None, Some(requested)) => format!("newest available within {requested}"),
            (None, None) => "newest available".to_owned(),
        };
        if fitting.iter().all(|c| c.loadable)
            && matching.iter().any(|c| !c.loadable && self.suits(c.version, c.flavour).is_ok())
        {
            why_version.push_str(" with a signature that the kernel may accept");
        }
        if !is_by_table
            && let Some(passed) = newest(matching).filter(|c| c.version != version)
            && let Err((device, unfit)) = self.suits(passed.version, passed.flavour)
        {
            why_version.push_str(&format!(
                " that supports every GPU ({} does not: {device}: {})",
                passed.version, unfit.why
            ));
        }
        if let Ok(Some(rule)) = self.config.rule_for(&self.facts.devices) {
            why_version.push_str(&format!(" (rule for {})", rule.gpu));
        }
        if let Some(from) = from {
            why_version.push_str(&format!("; {from}"));
        }
        let is_newer =
            |c: &Candidate<'_>| DriverVersion::new(c.version) > DriverVersion::new(version);
        if let Some(flat) = left_out.filter(is_newer) {
            why_version.push_str(&format!(
                "; {} is in a flat source of the host ({}), which is used where its version or branch is \
                 named",
                flat.version,
                flat.from.describe()
            ));
        }
        Choice::new((version, why_version), (flavour, why))
    }

    /// Selects one of the flavours of `same`, all of which fit.
    fn flavour_of(&self, version: &str, same: &[Candidate<'_>]) -> (Flavour, String) {
        if let Some(requested) = self.config.driver.flavour {
            return (requested, "asked for".into());
        }
        let (preferred, why) = self.preferred(version);
        let other = gpu::other(preferred);
        let has = |flavour, built: bool| {
            same.iter().any(|c| c.flavour == flavour && (!built || c.from.is_built()))
        };
        if !has(preferred, false) {
            let only = format!("auto: only {other} is available ({preferred} preferred: {why})");
            return (other, only);
        }
        if !has(preferred, true) && has(other, true) {
            let built = "built for this kernel already";
            return (other, format!("auto: {built} ({preferred} preferred: {why})"));
        }
        (preferred, format!("auto: {why}"))
    }

    /// Returns the flavour that auto prefers for a version, and why.
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
            return (Flavour::Open, self.because_of(gpu, version, "supported by open only"));
        }
        if let Some(device) = self.unknown_gpu(version) {
            return (Flavour::Open, format!("{} {UNKNOWN_GPU}", name_of(device)));
        }
        match (DriverVersion::new(version).branch(), self.table.open_recommended_branch()) {
            (Some(branch), Some(since)) if branch < since => (
                Flavour::Proprietary,
                format!("NVIDIA recommends proprietary before branch {since}"),
            ),
            (_, Some(since)) => (
                Flavour::Open,
                format!("NVIDIA recommends open from branch {since} on, and every GPU supports it"),
            ),
            (_, None) => (Flavour::Open, "every GPU supports it".to_owned()),
        }
    }

    /// Formats the GPU that decides and why, by the driver's own list where that names it.
    fn because_of(&self, gpu: Gpu<'_>, version: &str, what: &str) -> String {
        let (device, generation) = gpu;
        let of_list = self.said_of(device, version).map(|chip| chip.name.clone());
        let by = if of_list.is_some() { " (supported-gpus.json)" } else { "" };
        let is = of_list.or_else(|| generation.map(|g| g.to_string())).unwrap_or_default();
        format!("{} is {is}, {what}{by}", name_of(device))
    }

    /// Returns the candidate of the same version whose flavour suits the GPUs best: its refusal names the cause.
    fn nearest<'c>(&self, newest: Candidate<'c>, matching: &[Candidate<'c>]) -> Candidate<'c> {
        let (preferred, _) = self.preferred(newest.version);
        let is_nearest = |c: &&Candidate<'c>| c.version == newest.version && c.flavour == preferred;
        matching.iter().find(is_nearest).copied().unwrap_or(newest)
    }

    /// Refuses: candidates match, but none has a flavour that fits the GPUs.
    fn refuse_gpu(&self, newest: Candidate<'_>) -> Choice {
        let mut choice = self.unmet(newest.version, Some(newest.flavour));
        if let Err((device, unfit)) = self.suits(newest.version, newest.flavour) {
            choice.findings.push(self.unsupported(&device, &unfit));
        }
        choice
    }

    fn unsupported(&self, device: &str, unfit: &Unfit) -> Finding {
        let too_old = self.gpus.iter().any(|(_, generation)| generation.is_some_and(|g| g.too_old));
        let seen = format!("{device}: {}", unfit.why);
        match too_old {
            true => Finding::refusal(Code::GpuTooOld, seen),
            false => Finding::refusal(unfit.code, seen).remedy(unfit.remedy.clone()),
        }
    }

    /// Refuses: no candidate matches the request, or there are none.
    fn refuse_offer(&self, candidates: &[Candidate<'_>], catalog: &Catalog) -> Choice {
        let requested = self.config.driver.version.clone().or_else(|| self.last_branch());
        let requested = requested.as_deref().unwrap_or("newest");
        let mut choice = self.unmet(requested, self.config.driver.flavour);
        if let Err((device, unfit)) = self.fits(&choice.version, choice.flavour) {
            choice.findings.push(self.unsupported(&device, &unfit));
        }
        let is_requested =
            |c: &Candidate<'_>| self.is_requested(c.version) && self.flavour_matches(c.flavour);
        if let Some(below) = below_minimum(self.config, candidates, is_requested) {
            choice.findings.push(below);
            return choice;
        }
        let wanted = match self.config.driver.flavour {
            Some(flavour) => format!("driver {} {flavour}", choice.version),
            None => format!("driver {}", choice.version),
        };
        if !self.config.may_compile() {
            // Only built sets count then; the selection of modules reports that none is available.
            return choice;
        }
        if names_run_files(self.config, catalog) {
            choice.findings.push(no_run_file(&wanted, candidates, catalog));
            return choice;
        }
        let unread = unread_sources(catalog);
        choice.findings.push(match &catalog.drivers {
            Probe::Unreadable(why) => match catalog.definite_failure() {
                Some(failure) => {
                    Finding::refusal(Code::ArchivesUnread, format!("no source has {wanted}: {why}"))
                        .remedy(failure.remedy_or_default())
                }
                None => {
                    // A captured tree is judged on another machine, whose network is not the host's.
                    let is_captured = self.config.paths.is_captured();
                    let severity = if is_captured { Severity::Warning } else { Severity::Refusal };
                    let seen = format!("the sources of {wanted} could not be read: {why}");
                    Finding::new(severity, Code::ArchivesUnread, seen)
                }
            },
            Probe::Read(_) if candidates.is_empty() => Finding::refusal(
                Code::DriverNotOffered,
                format!("no source of {wanted}: none that was read has an NVIDIA driver{unread}"),
            )
            .remedy(
                "add an archive, suite or component that has one ([[archive]] in the configuration \
                 file, --archive-suite, --archive-component), or give a prebuilt set",
            ),
            Probe::Read(_) => Finding::refusal(
                Code::DriverNotOffered,
                format!("no source offers {wanted}; {}{unread}", offer(candidates)),
            ),
        });
        choice
    }

    /// Returns the newest branch that supports every GPU, where support for one of them has ended.
    fn last_branch(&self) -> Option<String> {
        let last = self.gpus.iter().filter_map(|(_, generation)| (*generation)?.last_branch);
        last.min().map(|branch| branch.to_string())
    }

    /// Returns a choice that cannot be carried out; the findings name the cause.
    fn unmet(&self, version: &str, flavour: Option<Flavour>) -> Choice {
        let (preferred, why) = self.preferred(version);
        let (flavour, why) = match (self.config.driver.flavour, flavour) {
            (Some(asked), _) => (asked, "asked for".to_owned()),
            (None, Some(only)) if only != preferred => {
                (only, format!("auto: only {only} is available"))
            }
            _ => (preferred, format!("auto: {why}")),
        };
        let why_version = match self.config.driver.version {
            Some(_) => "asked for",
            None if DriverVersion::new(version).branch().is_some() => {
                "the newest branch that supports every GPU; the available versions are unknown"
            }
            None => "the available versions are unknown",
        };
        Choice::new((version, why_version), (flavour, why))
    }
}

/// Returns the finding that no .run file has the requested version, or that none could be read.
fn no_run_file(wanted: &str, candidates: &[Candidate<'_>], catalog: &Catalog) -> Finding {
    match &catalog.run_files {
        Probe::Unreadable(why) => Finding::refusal(
            Code::RunFileUnread,
            format!("could not check the .run files for {wanted}: {why}"),
        ),
        Probe::Read(_) => Finding::refusal(
            Code::DriverNotOffered,
            format!("no configured .run file has {wanted}; {}", offer(candidates)),
        )
        .remedy("select one of those, or configure the .run file of the wanted version"),
    }
}
