//! Content of the state file: the plan, the phase, and every change with the state before it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::HostRoot;
use crate::host::facts::LoadedModule;
use crate::host::verbs::Node;
use crate::journal::phase::Phase;
use crate::paths::Paths;
use crate::step::{ModuleOrigin, Step};

/// Format that this longshore writes, and the newest that it can read.
///
/// 2 added `instance` to entries, `whole` and `previous`, 3 added `made_for`; a state of an earlier
/// format is one without them.
pub const FORMAT: u32 = 3;

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
    #[serde(default, skip_serializing_if = "is_false")]
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
    pub entries: Vec<Entry>,
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

fn is_false(value: &bool) -> bool {
    !value
}

/// Summary of a plan, to tell whether a later one wants the same driver.
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
    /// Number, counting up from 1 over the whole file.
    pub seq: u64,
    /// The step.
    pub step: Step,
    /// The state before it.
    pub before: Before,
    /// Progress.
    pub state: EntryState,
    /// Number of a module's loading, see
    /// [`ModuleState::instance`](crate::host::verbs::ModuleState).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
}

/// Progress of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryState {
    /// About to act: only the host shows whether it did.
    Intended,
    /// Acted.
    Done,
    /// Undone.
    Undone,
    /// No longer ours to undo, with the reason.
    Kept(String),
}

/// State before a step.
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
    /// A leftover, which is removed for good.
    Leftover,
    /// Mounts that were on the target.
    Mounts {
        /// Number of mounts.
        count: usize,
    },
    /// The daemon did not run; every process that it becomes has this mark.
    NoDaemon {
        /// Value of [`crate::host::daemon::MARK_VARIABLE`] in their environment.
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

/// A node to be made, and its state before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBefore {
    /// Absolute path.
    pub path: PathBuf,
    /// The node to make.
    pub made: Node,
    /// The node before, if there was one.
    pub was: Option<Node>,
}

impl Entry {
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

    /// Adds these settings to those that entries are made with.
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
