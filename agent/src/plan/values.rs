//! Values that the decisions of a plan hand on, and small questions that several of them ask of their inputs.

use std::collections::BTreeSet;

use serde::Serialize;

use super::acquisition::Acquire;
use crate::catalog::{AvailableSet, Catalog};
use crate::config::Config;
use longshore_core::driver_modules;
use longshore_core::finding::Finding;
use longshore_core::flavour::Flavour;
use longshore_host::HostFacts;
use longshore_host::facts::{PciDevice, Probe};
use longshore_modules::artifact::ModuleSet;
use longshore_sources::driver::AvailableDriver;
use longshore_sources::headers::AvailableHeaders;
use longshore_sources::runfile::AvailableRunFile;
use longshore_sources::source_tree::SourceTree;
use longshore_sources::userspace::AvailableUserspace;

/// A choice with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Subject of the choice, always the same words, for example `flavour`.
    pub topic: &'static str,
    /// Choice, for example `open`; None where the topic says all.
    pub value: Option<String>,
    /// The reason.
    pub reason: String,
}

impl Reason {
    /// Makes a reason whose topic says all.
    pub(super) fn new(topic: &'static str, reason: impl Into<String>) -> Self {
        Self { topic, value: None, reason: reason.into() }
    }

    /// Makes the reason of a choice.
    pub(super) fn chosen(
        topic: &'static str,
        value: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self { value: Some(value.into()), ..Self::new(topic, reason) }
    }

    /// Returns topic and choice as text, for example `flavour open`.
    pub fn heading(&self) -> String {
        let Self { topic, value, .. } = self;
        value.as_ref().map_or_else(|| (*topic).to_owned(), |value| format!("{topic} {value}"))
    }
}

/// Inputs of a plan.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) config: &'a Config,
    pub(super) facts: &'a HostFacts,
    pub(super) catalog: &'a Catalog,
}

/// Selected driver version and flavour.
#[derive(Debug)]
pub(super) struct Choice {
    /// Version; where none is known, the requested branch or `newest`.
    pub(super) version: String,
    pub(super) flavour: Flavour,
    /// True if the selected driver is the one loaded now.
    pub(super) live: bool,
    pub(super) reasons: Vec<Reason>,
    pub(super) findings: Vec<Finding>,
}

impl Choice {
    /// Makes a choice of version and flavour, each with its reason; `live` is false, and there are no findings.
    pub(super) fn new(
        (version, why_version): (&str, impl Into<String>),
        (flavour, why_flavour): (Flavour, impl Into<String>),
    ) -> Self {
        let reasons = vec![
            Reason::chosen("driver", version, why_version),
            Reason::chosen("flavour", flavour.to_string(), why_flavour),
        ];
        let version = version.to_owned();
        Self { version, flavour, live: false, reasons, findings: Vec::new() }
    }
}

/// Available modules and user-mode tree, and what is to be acquired.
#[derive(Debug, Default)]
pub(super) struct Supply<'a> {
    pub(super) set: Option<&'a ModuleSet>,
    pub(super) userspace: Option<&'a AvailableUserspace>,
    /// True if modules are to be compiled, so that their contents are not known yet.
    pub(super) builds: bool,
    /// True if modules are to be read from a package, so that their contents are not known yet.
    pub(super) reads: bool,
    /// True if modules are to be signed first, so that their digests are not known yet.
    pub(super) signs: bool,
    pub(super) acquire: Vec<Acquire>,
    pub(super) reasons: Vec<Reason>,
    pub(super) findings: Vec<Finding>,
}

impl Supply<'_> {
    pub(super) fn add_reason(&mut self, topic: &'static str, reason: impl Into<String>) {
        self.reasons.push(Reason::new(topic, reason));
    }

    pub(super) fn add_choice(
        &mut self,
        topic: &'static str,
        value: &str,
        reason: impl Into<String>,
    ) {
        self.reasons.push(Reason::chosen(topic, value, reason));
    }
}

/// Returns the modules to be loaded, in load order.
pub(super) fn wanted_modules(config: &Config) -> Vec<&str> {
    let extra = config.driver.extra_modules.iter().map(String::as_str);
    let mut wanted: Vec<&str> = driver_modules::always().collect();
    wanted.extend(extra);
    wanted
}

/// True if a set was built for exactly the running kernel.
pub(super) fn is_for_kernel(available: &AvailableSet, facts: &HostFacts) -> bool {
    available.set.key.is_for(&facts.kernel.id())
}

/// Lists texts for a message: sorted, each once.
pub(super) fn listed(texts: impl Iterator<Item = String>) -> String {
    let texts: BTreeSet<String> = texts.collect();
    texts.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns the known .run files.
pub(super) fn run_files(catalog: &Catalog) -> &[AvailableRunFile] {
    match &catalog.run_files {
        Probe::Read(files) => files,
        Probe::Unreadable(_) => &[],
    }
}

/// True if drivers come from .run files, and so not from archives.
pub(super) fn names_run_files(config: &Config, catalog: &Catalog) -> bool {
    !config.run_files.is_empty() || !run_files(catalog).is_empty()
}

/// Returns the end of a message about something that no source has: one of the sources that could not be read may have
/// it.
pub(super) fn unread_sources(catalog: &Catalog) -> String {
    match catalog.apt.unread.as_slice() {
        [] => String::new(),
        unread => format!("; these sources could not be read: {}", unread.join("; ")),
    }
}

/// Returns the .run file of the chosen version.
pub(super) fn run_file_of<'a>(
    catalog: &'a Catalog,
    choice: &Choice,
) -> Option<&'a AvailableRunFile> {
    run_files(catalog).iter().find(|file| file.version == choice.version)
}

/// Returns the tree of the chosen driver, whose modules are compiled from it.
pub(super) fn tree_of<'a>(catalog: &'a Catalog, choice: &Choice) -> Option<&'a SourceTree> {
    tree_for(catalog, &choice.version, choice.flavour)
}

/// Returns the tree of a version, where it has the flavour.
pub(super) fn tree_for<'a>(
    catalog: &'a Catalog,
    version: &str,
    flavour: Flavour,
) -> Option<&'a SourceTree> {
    let mut trees = catalog.source_trees.iter().filter(|_| flavour == Flavour::Open);
    trees.find(|tree| tree.version == version)
}

/// Returns the catalog's kernel sources of the chosen driver.
pub(super) fn sources_of(inputs: Inputs<'_>, choice: &Choice) -> Option<AvailableDriver> {
    let Inputs { config, catalog, .. } = inputs;
    let is_chosen = |driver: &AvailableDriver| {
        driver.version == choice.version && driver.flavour == choice.flavour
    };
    if let Some(tree) = tree_of(catalog, choice) {
        return Some(tree.driver());
    }
    if names_run_files(config, catalog) {
        return run_files(catalog).iter().flat_map(AvailableRunFile::drivers).find(is_chosen);
    }
    match &catalog.drivers {
        Probe::Read(drivers) => drivers.iter().find(|driver| is_chosen(driver)).cloned(),
        Probe::Unreadable(_) => None,
    }
}

/// True if there are headers to compile with.
pub(super) fn has_headers(catalog: &Catalog) -> bool {
    matches!(
        catalog.headers,
        Probe::Read(
            AvailableHeaders::Archive { .. }
                | AvailableHeaders::Local { .. }
                | AvailableHeaders::BuildRoot { .. }
        )
    )
}

/// Formats a device by address and ids.
pub(super) fn name_of(device: &PciDevice) -> String {
    format!("{} (10de:{:04x})", device.address, device.device)
}
