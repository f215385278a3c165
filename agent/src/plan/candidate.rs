//! Candidates for a driver's modules: built sets and packages to compile.

use super::values::{Inputs, is_for_kernel, listed, names_run_files, run_files};
use super::{finished, signing};
use crate::config::Config;
use longshore_core::driver_version::DriverVersion;
use longshore_core::finding::{Code, Finding};
use longshore_core::flavour::Flavour;
use longshore_core::redact::redacted;
use longshore_core::source_id::SourceId;
use longshore_host::facts::Probe;
use longshore_sources::driver::{AvailableDriver, DriverOrigin};

/// Built set, or package to compile modules from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate<'a> {
    pub(super) version: &'a str,
    pub(super) flavour: Flavour,
    pub(super) from: Origin<'a>,
    /// True if the kernel may accept the signature, where it requires one.
    pub(super) loadable: bool,
    /// True if it is of a source that was added on the host, beside the distribution's own.
    pub(super) is_added: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin<'a> {
    Built(SourceId),
    Finished { package: &'a str, version: &'a str, from: &'a str },
    Archive { package: &'a str, version: &'a str, from: &'a str },
    RunFile { name: &'a str },
    SourceTree { place: &'a str },
}

impl Origin<'_> {
    pub(super) fn is_built(self) -> bool {
        matches!(self, Self::Built(_) | Self::Finished { .. })
    }

    /// True for a package of an archive.
    pub(super) fn is_package(self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Archive { .. })
    }

    pub(super) fn describe(self) -> String {
        match self {
            Self::Built(source) => {
                format!("built {}", source.of_sets().map_or("in a source", |words| words.built))
            }
            Self::Finished { package, version, from } => {
                format!("finished modules in {package} {version} ({from})")
            }
            Self::Archive { package, version, from } => format!("{package} {version} in {from}"),
            Self::RunFile { name } => name.to_owned(),
            Self::SourceTree { place } => {
                format!("NVIDIA's published sources at {}", redacted(place))
            }
        }
    }
}

/// Returns all candidates for the running kernel, whatever was requested.
pub(super) fn candidates(inputs: Inputs<'_>) -> Vec<Candidate<'_>> {
    let Inputs { config, facts, catalog } = inputs;
    let signer = catalog.signer.as_ref();
    let loadable = signing::may_load_compiled(facts, signer);
    let sets = catalog.sets.iter().filter(|s| is_for_kernel(s, facts)).map(|s| Candidate {
        version: &s.set.key.driver_version,
        flavour: s.set.key.flavour,
        from: Origin::Built(s.place.source),
        loadable: signing::standing(&s.set.key, facts, signer).may_load(),
        is_added: false,
    });
    let finished = finished::offered(inputs).map(|one| Candidate {
        version: &one.driver_version,
        flavour: one.flavour,
        from: Origin::Finished {
            package: &one.package.name,
            version: &one.package.version,
            from: &one.package.origin.text,
        },
        loadable: finished::may_load(inputs, one),
        is_added: one.package.origin.is_added,
    });
    let packages = match &catalog.drivers {
        Probe::Read(drivers) if !names_run_files(config, catalog) => drivers.as_slice(),
        _ => &[],
    };
    let packages = packages.iter().map(|d| Candidate {
        version: &d.version,
        flavour: d.flavour,
        from: origin_of(d),
        loadable,
        is_added: d.is_added(),
    });
    let files = run_files(catalog).iter().flat_map(|file| {
        let from = Origin::RunFile { name: &file.name };
        let version = file.version.as_str();
        file.flavours.iter().map(move |flavour| Candidate {
            version,
            flavour: *flavour,
            from,
            loadable,
            is_added: false,
        })
    });
    let trees = catalog.source_trees.iter().map(|tree| Candidate {
        version: &tree.version,
        flavour: Flavour::Open,
        from: Origin::SourceTree { place: tree.urls.first().map_or("", String::as_str) },
        loadable,
        is_added: false,
    });
    let offered = trees.chain(packages).chain(files).filter(|_| config.may_compile());
    sets.chain(finished).chain(offered).collect()
}

fn origin_of(driver: &AvailableDriver) -> Origin<'_> {
    match &driver.origin {
        DriverOrigin::Package { name, version, origin } => {
            Origin::Archive { package: name, version, from: &origin.text }
        }
        DriverOrigin::RunFile { name } => Origin::RunFile { name },
        DriverOrigin::SourceTree { urls } => {
            Origin::SourceTree { place: urls.first().map_or("", String::as_str) }
        }
    }
}

/// Returns the candidate with the highest version.
pub(super) fn newest<'a>(candidates: &[Candidate<'a>]) -> Option<Candidate<'a>> {
    candidates.iter().copied().max_by_key(|candidate| DriverVersion::new(candidate.version))
}

/// Returns the finding that only drivers below the configured minimum match the request.
pub(super) fn below_minimum(
    config: &Config,
    candidates: &[Candidate<'_>],
    is_requested: impl Fn(&Candidate<'_>) -> bool,
) -> Option<Finding> {
    let minimum = config.driver.minimum.as_ref()?.as_str();
    let is_below = |c: &&Candidate<'_>| is_requested(c) && !config.driver.permits(c.version);
    let below = candidates.iter().filter(is_below);
    let below =
        listed(below.map(|c| format!("{} {} ({})", c.version, c.flavour, c.from.describe())));
    let is_named_below = |requested: &&str| {
        DriverVersion::new(requested).is_complete() && !config.driver.permits(requested)
    };
    let detail = match config.driver.version.as_deref().filter(is_named_below) {
        Some(requested) => format!("driver {requested} is below driver-minimum, {minimum}"),
        None if below.is_empty() => return None,
        None => format!("all that is available is below driver-minimum, {minimum}: {below}"),
    };
    Some(Finding::refusal(Code::DriverBelowMinimum, detail))
}

/// Lists the candidates for a message.
pub(super) fn offer(candidates: &[Candidate<'_>]) -> String {
    let offered = candidates.iter().map(|c| format!("{} {}", c.version, c.flavour));
    format!("they offer {}", listed(offered))
}
