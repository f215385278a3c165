//! Choice of the modules: alternatives in their order, and preferences among complete sets.

use super::finished;
use super::live;
use super::mofed;
use super::own_signature::may_load_own;
use super::signing::{self, Standing};
use super::values::{Choice, Inputs, has_headers};
use crate::catalog::AvailableSet;
use longshore_modules::artifact::SetQuery;
use longshore_sources::finished::FinishedModules;

/// A preference of one complete set over another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preference {
    /// The build that the kernel has loaded, even where another one is as good.
    LoadedBuild,
    /// The better signature status.
    SignatureStatus,
    /// MOFED's headers in the compile, where the host has them.
    MofedHeaders,
    /// No signature, as compiled; a signature where the configured key cannot sign.
    SignatureAsConfigured,
}

/// Preferences, compared one after the other: the first in which two sets differ decides. Of sets that are equal in
/// all of them the catalog's first is used.
const PREFERENCES: [Preference; 4] = [
    Preference::LoadedBuild,
    Preference::SignatureStatus,
    Preference::MofedHeaders,
    Preference::SignatureAsConfigured,
];

impl Preference {
    /// Returns the rank of a set: a lower one is preferred.
    fn rank(self, set: &AvailableSet, of: &Alternatives<'_, '_>) -> u8 {
        match self {
            Self::LoadedBuild => u8::from(!of.is_loaded(set)),
            Self::SignatureStatus => of.standing(set) as u8,
            Self::MofedHeaders => u8::from(mofed::lacks(of.inputs.catalog, &set.set)),
            Self::SignatureAsConfigured => {
                let cannot_sign = of.inputs.catalog.no_sign_file.is_some();
                u8::from(set.set.key.signed_by.is_some() != cannot_sign)
            }
        }
    }
}

/// Modules that a plan uses.
#[derive(Debug, Clone, Copy)]
pub(super) enum Alternative<'a> {
    /// An available set.
    Set(&'a AvailableSet),
    /// The loaded modules, which stay.
    LoadedModules,
    /// Finished modules of a package, which is read first.
    Package(&'a FinishedModules),
    /// Modules that are compiled here.
    Compile,
}

/// Inputs of the choice.
pub(super) struct Alternatives<'i, 'a> {
    inputs: Inputs<'a>,
    choice: &'i Choice,
    wanted: &'i [&'i str],
    /// True if modules can be compiled here, and the settings permit to load them.
    is_buildable: bool,
    /// True if the kernel may accept modules that are compiled here, too.
    compiles: bool,
    /// Best package with the chosen driver, unless a compile takes headers of MOFED that it lacks.
    package: Option<&'a FinishedModules>,
}

impl<'i, 'a> Alternatives<'i, 'a> {
    /// Collects the inputs. `wanted` are the modules to be loaded.
    pub(super) fn gather(inputs: Inputs<'a>, choice: &'i Choice, wanted: &'i [&'i str]) -> Self {
        let Inputs { config, facts, catalog } = inputs;
        let is_buildable = may_load_own(config, catalog) && has_headers(catalog);
        let compiles = is_buildable && signing::may_load_compiled(facts, catalog.signer.as_ref());
        let package = finished::of_choice(inputs, choice)
            .filter(|_| !(compiles && mofed::is_missed(config, catalog)));
        Self { inputs, choice, wanted, is_buildable, compiles, package }
    }

    /// Returns the first alternative whose condition holds; a compile has none.
    pub(super) fn first(&self) -> Alternative<'a> {
        self.complete_set()
            .map(Alternative::Set)
            .or_else(|| self.incomplete_set_as_last().map(Alternative::Set))
            .or_else(|| self.has_all_loaded().then_some(Alternative::LoadedModules))
            .or_else(|| self.package.map(Alternative::Package))
            .unwrap_or(Alternative::Compile)
    }

    /// Returns the preferred set with all wanted modules, unless there are better modules elsewhere.
    fn complete_set(&self) -> Option<&'a AvailableSet> {
        let complete = self.sets_of_choice().filter(|set| set.set.has_all(self.wanted));
        let preferred = complete.min_by_key(|set| PREFERENCES.map(|p| p.rank(set, self)))?;
        (!self.has_better(preferred) && !self.gives_way(preferred)).then_some(preferred)
    }

    /// Returns a set that lacks a wanted module, only to be reported: there are no other modules.
    fn incomplete_set_as_last(&self) -> Option<&'a AvailableSet> {
        let is_last = !self.is_buildable && self.package.is_none();
        self.sets_of_choice().next().filter(|_| is_last)
    }

    /// True if the chosen driver is loaded with all wanted modules and their parameters.
    fn has_all_loaded(&self) -> bool {
        let Inputs { config, facts, .. } = self.inputs;
        let has = |name: &&str| live::has_parameters(config, facts, name);
        self.choice.live && self.wanted.iter().all(has)
    }

    /// True if the kernel does not accept a set, and may accept modules of a compile or a package.
    fn has_better(&self, set: &AvailableSet) -> bool {
        !self.standing(set).may_load() && (self.compiles || self.package.is_some())
    }

    /// True if a set lacks headers of MOFED that a compile takes.
    fn gives_way(&self, set: &AvailableSet) -> bool {
        self.compiles && mofed::gives_way(self.inputs.config, self.inputs.catalog, &set.set)
    }

    /// Returns the sets of the chosen driver for the running kernel, in the catalog's order.
    fn sets_of_choice(&self) -> impl Iterator<Item = &'a AvailableSet> {
        let query = SetQuery {
            kernel: self.inputs.facts.kernel.id(),
            driver_version: &self.choice.version,
            flavour: Some(self.choice.flavour),
        };
        self.inputs.catalog.sets.iter().filter(move |available| query.matches(&available.set.key))
    }

    /// Returns the signature status of a set.
    pub(super) fn standing(&self, set: &AvailableSet) -> Standing {
        let Inputs { facts, catalog, .. } = self.inputs;
        signing::standing(&set.set.key, facts, catalog.signer.as_ref())
    }

    /// True if the kernel has loaded this very build of the chosen driver.
    fn is_loaded(&self, set: &AvailableSet) -> bool {
        let own = set.set.modules.iter().find(|module| module.name == "nvidia");
        let own = own.and_then(|module| module.srcversion.as_ref());
        let loaded = self.inputs.facts.loaded.get("nvidia");
        let loaded = loaded.and_then(|module| module.srcversion.as_ref());
        self.choice.live && own.is_some() && own == loaded
    }
}

#[cfg(test)]
mod tests;
