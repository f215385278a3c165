//! What the state file records: the plan, the phase, and every change with what was there before.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::HostRoot;
use crate::host::facts::LoadedModule;
use crate::host::verbs::Node;
use crate::journal::phase::Phase;
use crate::paths::Paths;
use crate::step::{ModuleOrigin, Step};

/// The format this longshore writes, and the newest it understands.
///
/// 2 added `instance` to entries, `whole` and `previous`, 3 added `made_for`; a state of an earlier format
/// is one without them.
pub const FORMAT: u32 = 3;

/// Settings that an agent made its entries with: their paths are below these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeFor {
    /// Driver root.
    pub driver_root: PathBuf,
    /// Store.
    pub store: PathBuf,
}

/// What the state file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this format.
    pub format: u32,
    /// /proc/sys/kernel/random/boot_id of the boot the entries belong to.
    pub boot_id: Option<String>,
    /// The host root that the entries' paths are below, where it is not the agent's own.
    #[serde(default)]
    pub host_root: Option<HostRoot>,
    /// The settings of the agents that made the entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_for: Vec<MadeFor>,
    /// Process id of the agent that wrote it, in its own PID namespace.
    pub agent: u32,
    /// What the agent was at.
    pub phase: Phase,
    /// The plan being carried out.
    pub plan: Option<PlanSummary>,
    /// Whether the entries were all there was to do, and were seen to hold: the driver was Ready
    /// and nothing was begun since.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole: bool,
    /// What to bring back where the driver that takes its place cannot be had: the steps of the
    /// driver that was Ready before, from before the first of them is undone until another one is
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub previous: Vec<Step>,
    /// The driver that the kernel refused when it was to take the place of the one that is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// What was done, oldest first.
    pub entries: Vec<Entry>,
}

/// A driver that the kernel refused: it is not tried again at every start, for each time the one
/// that is live would have to go first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The steps that load its modules.
    pub loads: Vec<Step>,
    /// The failure, in one line.
    pub why: String,
    /// Whether it found no device that it drives (exit code 17, and not 16).
    pub no_device: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// What a plan comes down to, for telling whether a later one wants the same driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Driver version.
    pub driver_version: String,
    /// Flavour.
    pub flavour: crate::flavour::Flavour,
    /// Kernel release.
    pub kernel_release: String,
}

/// One change to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts up from 1 over the whole file.
    pub seq: u64,
    /// The step.
    pub step: Step,
    /// What was there before it.
    pub before: Before,
    /// How far it came.
    pub state: EntryState,
    /// Of a module that was loaded: which loading of it, see
    /// [`ModuleState::instance`](crate::host::verbs::ModuleState).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
}

/// How far an entry came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryState {
    /// It was about to act: whether it did must be observed.
    Intended,
    /// It acted.
    Done,
    /// It was undone.
    Undone,
    /// It is no longer ours to undo, and why.
    Kept(String),
}

/// What was there before a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "was", rename_all = "kebab-case")]
pub enum Before {
    /// These directories were missing, outermost first.
    MissingDirs {
        /// Absolute paths.
        dirs: Vec<PathBuf>,
    },
    /// The file held this value.
    Value {
        /// Without its trailing newline.
        value: String,
    },
    /// The module was not loaded.
    NotLoaded,
    /// Something that is taken away for good.
    Leftover,
    /// So many mounts lay on the target.
    Mounts {
        /// How many.
        count: usize,
    },
    /// The daemon did not run; every process that it becomes has this mark.
    NoDaemon {
        /// What [`crate::host::daemon::MARK_VARIABLE`] is in their environment.
        mark: String,
    },
    /// These directories were missing, and these nodes were missing, another device's, or had other
    /// permissions.
    Nodes {
        /// Absolute paths, outermost first.
        missing_dirs: Vec<PathBuf>,
        /// The nodes to be made or changed.
        nodes: Vec<NodeBefore>,
    },
}

/// A node to be made, and what was there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBefore {
    /// Absolute path.
    pub path: PathBuf,
    /// What is made.
    pub made: Node,
    /// What was there.
    pub was: Option<Node>,
}

impl Entry {
    /// Whether it may have left something on the host that is ours to undo.
    pub fn is_live(&self) -> bool {
        matches!(self.state, EntryState::Intended | EntryState::Done)
    }
}

impl State {
    /// Whether the host was booted since: modules, mounts, parameters and nodes are then gone.
    /// Where either boot is unknown the entries stand: to look for what is gone does no harm.
    pub fn is_of_another_boot(&self, boot_id: Option<&str>) -> bool {
        matches!((self.boot_id.as_deref(), boot_id), (Some(then), Some(now)) if then != now)
    }

    /// The driver's modules among `loaded` that the entries say we loaded, with the parameters they
    /// were given. One that is loaded in another build is what somebody put in its place.
    pub fn driver_modules(
        &self,
        loaded: &BTreeMap<String, LoadedModule>,
    ) -> BTreeMap<String, String> {
        let mut ours = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.is_live()) {
            let Step::LoadModule { name, origin, parameters, version, srcversion } = &entry.step
            else {
                continue;
            };
            let is_it = |live: &LoadedModule| {
                let same = |wanted: &Option<String>, live: &Option<String>| {
                    wanted.is_none() || wanted == live
                };
                entry.state != EntryState::Done
                    || (same(version, &live.version) && same(srcversion, &live.srcversion))
            };
            if matches!(origin, ModuleOrigin::Driver { .. }) && loaded.get(name).is_some_and(is_it)
            {
                ours.insert(name.clone(), parameters.clone());
            }
        }
        ours
    }

    /// From now on entries are made with these settings, too.
    pub(super) fn follow_places(&mut self, paths: &Paths) {
        let now = MadeFor { driver_root: paths.driver_root.clone(), store: paths.store.clone() };
        if !self.entries.iter().any(Entry::is_live) {
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
