//! The record on disk of what was done to the host, for undoing it.
//!
//! `/run/nvidia/longshore/state.json`, written whole by temporary name, fsync and rename. Every
//! step's intent, with what was there before, is on disk before the step acts, so whoever finds
//! the file can undo what its writer did, wherever the writer died.

mod host_root;
mod lock;
mod state_file;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Paths;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::host::facts::LoadedModule;
use crate::host::verbs::Node;
use crate::lifecycle::phase::{IllegalTransition, Phase};
use crate::plan::Plan;
use crate::step::{ModuleOrigin, Step};
use crate::store::write_remedy;

pub use host_root::HostRoot;
pub use lock::{Holder, Lock, holder};
use state_file::StateFile;

/// The format this longshore writes, and the newest it understands.
///
/// 2 added `instance` to entries, `whole` and `previous`; a state of format 1 is one without them.
pub const FORMAT: u32 = 2;

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
    pub flavour: crate::artifact::Flavour,
    /// Kernel release.
    pub kernel_release: String,
}

impl From<&Plan> for PlanSummary {
    fn from(plan: &Plan) -> Self {
        Self {
            driver_version: plan.driver_version.clone(),
            flavour: plan.flavour,
            kernel_release: plan.kernel_release.clone(),
        }
    }
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
        /// What [`crate::daemons::MARK_VARIABLE`] is in their environment.
        mark: String,
    },
    /// These directories were missing and these nodes were missing or another device's.
    Nodes {
        /// Absolute paths, outermost first.
        missing_dirs: Vec<PathBuf>,
        /// The nodes to be made.
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

/// The state file, held open for changes by the one agent that holds the lock.
#[derive(Debug)]
pub struct Journal {
    state: State,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Dir { file: StateFile, lock: Lock },
    Memory,
}

impl Journal {
    /// Takes the lock, then reads the state; entries of another boot are void and dropped.
    ///
    /// # Errors
    /// 15 where another agent holds the lock, the directory cannot be read or written, a newer
    /// longshore wrote the state, or its entries are below a host root that is not the one now; 13
    /// where the state cannot be understood.
    pub fn open(paths: &Paths) -> Result<Self, Failure> {
        Self::try_open(paths)?.map_err(|holder| holder.into_failure(&paths.state, Duration::ZERO))
    }

    /// As [`Journal::open`]; the inner error is who holds the lock.
    ///
    /// # Errors
    /// As there.
    pub fn try_open(paths: &Paths) -> Result<Result<Self, Holder>, Failure> {
        let dir = &paths.state;
        let file = StateFile::open(dir).map_err(|e| unwritable(dir, e))?;
        let lock = match Lock::take(dir)? {
            Ok(lock) => lock,
            Err(holder) => return Ok(Err(holder)),
        };
        let boot_id = boot_id(&paths.root);
        let mut state = read_state(dir)?.unwrap_or_else(|| State::fresh(boot_id.clone()));
        if state.is_of_another_boot(boot_id.as_deref()) {
            let void = state.entries.iter().filter(|entry| entry.is_live()).count();
            tracing::info!("the host was booted since: {void} entries of the last boot are void");
            state = State::fresh(boot_id.clone());
        }
        let host_root = HostRoot::of(paths);
        match &state.host_root {
            Some(then) if state.entries.iter().any(Entry::is_live) => {
                then.check(host_root.as_ref())?;
            }
            _ => state.host_root = host_root,
        }
        state.format = FORMAT;
        state.agent = std::process::id();
        state.boot_id = state.boot_id.or(boot_id);
        Ok(Ok(Self { state, place: Place::Dir { file, lock } }))
    }

    /// The lock, for a child that is to hold it as long as this journal does, and longer where it
    /// hangs in the kernel. None where this journal is on no disk.
    pub fn share_lock(&self) -> Option<File> {
        let Place::Dir { lock, .. } = &self.place else { return None };
        lock.share().inspect_err(|e| tracing::warn!("sharing the lock: {e}")).ok()
    }

    /// A journal that is on no disk, for tests.
    pub fn in_memory() -> Self {
        Self { state: State::fresh(None), place: Place::Memory }
    }

    /// What it holds.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        self.state.phase
    }

    /// Entries that may still have left something on the host, oldest first.
    pub fn live(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.state.entries.iter().filter(|e| e.is_live())
    }

    /// The number the next entry will get.
    pub fn next_seq(&self) -> u64 {
        self.state.entries.last().map_or(1, |e| e.seq + 1)
    }

    /// Begins an agent's life in `phase`, whatever the last one died in; forgets what is undone.
    ///
    /// # Errors
    /// 70 where no life begins so; 15 where the state cannot be written.
    pub fn begin(&mut self, phase: Phase) -> Result<(), Failure> {
        if !phase.begins_a_life() {
            let bug = IllegalTransition { from: self.state.phase, to: phase };
            return Err(Failure::new(ExitCode::Bug, "beginning an agent's life").because(bug));
        }
        self.state.entries.retain(Entry::is_live);
        self.state.phase = phase;
        self.follow(phase);
        self.save()
    }

    /// What a phase says of the entries.
    fn follow(&mut self, phase: Phase) {
        let state = &mut self.state;
        match phase {
            Phase::Ready => {
                state.whole = true;
                state.previous.clear();
                state.refused = None;
                state.entries.retain(Entry::is_live);
            }
            // Where an agent died in the midst of a change, what it was to bring back stands.
            Phase::Changing if state.whole => {
                let live = state.entries.iter().filter(|entry| entry.is_live());
                state.previous = live.map(|entry| entry.step.clone()).collect();
            }
            // What is asked to be removed does not come back, and what is whole need not.
            Phase::Removing => {
                state.previous.clear();
                state.refused = None;
            }
            Phase::InUse | Phase::Failed if state.whole => state.previous.clear(),
            _ => {}
        }
    }

    /// Records that a driver was refused in the place of the one that is live.
    ///
    /// # Errors
    /// 15 where the state cannot be written.
    pub fn refuse(&mut self, refused: Refused) -> Result<(), Failure> {
        self.state.refused = Some(refused);
        self.save()
    }

    /// Records that the driver that was there before a change is there again, whole.
    ///
    /// # Errors
    /// 15 where the state cannot be written.
    pub fn restored(&mut self) -> Result<(), Failure> {
        self.state.whole = true;
        self.state.previous.clear();
        self.state.entries.retain(Entry::is_live);
        self.save()
    }

    /// Goes on to the next phase.
    ///
    /// # Errors
    /// 70 where the transition is illegal; 15 where the state cannot be written.
    pub fn enter(&mut self, phase: Phase) -> Result<(), Failure> {
        let next =
            self.state.phase.to(phase).or_fail(ExitCode::Bug, || format!("entering {phase}"))?;
        self.state.phase = next;
        self.follow(phase);
        self.save()
    }

    /// Records which plan the entries to come belong to.
    ///
    /// # Errors
    /// 15 where the state cannot be written.
    pub fn carry_out(&mut self, plan: PlanSummary) -> Result<(), Failure> {
        self.state.plan = Some(plan);
        self.save()
    }

    /// Records an intent, and returns its number. The act may follow only after this returned.
    ///
    /// # Errors
    /// 15 where the state cannot be written; nothing is recorded then.
    pub fn intend(&mut self, step: Step, before: Before) -> Result<u64, Failure> {
        let seq = self.next_seq();
        self.state.whole = false;
        let state = EntryState::Intended;
        self.state.entries.push(Entry { seq, step, before, state, instance: None });
        if let Err(failure) = self.save() {
            self.state.entries.pop();
            return Err(failure);
        }
        Ok(seq)
    }

    /// Records how far an entry came.
    ///
    /// # Errors
    /// 15 where the state cannot be written; in memory it is recorded all the same.
    pub fn mark(&mut self, seq: u64, state: EntryState) -> Result<(), Failure> {
        self.state.whole &= matches!(state, EntryState::Done);
        if let Some(entry) = self.state.entries.iter_mut().find(|e| e.seq == seq) {
            entry.state = state;
        }
        self.save()
    }

    /// Records that an entry acted; of a module, which loading of it that was.
    ///
    /// # Errors
    /// As [`Journal::mark`].
    pub fn mark_done(&mut self, seq: u64, instance: Option<u64>) -> Result<(), Failure> {
        if let Some(entry) = self.state.entries.iter_mut().find(|e| e.seq == seq) {
            entry.instance = instance;
        }
        self.mark(seq, EntryState::Done)
    }

    fn save(&mut self) -> Result<(), Failure> {
        let Place::Dir { file, .. } = &mut self.place else { return Ok(()) };
        let path = file.path();
        let mut bytes = serde_json::to_vec_pretty(&self.state)
            .or_fail(ExitCode::Bug, || format!("writing {}", path.display()))?;
        bytes.push(b'\n');
        file.write(&bytes).map_err(|e| unwritable(&path, e))
    }

    /// Acts at every point of every write of the state file.
    #[cfg(test)]
    pub(crate) fn at_point(&mut self, act: state_file::AtPoint) {
        if let Place::Dir { file, .. } = &mut self.place {
            file.at_point(act);
        }
    }
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

    fn fresh(boot_id: Option<String>) -> Self {
        Self {
            format: FORMAT,
            boot_id,
            host_root: None,
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

/// Reads the state file in `dir` without taking the lock; None where there is none.
///
/// # Errors
/// As [`Journal::open`].
pub fn read_state(dir: &Path) -> Result<Option<State>, Failure> {
    match state_file::read(dir) {
        (path, Ok(Some(bytes))) => parse_state(&path, &bytes).map(Some),
        (_, Ok(None)) => Ok(None),
        (path, Err(e)) => Err(unread(&path, e)),
    }
}

/// When the state file in `dir` was last written; None where there is none.
pub fn written(dir: &Path) -> Option<jiff::Timestamp> {
    let time = fs::metadata(dir.join("state.json")).and_then(|meta| meta.modified()).ok()?;
    time.try_into().ok()
}

/// The running kernel's boot id, from a /proc below `root`.
pub fn boot_id(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned())
}

fn parse_state(path: &Path, bytes: &[u8]) -> Result<State, Failure> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let Format { format } =
        serde_json::from_slice(bytes).map_err(|e| unreadable(path).because(e))?;
    if format < 1 {
        return Err(unreadable(path).because(format!("there is no format {format}")));
    }
    if format > FORMAT {
        return Err(Failure::new(
            ExitCode::Preflight,
            format!(
                "{} has format {format}, and this longshore knows formats up to {FORMAT}",
                path.display()
            ),
        )
        .remedy("a newer longshore wrote it: use that one; nothing was touched"));
    }
    serde_json::from_slice(bytes).map_err(|e| unreadable(path).because(e))
}

fn unread(path: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--state-dir")
        .unwrap_or_else(|| "check the file system of --state-dir".to_owned());
    Failure::new(ExitCode::Preflight, format!("reading {}", path.display()))
        .because(error)
        .remedy(remedy)
}

fn unreadable(path: &Path) -> Failure {
    Failure::new(
        ExitCode::Verification,
        format!("{} cannot be understood as a longshore state file", path.display()),
    )
    .remedy(
        "it records what an agent did to this host, so it is not overwritten: look at what is \
         loaded and mounted, take it off by hand, move the file away and start again; a reboot \
         clears it, too",
    )
}

fn unwritable(path: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--state-dir").unwrap_or_else(|| {
        "--state-dir must be a directory on the host's /run that this process may write (mount \
         /run/nvidia into the container with rshared propagation)"
            .to_owned()
    });
    Failure::new(ExitCode::Preflight, format!("writing {}", path.display()))
        .because(error)
        .remedy(remedy)
}

#[cfg(test)]
mod tests;
