//! Selection of the user-mode tree.

use super::acquire::{Supply, run_file_of, sources_of};
use super::candidate::names_run_files;
use super::driver::Choice;
use super::{Acquire, sources};
use crate::catalog::Catalog;
use crate::config::Config;
use longshore_build::source::userspace::AvailableUserspace;
use longshore_core::finding::{Code, Finding};
use longshore_host::HostFacts;
use longshore_host::facts::Probe;

impl<'a> Supply<'a> {
    /// Selects the user-mode tree, or the acquisition of one.
    pub(super) fn userspace(
        &mut self,
        config: &Config,
        facts: &HostFacts,
        catalog: &'a Catalog,
        choice: &Choice,
    ) {
        let sources = sources::wanted(config, choice);
        let of_choice = |u: &&AvailableUserspace| {
            (u.driver_version == choice.version && u.arch == facts.kernel.arch)
                && u.sources == sources
        };
        self.userspace = catalog.userspace.iter().find(of_choice);
        if self.userspace.is_some() {
            self.add_reason("user mode from the store", "assembled there already");
            self.reasons.extend(sources.map(|_| sources::reason(config, choice, None)));
            return;
        }
        let source = sources_of(config, catalog, choice);
        if sources.is_some() && source.is_none() {
            self.findings.push(sources::missing(config, catalog, choice));
            return;
        }
        self.acquire.push(Acquire::AssembleUserspace {
            driver_version: choice.version.clone(),
            run_file: run_file_of(catalog, choice).cloned(),
            sources,
        });
        let with = if sources.is_some() { " with its sources" } else { "" };
        let why = format!("the store has none of this version{with}");
        self.add_reason("user mode assembled", why);
        self.reasons.extend(sources.map(|_| sources::reason(config, choice, source.as_ref())));
        if let Probe::Read(drivers) = &catalog.drivers
            && !drivers.is_empty()
            && !names_run_files(config, catalog)
            && !drivers.iter().any(|d| d.version == choice.version)
        {
            self.findings.push(Finding::warning(
                Code::UserspaceNotOffered,
                format!(
                    "no archive offers driver {}, so its user-mode files may be unavailable",
                    choice.version
                ),
            ));
        }
    }
}
