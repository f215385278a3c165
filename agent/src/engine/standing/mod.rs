//! Comparison of an installed driver with the effects of its steps.

use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use crate::journal::JournalEntry;
use crate::steps::{LoadModule, Mounted, PublishSpec, Recheck, Step, exposing, is_replaced};
use longshore_core::driver_modules;
use longshore_core::failure::Failure;
use longshore_core::finding::Finding;
use longshore_host::VerbError;
use longshore_host::facts::gpus::Gpu;
use longshore_host::verbs::Stage;

/// Loadings of the driver's modules: kernel name -> its number, see
/// [`ModuleState::instance`](longshore_host::verbs::ModuleState).
pub type Instances = BTreeMap<String, Option<u64>>;

/// Differences between a driver's present and its recorded state.
#[derive(Debug)]
pub struct Standing {
    /// Descriptions of the driver's modules that are not the ones it became Ready with.
    pub modules: Vec<String>,
    /// Steps whose effect is gone.
    pub lost: Vec<Lost>,
    /// Findings about other programs' specs.
    pub rivals: Vec<Finding>,
    /// The GPUs, or why they could not be read.
    pub gpus: Result<Vec<Gpu>, VerbError>,
}

/// A step whose effect is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The step.
    pub step: Step,
    /// Description of what is in place of its effect.
    pub detail: String,
    /// True if something else is in the effect's place: doing the step again would cover it.
    pub covered: bool,
    /// True if doing the step again may help.
    pub repairable: bool,
}

impl Engine<'_> {
    /// Returns the present loadings of the driver's modules.
    ///
    /// # Errors
    /// If a module cannot be inspected.
    pub fn instances(
        &self,
        steps: &[Step],
        entries: &[JournalEntry],
    ) -> Result<Instances, VerbError> {
        // A plan that finds all of them loaded need not name them.
        let of_steps = steps.iter().filter_map(LoadModule::from_step);
        let of_entries = entries.iter().filter_map(|entry| LoadModule::recorded(&entry.step));
        let is_needed = |module: &&LoadModule| module.loads_after().is_none();
        let of_driver = of_steps.chain(of_entries).filter(|module| module.is_of_driver());
        let of_driver = of_driver.filter(is_needed);
        let named = of_driver.map(|module| module.name.as_str());
        let mut names: BTreeSet<&str> = driver_modules::always().collect();
        names.extend(named);
        let mut all = Instances::new();
        for name in names {
            if let Some(state) = self.host.module(name)? {
                all.insert(name.to_owned(), state.instance);
            }
        }
        Ok(all)
    }

    /// Inspects the modules, mounts, nodes, directories and parameters that `steps` made, of which
    /// `entries` are the live records. Daemons have a supervisor of their own, and the kernel's own
    /// modules cannot be unloaded while the driver uses them.
    ///
    /// Changes nothing. Blocks.
    pub fn look_again(
        &self,
        steps: &[Step],
        entries: &[JournalEntry],
        instances: &Instances,
    ) -> Standing {
        let modules: Vec<String> =
            instances.iter().filter_map(|(name, then)| self.module_lost(name, *then)).collect();
        let driver_is_gone = !modules.is_empty();
        let is_done = |step: &Step| entries.iter().any(|entry| entry.step.is_same(step));
        let is_looked_at = |step: &&Step| match step.properties().recheck {
            Recheck::Always => true,
            Recheck::WhileLoaded => !driver_is_gone,
            Recheck::UntilDone => !driver_is_gone && !is_done(step),
            Recheck::Never => false,
        };
        let lost =
            steps.iter().filter(is_looked_at).filter_map(|s| self.lost(s, entries)).collect();
        let published = steps.iter().filter_map(PublishSpec::from_step);
        let rivals = published.flat_map(|spec| spec.rivals(self.host)).collect();
        Standing { modules, lost, rivals, gpus: self.gpus(steps) }
    }

    fn module_lost(&self, name: &str, then: Option<u64>) -> Option<String> {
        match self.host.module(name) {
            Ok(None) => Some(format!("{name} is no longer loaded")),
            Ok(Some(state)) if state.stage == Stage::Going => {
                Some(format!("{name} is being unloaded"))
            }
            Ok(Some(state)) if then.is_some() && state.instance != then => {
                Some(format!("{name} was unloaded and loaded again by another program"))
            }
            Ok(Some(_)) => None,
            Err(error) => Some(format!("{name} cannot be inspected: {error}")),
        }
    }

    pub(super) fn lost(&self, step: &Step, entries: &[JournalEntry]) -> Option<Lost> {
        let lost = |detail, covered| {
            let repairable = self.can_act(step);
            Some(Lost { step: step.clone(), detail, covered, repairable })
        };
        match self.effect(step, entries) {
            Ok(Effect::There) => None,
            Ok(Effect::Gone(instead)) => lost(instead, false),
            Ok(Effect::Covered) => {
                lost(format!("something else is mounted on {}", step.subject()), true)
            }
            Err(failure) => {
                let repairable = step.properties().optional.is_none();
                let detail = failure.one_line();
                Some(Lost { step: step.clone(), detail, covered: false, repairable })
            }
        }
    }

    /// False for a module that the kernel would refuse: nothing of what it needs is loaded.
    pub(super) fn can_act(&self, step: &Step) -> bool {
        let after = LoadModule::from_step(step).and_then(LoadModule::loads_after);
        let is_loaded = |name: &&str| matches!(self.host.module(name), Ok(Some(_)));
        after.is_none_or(|names| names.iter().any(is_loaded))
    }

    fn effect(&self, step: &Step, entries: &[JournalEntry]) -> Result<Effect, Failure> {
        let ours = entries.iter().rfind(|entry| entry.step.is_same(step));
        if let Some(entry) = ours
            && self.is_there(entry)?
        {
            return Ok(match self.is_covered(entry) {
                Ok(true) => Effect::Covered,
                Ok(false) => Effect::There,
                Err(error) => return Err(exposing(error)),
            });
        }
        let lost = step.observe(self.host)?.and_then(|now| now.seen().gone);
        Ok(lost.map_or(Effect::There, Effect::Gone))
    }

    /// True if another mount has replaced, or covers, the tree that the entry mounted.
    fn is_covered(&self, entry: &JournalEntry) -> Result<bool, VerbError> {
        let Some(mount) = entry.step.mounted() else { return Ok(false) };
        let Mounted { count, from, .. } = mount;
        let Some(target) = mount.point() else { return Ok(false) };
        Ok(self.host.mounts_on(target)? > count && is_replaced(from, self.host, target)?)
    }
}

/// State of a step's effect.
enum Effect {
    There,
    Gone(String),
    Covered,
}

#[cfg(test)]
mod tests;
