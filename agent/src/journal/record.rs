//! Content of the state file: the plan, the phase, and every change with the state before it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::HostRoot;
use crate::journal::phase::Phase;
use crate::steps::{EntryState, LoadModule, NO_SUCH_STATE, Progress, Recorded, Step};
use longshore_core::paths::Paths;
use longshore_host::facts::LoadedModule;

/// Format that this longshore writes, and the newest that it can read.
///
/// 2 added `instance` to entries, `whole` and `previous`, 3 added `made_for`, 4 the steps that mount a
/// driver root and sysfs in it; a state of an earlier format is one without them.
pub const FORMAT: u32 = 4;

/// Settings that an agent made its entries with: the entries' paths are below these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeFor {
    /// Driver root.
    pub driver_root: PathBuf,
    /// Store.
    pub store: PathBuf,
}

/// Content of the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this format.
    pub format: u32,
    /// /proc/sys/kernel/random/boot_id of the boot the entries belong to.
    pub boot_id: Option<String>,
    /// The host root that the entries' paths are below, if it is not the agent's own.
    #[serde(default)]
    pub host_root: Option<HostRoot>,
    /// The settings of the agents that made the entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_for: Vec<MadeFor>,
    /// Process id of the agent that wrote it, in its own PID namespace.
    pub agent: u32,
    /// Phase of the agent.
    pub phase: Phase,
    /// The plan being carried out.
    pub plan: Option<PlanSummary>,
    /// True if the entries were all there was to do, and were verified: the driver was Ready and
    /// nothing was begun since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Steps to carry out again if the replacement of the driver fails: those of the driver that
    /// was Ready before, recorded before the first of them is undone and until another one is
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub previous: Vec<Step>,
    /// The driver that the kernel refused as the replacement of the installed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// Changes to the host, oldest first.
    pub entries: Vec<JournalEntry>,
}

/// A driver that the kernel refused: it is not retried at every start, because each time the
/// installed one would have to be unloaded first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The steps that load its modules.
    pub loads: Vec<Step>,
    /// The failure, in one line.
    pub why: String,
    /// True if it found no device that it drives (exit code 17, and not 16).
    pub no_device: bool,
}

/// Summary of a plan, to tell whether a later one wants the same driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Driver version.
    pub driver_version: String,
    /// Flavour.
    pub flavour: longshore_core::flavour::Flavour,
    /// Kernel release.
    pub kernel_release: String,
}

/// One change to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct JournalEntry {
    /// Number, counting up from 1 over the whole file.
    pub seq: u64,
    /// The step, and the state before it.
    #[serde(flatten)]
    pub step: Recorded,
    /// Progress.
    pub state: EntryState,
    /// Number of a module's loading, see
    /// [`ModuleState::instance`](longshore_host::verbs::ModuleState).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
}

/// An entry as the file has it: its step may have any state before it.
#[derive(Deserialize)]
struct Written {
    seq: u64,
    step: Step,
    before: serde_json::Value,
    state: EntryState,
    #[serde(default)]
    instance: Option<u64>,
}

impl TryFrom<Written> for JournalEntry {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { seq, step, before, state, instance } = written;
        Ok(Self { seq, step: step.with_before(before)?, state, instance })
    }
}

/// Returns the first entry whose step never has the state before it that the file has; None if
/// there is none, or the file cannot be parsed.
pub(super) fn mismatch(bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Entries {
        entries: Vec<Pair>,
    }
    #[derive(Deserialize)]
    struct Pair {
        seq: u64,
        step: Step,
        before: Before,
    }
    #[derive(Deserialize)]
    struct Before {
        was: String,
    }
    let Entries { entries } = serde_json::from_slice(bytes).ok()?;
    let Pair { seq, step, .. } = entries.iter().find(|pair| pair.step.was() != pair.before.was)?;
    Some(format!("entry {seq} ({}): {NO_SUCH_STATE}", step.kind()))
}

impl JournalEntry {
    /// Returns its progress.
    pub fn progress(&self) -> Progress<'_> {
        Progress { state: &self.state, instance: self.instance }
    }

    /// True if it may have an effect on the host that is ours to undo.
    pub fn is_live(&self) -> bool {
        matches!(self.state, EntryState::Intended | EntryState::Done)
    }
}

impl State {
    /// True if the host was booted since: modules, mounts, parameters and nodes are then gone. If
    /// either boot is unknown the entries stand: looking for effects that are gone does no harm.
    pub fn is_of_another_boot(&self, boot_id: Option<&str>) -> bool {
        matches!((self.boot_id.as_deref(), boot_id), (Some(then), Some(now)) if then != now)
    }

    /// Returns the driver's modules among `loaded` that we loaded by the entries, with the
    /// parameters they were given. A module of another build was loaded in its place by another
    /// program.
    pub fn driver_modules(
        &self,
        loaded: &BTreeMap<String, LoadedModule>,
    ) -> BTreeMap<String, String> {
        let mut ours = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.is_live()) {
            let Some(step) = LoadModule::recorded(&entry.step) else { continue };
            let LoadModule { name, parameters, version, srcversion, .. } = step;
            let is_it = |live: &LoadedModule| {
                let same = |wanted: &Option<String>, live: &Option<String>| {
                    wanted.is_none() || wanted == live
                };
                entry.state != EntryState::Done
                    || (same(version, &live.version) && same(srcversion, &live.srcversion))
            };
            if step.is_of_driver() && loaded.get(name).is_some_and(is_it) {
                ours.insert(name.clone(), parameters.clone());
            }
        }
        ours
    }

    /// Adds these settings to those that entries are made with.
    pub(super) fn follow_places(&mut self, paths: &Paths) {
        let now = MadeFor { driver_root: paths.driver_root.clone(), store: paths.store.clone() };
        if !self.entries.iter().any(JournalEntry::is_live) {
            self.made_for.clear();
        }
        if !self.made_for.contains(&now) {
            self.made_for.push(now);
        }
    }

    pub(super) fn fresh(boot_id: Option<String>) -> Self {
        Self {
            format: FORMAT,
            boot_id,
            host_root: None,
            made_for: Vec::new(),
            agent: std::process::id(),
            phase: Phase::Removed,
            plan: None,
            whole: false,
            previous: Vec::new(),
            refused: None,
            entries: Vec::new(),
        }
    }
}
