//! Kernel sources in the user-mode tree, for the containers of GPUDirect Storage and GDRCopy.

use super::values::{Choice, Reason};
use crate::catalog::Catalog;
use crate::config::{Config, OperatorConfig};
use longshore_core::finding::{Code, Finding};
use longshore_core::flavour::Flavour;
use longshore_core::package_origin::PackageOrigin;
use longshore_debian::apt_sources;
use longshore_host::facts::Probe;
use longshore_sources::driver::{AvailableDriver, DriverOrigin, older_revisions};
use longshore_sources::source_tree;
use longshore_sources::userspace::sources::directory;

/// Returns the flavour of the sources that the tree has to have: that of the modules.
pub(super) fn wanted(config: &Config, choice: &Choice) -> Option<Flavour> {
    config.operator.exposes_sources().then_some(choice.flavour)
}

/// Returns the reason for a tree with sources. `from` has them; None is a tree of the store.
pub(super) fn reason(config: &Config, choice: &Choice, from: Option<&AvailableDriver>) -> Reason {
    let directory = directory(&choice.version);
    let from = match from.map(|driver| &driver.origin) {
        Some(DriverOrigin::Package { name, version, .. }) => format!("from {name} {version}"),
        Some(DriverOrigin::RunFile { name }) => format!("from {name}"),
        Some(DriverOrigin::SourceTree { urls }) => format!("from {}", source_tree::shown(urls)),
        None => "from the store".to_owned(),
    };
    let reason = format!(
        "{} ({}) {from}, for {}",
        directory.display(),
        choice.flavour,
        features(&config.operator)
    );
    Reason::new("driver sources exposed", reason)
}

/// Returns the remark that apt holds a driver's package back on a part of the hosts: it is chosen all the
/// same, because every host of a fleet gets the same driver.
pub(super) fn phased(from: Option<&AvailableDriver>) -> Option<Reason> {
    let DriverOrigin::Package { name, version, origin } = &from?.origin else { return None };
    let PackageOrigin { text, percentage, .. } = origin;
    let percentage = (*percentage)?;
    let reason = format!(
        "{name} {version} in {text}: apt installs it on {percentage} % of the hosts so far, longshore \
         on all"
    );
    Some(Reason::new("phased update", reason))
}

/// Returns the choice among the packaging revisions of one driver version, where the archives have several.
pub(super) fn revisions(from: Option<&AvailableDriver>, catalog: &Catalog) -> Option<Reason> {
    let (Some(driver), Probe::Read(drivers)) = (from, &catalog.drivers) else { return None };
    let older = older_revisions(driver, drivers);
    let (DriverOrigin::Package { name, version, origin }, false) =
        (&driver.origin, older.is_empty())
    else {
        return None;
    };
    let older: Vec<String> = older.iter().map(AvailableDriver::package_name).collect();
    let reason = format!(
        "{name} {version} in {}: the newest of {}; tried next if it does not compile for this kernel: {}",
        origin.text,
        driver.version,
        older.join(", ")
    );
    Some(Reason::new("packaging revision", reason))
}

/// Returns the note about sources of the host's apt that are not used.
pub(super) fn left_out(catalog: &Catalog) -> Option<Finding> {
    let left_out = &catalog.apt.left_out;
    let note = || Finding::note(Code::AptSourcesLeftOut, apt_sources::named(left_out));
    (!left_out.is_empty()).then(note)
}

/// Returns the note about proxies of the host's apt.
pub(super) fn apt_proxies(catalog: &Catalog) -> Option<Finding> {
    let lines = &catalog.apt.proxies;
    (!lines.is_empty()).then(|| Finding::note(Code::AptProxy, lines.join("; ")))
}

/// Returns the finding that no source has the sources.
pub(super) fn missing(config: &Config, catalog: &Catalog, choice: &Choice) -> Finding {
    let Choice { version, flavour, .. } = choice;
    let why = match (&catalog.run_files, &catalog.drivers) {
        _ if !config.run_files.is_empty() => match &catalog.run_files {
            Probe::Unreadable(why) => format!("the .run files could not be read: {why}"),
            Probe::Read(_) => format!("no configured .run file has {version} {flavour}"),
        },
        (_, Probe::Unreadable(why)) => format!("the archives could not be read: {why}"),
        (_, Probe::Read(_)) => format!("no archive has those of {version} {flavour}"),
    };
    let seen = format!(
        "the driver's sources, for {}, are neither in the store nor in another source: {why}",
        features(&config.operator)
    );
    Finding::refusal(Code::DriverSourcesMissing, seen)
}

fn features(operator: &OperatorConfig) -> String {
    operator.features_with_sources().collect::<Vec<_>>().join(" and ")
}
