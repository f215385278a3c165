//! Differences between the loaded driver and the wanted one, and whether longshore may change it.

use serde::{Deserialize, Serialize};

use super::values::{Choice, Reason};
use crate::config::Config;
use longshore_core::finding::{Code, Finding};
use longshore_core::module_parameters;
use longshore_host::HostFacts;
use longshore_host::facts::LoadedModule;
use longshore_modules::artifact::{ModuleEntry, ModuleSet};

/// A loaded module of longshore's that must be unloaded before the plan can be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// Kernel name.
    pub module: String,
    /// Reason why it must be unloaded.
    pub reason: String,
}

/// Modules to replace, with the reason; or a finding where they may not be replaced.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Modules that longshore loaded.
    pub(super) replaced: Vec<Replaced>,
    pub(super) reason: Option<Reason>,
    /// Finding about modules that longshore did not load.
    pub(super) finding: Option<Finding>,
}

/// Inputs of the comparison, for one plan.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) config: &'a Config,
    pub(super) facts: &'a HostFacts,
    pub(super) choice: &'a Choice,
    pub(super) set: Option<&'a ModuleSet>,
    /// Kernel names of the wanted modules.
    pub(super) modules: &'a [&'a str],
}

/// Compares the loaded driver with the wanted one.
pub(super) fn differences(wanted: Wanted<'_>) -> Differences {
    let facts = wanted.facts;
    if let Some(why) = &facts.unread.loaded {
        let seen = format!("the loaded modules could not be read: {why}");
        let finding = Finding::warning(Code::LoadedUnread, seen);
        return Differences { finding: Some(finding), ..Differences::default() };
    }
    let mut differing = wanted.differing();
    let theirs = differing.iter().filter(|r| !facts.ours.contains_key(&r.module));
    let theirs: Vec<&str> = theirs.map(|replaced| replaced.reason.as_str()).collect();
    if !theirs.is_empty() {
        let remedy = format!(
            "stop the processes that use it and unload it with the program that \
             installed it, or select driver {}",
            wanted.live_version().unwrap_or("?")
        );
        let finding = Finding::refusal(Code::OtherDriverLive, theirs.join("; ")).remedy(remedy);
        return Differences { finding: Some(finding), ..Differences::default() };
    }
    add_holders(&mut differing, facts);
    let reason = differing.first().map(|first| {
        let until = "the loaded driver stays until everything is available";
        Reason::new("driver changed in place", format!("{}; {until}", first.reason))
    });
    Differences { replaced: differing, reason, finding: None }
}

/// True if a loaded module has the wanted parameters, as far as they are visible.
pub(super) fn has_parameters(config: &Config, facts: &HostFacts, name: &str) -> bool {
    facts.loaded.get(name).is_some_and(|live| parameters(config, facts, name, live).is_none())
}

impl Wanted<'_> {
    /// Returns the driver's loaded modules that are wanted otherwise, or no longer.
    fn differing(&self) -> Vec<Replaced> {
        let mut all = Vec::new();
        for name in self.modules {
            let Some(live) = self.facts.loaded.get(*name) else { continue };
            let entry = self.set.and_then(|set| set.modules.iter().find(|m| m.name == *name));
            let why = if *name == "nvidia" { self.driver(live) } else { None };
            let why = why
                .or_else(|| entry.and_then(|entry| self.build(live, entry)))
                .or_else(|| parameters(self.config, self.facts, name, live));
            all.extend(why.map(|reason| Replaced { module: (*name).to_owned(), reason }));
        }
        let unwanted = self.facts.ours.keys().filter(|name| {
            self.facts.loaded.contains_key(*name) && !self.modules.contains(&name.as_str())
        });
        all.extend(unwanted.map(|name| Replaced {
            module: name.clone(),
            reason: format!("{name} is loaded, and no longer wanted"),
        }));
        all
    }

    fn live_version(&self) -> Option<&str> {
        let live = self.facts.live_driver.as_ref().map(|live| live.version.as_str());
        live.or_else(|| self.facts.loaded.get("nvidia")?.version.as_deref())
    }

    /// Returns the reason if the whole driver is another one.
    fn driver(&self, live: &LoadedModule) -> Option<String> {
        let version = self.live_version().unwrap_or("?");
        let flavour = self.facts.live_driver.as_ref().and_then(|live| live.flavour);
        let users = match live.holders.as_slice() {
            [] => String::new(),
            holders => format!(", held by {}", holders.join(", ")),
        };
        let Choice { version: wanted, flavour: wanted_flavour, .. } = self.choice;
        let loaded = format!("driver {version} is loaded{users}");
        if version != wanted {
            return Some(format!("{loaded}, and {wanted} is wanted"));
        }
        let is_other = flavour.is_some_and(|flavour| flavour != *wanted_flavour);
        is_other.then(|| format!("{loaded} in the other flavour than {wanted_flavour}"))
    }

    /// Returns the reason if a module is another build.
    fn build(&self, live: &LoadedModule, entry: &ModuleEntry) -> Option<String> {
        let ModuleEntry { name, .. } = entry;
        match (&live.version, &entry.version) {
            (Some(live), Some(wanted)) if live != wanted => {
                return Some(format!("{name} {live} is loaded, and {wanted} is wanted"));
            }
            _ => {}
        }
        match (&live.srcversion, &entry.srcversion) {
            (Some(live), Some(wanted)) if live != wanted => Some(format!(
                "another build of {name} {} is loaded: srcversion {live}, wanted {wanted}",
                self.choice.version
            )),
            _ => None,
        }
    }
}

/// Returns the reason if a loaded module's parameters are not the wanted ones.
fn parameters(
    config: &Config,
    facts: &HostFacts,
    name: &str,
    live: &LoadedModule,
) -> Option<String> {
    let wanted = config.driver.parameters.get(name).map_or("", String::as_str);
    if let Some(differs) = module_parameters::differing(wanted, |p| live.parameters.get(p).cloned())
    {
        return Some(format!("{name} is loaded with other parameters: {differs}"));
    }
    // The default of a parameter that is no longer set is unknown.
    let given = facts.ours.get(name)?;
    (!module_parameters::same_parameters(given, wanted))
        .then(|| format!("{name} was loaded with parameters {given:?}, and {wanted:?} are wanted"))
}

/// Adds longshore's modules that hold one to be unloaded: they must be unloaded before it.
fn add_holders(going: &mut Vec<Replaced>, facts: &HostFacts) {
    let mut at = 0;
    while let Some(held) = going.get(at).map(|replaced| replaced.module.clone()) {
        for holder in facts.loaded.get(&held).into_iter().flat_map(|module| &module.holders) {
            let is_going = going.iter().any(|replaced| replaced.module == *holder);
            if !is_going && facts.ours.contains_key(holder) {
                let reason = format!("{holder} holds {held}");
                going.push(Replaced { module: holder.clone(), reason });
            }
        }
        at += 1;
    }
}
