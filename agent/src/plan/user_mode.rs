//! Selection of the user-mode tree.

use std::collections::BTreeSet;

use super::acquisition::Acquire;
use super::values::{
    Choice, Inputs, Supply, names_run_files, run_file_of, run_files, sources_of, tree_for,
};
use super::{preflight, sources};
use crate::catalog::Catalog;
use longshore_core::driver_version::DriverVersion;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::flavour::Flavour;
use longshore_core::source_id::SourceId;
use longshore_host::facts::{HostDriver, Probe};
use longshore_sources::userspace::AvailableUserspace;

impl<'a> Supply<'a> {
    /// Selects the user-mode tree, or the acquisition of one.
    pub(super) fn userspace(&mut self, inputs: Inputs<'a>, choice: &Choice) {
        let Inputs { config, facts, catalog } = inputs;
        if config.modules_only {
            let (why, found) = of_host(inputs, choice);
            self.add_choice("user mode", "the host's", format!("modules-only: {why}"));
            self.findings.extend(found);
            return;
        }
        let sources = sources::wanted(config, choice);
        let of_choice = |u: &&AvailableUserspace| {
            (u.driver_version == choice.version && u.arch == facts.kernel.arch)
                && u.sources == sources
        };
        self.userspace = catalog.userspace.iter().find(of_choice);
        if self.userspace.is_some() {
            self.add_choice("user mode", "from the store", "assembled there already");
            self.reasons.extend(sources.map(|_| sources::reason(config, choice, None)));
            return;
        }
        let source = sources_of(inputs, choice);
        if sources.is_some() && source.is_none() {
            self.findings.push(sources::missing(config, catalog, choice));
            return;
        }
        let run_file = run_file_of(catalog, choice);
        let with = if sources.is_some() { " with its sources" } else { "" };
        let from = run_file.map_or("the archives' packages", |file| file.name.as_str());
        let why = format!("from {from}: the store has none of this version{with}");
        self.add_choice("user mode", "assembled", why);
        self.acquire.push(Acquire::AssembleUserspace {
            driver_version: choice.version.clone(),
            run_file: run_file.cloned(),
            sources,
        });
        self.reasons.extend(sources.map(|_| sources::reason(config, choice, source.as_ref())));
        self.findings.extend(lacking(inputs, &choice.version, choice.flavour));
    }
}

/// True if a source has the user-mode files of a version, or may have them: a plan does not refuse it for those.
pub(super) fn is_available(inputs: Inputs<'_>, version: &str, flavour: Flavour) -> bool {
    let Inputs { facts, catalog, .. } = inputs;
    let is_its =
        |u: &AvailableUserspace| u.driver_version == version && u.arch == facts.kernel.arch;
    let is_refused = |finding: Finding| finding.severity == Severity::Refusal;
    catalog.userspace.iter().any(is_its)
        || !lacking(inputs, version, flavour).is_some_and(is_refused)
}

/// Returns the finding that no source has, or is known to have, the user-mode files of a version.
fn lacking(inputs: Inputs<'_>, version: &str, flavour: Flavour) -> Option<Finding> {
    let Inputs { config, catalog, .. } = inputs;
    if run_files(catalog).iter().any(|file| file.version == version) {
        return None;
    }
    let is_tree = tree_for(catalog, version, flavour).is_some();
    match names_run_files(config, catalog) {
        true => is_tree.then(|| not_in_files(catalog, version)),
        false => not_offered(catalog, version, is_tree),
    }
}

/// Returns the finding that no configured .run file has, or is known to have, the user-mode files of a version, whose
/// modules come from a tree of sources.
fn not_in_files(catalog: &Catalog, version: &str) -> Finding {
    match &catalog.run_files {
        Probe::Read(_) => Finding::refusal(
            Code::UserspaceNotOffered,
            format!(
                "NVIDIA's published sources have the modules of {version} alone, and none of the configured .run files, \
                 which take the place of the archives, has its user-mode files"
            ),
        )
        .remedy(
            "name the .run file of exactly this version, too, or set modules-only where the host has user-mode files of \
             its own",
        ),
        Probe::Unreadable(why) => Finding::warning(
            Code::UserspaceNotOffered,
            format!(
                "NVIDIA's published sources have the modules of {version} alone, and the .run files, which may have its \
                 user-mode files, could not be read: {why}"
            ),
        ),
    }
}

/// Returns the versions in the names of the host's libraries.
fn versions(installed: &HostDriver) -> BTreeSet<&str> {
    let names = installed.libraries.iter().filter_map(|path| path.file_name()?.to_str());
    let versions = names.filter_map(|name| name.split_once(".so.").map(|(_, version)| version));
    // libcuda.so.1 is the name that programs load; libcuda.so.535.261.03 is the file.
    versions.filter(|version| DriverVersion::parse(version).is_some()).collect()
}

/// Returns the reason for the host's own user-mode files, and the finding that they are of another version.
fn of_host(inputs: Inputs<'_>, choice: &Choice) -> (String, Option<Finding>) {
    let Inputs { config, facts, .. } = inputs;
    let Choice { version, live, .. } = choice;
    let known = match preflight::is_host_hidden(config, facts) {
        true => BTreeSet::new(),
        false => versions(&facts.installed),
    };
    if known.is_empty() {
        let why =
            "the host has to have its own, of the same version; that of its libraries is unknown";
        return (why.to_owned(), None);
    }
    if known.iter().any(|known| DriverVersion::new(known).is_within(version)) {
        return ("the host has its own, of the same version".to_owned(), None);
    }
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    let why = format!("the host has its own, of another version ({known})");
    if DriverVersion::new(version).branch().is_none() {
        return (why, None);
    }
    let severity = if *live { Severity::Warning } else { Severity::Refusal };
    let seen =
        format!("modules-only: the host's libraries are of {known}, and the driver is {version}");
    let remedy = format!(
        "select the driver of the host's libraries ({known}), or install user-mode files of {version} on the host"
    );
    (why, Some(Finding::new(severity, Code::UserModeDiffers, seen).remedy(remedy)))
}

/// Returns the finding that no source has, or is known to have, the user-mode files of a version; `is_tree` where its
/// modules come from a tree of sources, which has none.
fn not_offered(catalog: &Catalog, version: &str, is_tree: bool) -> Option<Finding> {
    let warning = |seen: String| Some(Finding::warning(Code::UserspaceNotOffered, seen));
    if let Some(failure) = catalog.definite_failure() {
        let seen = format!(
            "no source has the user-mode files of driver {version}: no .run file of it is configured, and {failure}"
        );
        let found = Finding::refusal(Code::UserspaceNotOffered, seen);
        return Some(found.remedy(
            "name an archive that has this version as [[archive]], name its .run file, or import a bundle \
             that has it",
        ));
    }
    match &catalog.drivers {
        Probe::Read(drivers)
            if (drivers.is_empty() && !is_tree) || drivers.iter().any(|d| d.version == version) =>
        {
            None
        }
        Probe::Read(_) if is_tree => Some(
            Finding::refusal(
                Code::UserspaceNotOffered,
                format!(
                    "NVIDIA's published sources have the modules of {version} alone, and no archive or configured .run \
                     file has its user-mode files"
                ),
            )
            .remedy(
                "name its .run file or an archive that has exactly this version, or set modules-only where the host has \
                 user-mode files of its own",
            ),
        ),
        Probe::Read(_) => warning(format!(
            "no archive offers driver {version}, so its user-mode files may be unavailable"
        )),
        // An archive that nobody asked is no news.
        Probe::Unreadable(_) => catalog.failure_of(SourceId::Archives).and_then(|failure| {
            warning(format!(
                "no archive of packages could be read ({failure}), and no .run file of driver \
                 {version} is configured: its user-mode files can only come from a bundle"
            ))
        }),
    }
}
