//! Selection of driver version and flavour from the configuration, the loaded driver, the available
//! candidates and the GPUs.

use std::cmp::Reverse;

use super::candidate::{Candidate, candidates, newest};
use super::gpu::{self, Unfit};
use super::values::{Choice, Inputs, name_of, run_files};
use super::{support, user_mode};
use crate::catalog::Chip;
use crate::config::{Above, Config, DriverRule};
use longshore_core::driver_version::DriverVersion;
use longshore_core::finding::Code;
use longshore_core::flavour::Flavour;
use longshore_host::HostFacts;
use longshore_host::facts::{DeviceKind, PciDevice};
use longshore_sources::runfile::AvailableRunFile;
use longshore_sources::source_tree::SourceTree;
use longshore_support::{Chosen, Generation, SupportTable};

/// Selects version and flavour, of drivers whose user-mode files are available where that is needed and any has them.
pub(super) fn choose(inputs: Inputs<'_>, needs_user_mode: bool) -> Choice {
    let Inputs { config, facts, catalog } = inputs;
    let table = config.support.table.as_ref();
    let gpus = gpus(facts, table);
    let (run_files, trees) = (run_files(catalog), catalog.source_trees.as_slice());
    let question = Question { config, facts, table, gpus, run_files, trees };
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
    let bare = match needs_user_mode {
        true => leave_out_bare(inputs, &mut fitting),
        false => None,
    };
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
                Offered { fitting: &fitting, matching: &matching, left_out, bare },
            )
        }
        (None, Some(newest)) => question.refuse_gpu(question.nearest(newest, &matching)),
        (None, None) => question.refuse_offer(&candidates, catalog),
    }
}

/// Leaves out the drivers that a plan refuses because no source has their user-mode files, where another one is there.
/// Returns the newest of them.
fn leave_out_bare<'a>(
    inputs: Inputs<'_>,
    fitting: &mut Vec<Candidate<'a>>,
) -> Option<Candidate<'a>> {
    let is_whole = |c: &Candidate<'_>| user_mode::is_available(inputs, c.version, c.flavour);
    let (whole, bare): (Vec<_>, Vec<_>) = fitting.iter().copied().partition(is_whole);
    if whole.is_empty() {
        return None;
    }
    *fitting = whole;
    newest(&bare)
}

/// Reason for the open modules of a GPU that no table has.
const UNKNOWN_GPU: &str =
    "is newer than longshore's table, and NVIDIA supports new GPUs by the open modules alone";

/// A GPU with its generation, where that is known.
pub(super) type Gpu<'a> = (&'a PciDevice, Option<&'a Generation>);

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
    /// Newest one that was left out because no source has its user-mode files.
    bare: Option<Candidate<'a>>,
}

/// Inputs of the selection, except the candidates.
pub(super) struct Question<'a> {
    pub(super) config: &'a Config,
    pub(super) facts: &'a HostFacts,
    pub(super) table: &'a SupportTable,
    pub(super) gpus: Vec<Gpu<'a>>,
    pub(super) run_files: &'a [AvailableRunFile],
    pub(super) trees: &'a [SourceTree],
}

impl<'a> Question<'a> {
    fn version_matches(&self, version: &str) -> bool {
        self.config.driver.permits(version) && self.is_requested(version)
    }

    pub(super) fn is_requested(&self, version: &str) -> bool {
        // A .run file without a configured version selects the file's version; trees stand beside it.
        let is_named = || {
            self.run_files.iter().any(|file| file.version == version)
                || self.trees.iter().any(|tree| tree.version == version)
        };
        match self.config.driver.version.as_deref() {
            Some(requested) => DriverVersion::new(version).is_within(requested),
            None => self.run_files.is_empty() || is_named(),
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

    pub(super) fn flavour_matches(&self, flavour: Flavour) -> bool {
        self.config.driver.flavour.is_none_or(|requested| requested == flavour)
    }

    fn is_asked_for(&self, candidate: &Candidate<'_>) -> bool {
        self.version_matches(candidate.version) && self.flavour_matches(candidate.flavour)
    }

    /// Checks that every GPU is supported; names the first that is not, and why.
    pub(super) fn fits(&self, version: &str, flavour: Flavour) -> Result<(), (String, Unfit)> {
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
            let is_configured = self.config.driver.flavour == Some(flavour);
            gpu::branch_fits(generation, branch)
                .map_err(|unfit| match is_configured {
                    true => unfit.and_flavour(generation, flavour),
                    false => unfit,
                })
                .and_then(|()| gpu::flavour_fits(generation, branch, flavour))
                .map_err(|unfit| (name_of(device), unfit))?;
        }
        Ok(())
    }

    /// Checks a driver that is to be chosen: as [`Question::fits`], and for a GPU that neither the driver's own list
    /// nor longshore's table has, that its modules are open ones. Such a GPU is newer than the table, and NVIDIA
    /// supports new GPUs since Blackwell by the open modules alone. A configured flavour counts more. Floors of GPUs and
    /// exclusions of the table count as well.
    pub(super) fn suits(&self, version: &str, flavour: Flavour) -> Result<(), (String, Unfit)> {
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
        let Offered { fitting, matching, left_out, bare } = offered;
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
        let rules = &self.config.driver_rules;
        why_version
            .push_str(&self.rule("driver", rules.driver_above, |rule| rule.driver.is_some()));
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
        if let Some(bare) = bare.filter(is_newer) {
            why_version.push_str(&format!(
                "; no source has the user-mode files of {} ({})",
                bare.version,
                bare.from.describe()
            ));
        }
        Choice::new((version, why_version), (flavour, why))
    }

    /// Formats what a rule for the host's GPUs has to do with a setting that it `has`; `above` is the layer that sets it
    /// before rules.
    fn rule(&self, setting: &str, above: Option<Above>, has: fn(&DriverRule) -> bool) -> String {
        let rule = self.config.rule_for(&self.facts.devices).ok().flatten();
        let Some(rule) = rule.filter(|rule| has(rule)) else { return String::new() };
        match above {
            None => format!(" (rule for {})", rule.gpu),
            Some(Above::Flag) => format!("; --{setting} counts before the rule for {}", rule.gpu),
            Some(Above::Variable) => {
                format!("; the {setting} of a variable counts before the rule for {}", rule.gpu)
            }
        }
    }

    /// Selects one of the flavours of `same`, all of which fit.
    fn flavour_of(&self, version: &str, same: &[Candidate<'_>]) -> (Flavour, String) {
        let above = self.config.driver_rules.flavour_above;
        if let Some(requested) = self.config.driver.flavour {
            let rule = self.rule("flavour", above, |rule| rule.flavour.is_some());
            return (requested, format!("asked for{rule}"));
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
        let warned = support::warned_more(self.config, self.facts, version, preferred);
        if let Some(row) = warned.filter(|_| has(other, false)) {
            let row = format!("the support table warns of {preferred} here, row {}", row.id);
            return (other, format!("auto: {row} ({preferred} preferred: {why})"));
        }
        if !has(preferred, true) && has(other, true) {
            let built = "built for this kernel already";
            return (other, format!("auto: {built} ({preferred} preferred: {why})"));
        }
        (preferred, format!("auto: {why}"))
    }

    /// Returns the flavour that auto prefers for a version, and why.
    pub(super) fn preferred(&self, version: &str) -> (Flavour, String) {
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
}
