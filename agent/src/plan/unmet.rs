//! Refusals of a driver: candidates match the request and suit no GPU, or none matches.

use super::candidate::{Candidate, below_minimum, offer};
use super::driver::Question;
use super::gpu::Unfit;
use super::values::{Choice, names_run_files, unread_sources};
use crate::catalog::Catalog;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::flavour::Flavour;
use longshore_host::facts::Probe;

/// Reason of a version that is named where nothing is known to be available.
const UNKNOWN: &str = "the available versions are unknown";
/// Reason of a version that is named where no available one matches the request.
const NONE_MATCHES: &str = "no available version matches the request";

impl Question<'_> {
    /// Returns the candidate of the same version whose flavour suits the GPUs best: its refusal names the cause.
    pub(super) fn nearest<'c>(
        &self,
        newest: Candidate<'c>,
        matching: &[Candidate<'c>],
    ) -> Candidate<'c> {
        let (preferred, _) = self.preferred(newest.version);
        let is_nearest = |c: &&Candidate<'c>| c.version == newest.version && c.flavour == preferred;
        matching.iter().find(is_nearest).copied().unwrap_or(newest)
    }

    /// Refuses: candidates match, but none has a flavour that fits the GPUs.
    pub(super) fn refuse_gpu(&self, newest: Candidate<'_>) -> Choice {
        let why = "newest available, and no available one suits this host";
        let mut choice = self.unmet(newest.version, Some(newest.flavour), why.to_owned());
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
    pub(super) fn refuse_offer(&self, candidates: &[Candidate<'_>], catalog: &Catalog) -> Choice {
        let last = self.last_branch();
        let requested = self.config.driver.version.as_deref().or(last.as_deref());
        let known = if candidates.is_empty() { UNKNOWN } else { NONE_MATCHES };
        let why = match &last {
            Some(_) => format!("the newest branch that supports every GPU; {known}"),
            None => known.to_owned(),
        };
        let flavour = self.config.driver.flavour;
        let mut choice = self.unmet(requested.unwrap_or("newest"), flavour, why);
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
            let found = no_run_file(&wanted, candidates, catalog);
            choice.findings.push(self.with_open_alone(found, candidates));
            return choice;
        }
        let unread = unread_sources(catalog);
        let found = match &catalog.drivers {
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
        };
        choice.findings.push(self.with_open_alone(found, candidates));
        choice
    }

    /// Gives a finding the remedy where the version is there, and with open modules alone.
    fn with_open_alone(&self, found: Finding, candidates: &[Candidate<'_>]) -> Finding {
        let is_open =
            |c: &Candidate<'_>| c.flavour == Flavour::Open && self.is_requested(c.version);
        let is_refused = found.code == Code::DriverNotOffered
            && self.config.driver.flavour == Some(Flavour::Proprietary);
        match is_refused && candidates.iter().any(is_open) {
            true => found.remedy(
                "select flavour open or auto, or add an archive or .run file with the proprietary modules of that \
                 version: NVIDIA's published sources ([[source-tree]]) have the open modules alone",
            ),
            false => found,
        }
    }

    /// Returns the newest branch that supports every GPU, where support for one of them has ended.
    fn last_branch(&self) -> Option<String> {
        let last = self.gpus.iter().filter_map(|(_, generation)| (*generation)?.last_branch);
        last.min().map(|branch| branch.to_string())
    }

    /// Returns a choice that cannot be carried out; the findings name the cause. `why` is the reason of a version that no
    /// setting names.
    fn unmet(&self, version: &str, flavour: Option<Flavour>, why_version: String) -> Choice {
        let (preferred, why) = self.preferred(version);
        let (flavour, why) = match (self.config.driver.flavour, flavour) {
            (Some(asked), _) => (asked, "asked for".to_owned()),
            (None, Some(only)) if only != preferred => {
                (only, format!("auto: only {only} is available"))
            }
            _ => (preferred, format!("auto: {why}")),
        };
        let why_version = match self.config.driver.version {
            Some(_) => "asked for".to_owned(),
            None => why_version,
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
