//! Status report: the driver on the host, its owner, and the live state of the agent.

mod render;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Config, SOCKET};
use crate::endpoint::client;
use crate::journal::phase::Phase;
use crate::journal::{self, EntryState, JournalEntry, State};
use crate::steps::{LoadModule, MakeNodes, Mounted, Observed, Recorded};
use crate::telemetry::{FailureRecord, Live};
use crate::termination::{self, LastFailure};
use longshore_core::bounded_call;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::Paths;
use longshore_host::facts::modules::is_of_driver;
use longshore_host::values::{Node, NodeKeeper, WantedNode};
use longshore_host::{Host, RealHost, VerbError};

/// Report of `longshore status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatusReport {
    /// The phase that the journal was left in; None if no agent ran since the host was booted.
    pub phase: Option<Phase>,
    /// Process id, in its own PID namespace, of the agent that holds the lock; None if none does,
    /// or `agent_error` has the reason that this is unknown.
    pub agent: Option<u32>,
    /// `/sys/module/nvidia/version`: the loaded driver, by whichever program.
    pub driver_version: Option<String>,
    /// NVIDIA's modules, and the others we loaded.
    pub modules: Vec<ModuleStatus>,
    /// The mounts we made.
    pub mounts: Vec<MountStatus>,
    /// The device nodes of the driver.
    pub nodes: Vec<NodeStatus>,
    /// The journal's entries that are not undone, oldest first.
    pub entries: Vec<EntryStatus>,
    /// Reason that the journal could not be read: earlier agents' changes are then unknown, and
    /// nothing is reported as owned.
    pub journal_error: Option<String>,
    /// Live state of the agent; None if no agent runs or it did not answer.
    pub live: Option<Live>,
    /// Reason that an agent that runs, or may run, did not answer.
    pub agent_error: Option<String>,
    /// The last failure of an agent on this host.
    pub last_failure: Option<FailureStatus>,
}

impl StatusReport {
    /// True if an agent runs and says that its driver is ready.
    pub fn is_ready(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.ready)
    }
}

/// The last failure of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureStatus {
    /// The failure.
    #[serde(flatten)]
    pub failure: FailureRecord,
    /// True if the host was booted since; None if that is unknown.
    pub before_this_boot: Option<bool>,
}

/// A loaded module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModuleStatus {
    /// Kernel name.
    pub name: String,
    /// References to it.
    pub refcount: i64,
    /// Modules that hold it.
    pub holders: Vec<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// True if the journal has it as loaded by us.
    pub owned: bool,
}

/// A mount of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountStatus {
    /// Mount point.
    pub target: PathBuf,
    /// True if it is mounted now.
    pub mounted: bool,
}

/// A device node of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    /// Present or expected path.
    pub path: PathBuf,
    /// True if a device node is there.
    pub present: bool,
    /// True if it is there with the right numbers.
    pub correct: bool,
    /// True if the journal has it as made by us.
    pub owned: bool,
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntryStatus {
    /// Its number.
    pub seq: u64,
    /// Description of the step.
    pub step: String,
    /// True if the step was carried out; otherwise its agent died before, or is doing it.
    pub done: bool,
}

/// Number of nodes in a directory that are listed.
const MOST_NODES: usize = 4096;

/// Time limit for inspecting the host, as `ASK` is for the agent's answer: neither a mount nor an
/// agent that hangs blocks the caller.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
const ASK: Duration = Duration::from_secs(12);

/// A report, and the error of reading the journal for it.
pub type ReadStatus = (StatusReport, Result<(), Failure>);

/// Inspects the host, and queries the agent, if one runs. Changes nothing, and holds the lock only
/// for the moment of checking that it is free.
///
/// The inner error is for after the report, which has all that is known then: 13 if the journal
/// cannot be parsed, 15 if it cannot be read.
///
/// # Errors
/// 10 if the host cannot be read.
pub fn status(config: &Config) -> Result<ReadStatus, Failure> {
    let paths = config.paths.clone();
    let looked = bounded_call::in_time("status", LOOK, move || Ok(of_host(&paths)));
    let (mut report, record) = match looked {
        Some(Ok(seen)) => seen?,
        Some(Err(error)) => Err(error).or_fail(FailureKind::Preflight, || "looking at the host")?,
        None => return Err(hangs()),
    };
    if report.agent.is_some() {
        match ask_agent(&config.paths) {
            Ok(live) => report.live = Some(live),
            Err(why) => report.agent_error = Some(why),
        }
    }
    Ok((report, record))
}

/// Failure of an inspection that took longer.
pub(crate) fn hangs() -> Failure {
    let cause = format!("looking at the host took more than {} s", LOOK.as_secs());
    Failure::new(FailureKind::HostUnsupported, cause)
        .remedy("find the mount or process of the host that hangs (the kernel's log names it)")
}

/// Queries the live state of the running agent.
fn ask_agent(paths: &Paths) -> Result<Live, String> {
    let socket = paths.state.join(SOCKET);
    let why = |error: &dyn std::fmt::Display| format!("{}: {error}", socket.display());
    let answer = client::ask(&paths.state, "/status", ASK).map_err(|e| why(&e))?;
    if answer.status != 200 {
        return Err(why(&answer.body.trim_end()));
    }
    let answer: LivePart = serde_json::from_str(&answer.body).map_err(|e| why(&e))?;
    Ok(answer.live)
}

/// The part of a status that the host does not show.
#[derive(Deserialize)]
struct LivePart {
    live: Live,
}

/// Returns the agent's own live state, with an inspection of the host.
///
/// # Errors
/// 10 if the host cannot be read.
pub fn of_agent(paths: &Paths, live: Live) -> Result<StatusReport, Failure> {
    Ok(StatusReport { live: Some(live), ..of_host(paths)?.0 })
}

fn of_host(paths: &Paths) -> Result<ReadStatus, Failure> {
    let boot = journal::boot_id(&paths.root);
    let (state, record) = match journal::read_state(paths) {
        Ok(state) => (state.filter(|s| !s.is_of_another_boot(boot.as_deref())), Ok(())),
        Err(failure) => (None, Err(failure)),
    };
    let report = look(paths, &RealHost::new(&paths.root), state.as_ref())
        .or_fail(FailureKind::HostUnsupported, || "looking at the host")
        .map_err(|failure| failure.remedy("mount /proc and /sys in the container"))?;
    let journal_error = record.as_ref().err().map(Failure::one_line);
    Ok((StatusReport { journal_error, ..report }, record))
}

fn look(paths: &Paths, host: &dyn Host, state: Option<&State>) -> Result<StatusReport, VerbError> {
    let live: Vec<&JournalEntry> = state.map_or_else(Vec::new, |state| {
        state.entries.iter().filter(|entry| entry.is_live()).collect()
    });
    let driver = host.module("nvidia")?;
    let (agent, agent_error) = match journal::holder(&paths.state) {
        Ok(agent) => (agent, None),
        Err(why) => (None, Some(why)),
    };
    Ok(StatusReport {
        phase: state.map(|state| state.phase),
        agent,
        driver_version: driver.and_then(|module| module.version),
        modules: modules(paths, host, &live)?,
        mounts: mounts(host, &live)?,
        nodes: nodes(paths, host, &live)?,
        entries: live.iter().map(|entry| EntryStatus::from(*entry)).collect(),
        journal_error: None,
        live: None,
        agent_error,
        last_failure: termination::last(paths).map(|last| FailureStatus::from_record(last, paths)),
    })
}

impl FailureStatus {
    fn from_record(last: LastFailure, paths: &Paths) -> Self {
        let before = match (last.boot_id, journal::boot_id(&paths.root)) {
            (Some(then), Some(now)) => Some(then != now),
            _ => None,
        };
        Self { failure: last.failure, before_this_boot: before }
    }
}

impl From<&JournalEntry> for EntryStatus {
    fn from(entry: &JournalEntry) -> Self {
        let done = entry.state == EntryState::Done;
        Self { seq: entry.seq, step: entry.step.to_string(), done }
    }
}

fn modules(
    paths: &Paths,
    host: &dyn Host,
    live: &[&JournalEntry],
) -> Result<Vec<ModuleStatus>, VerbError> {
    let of_entries = live.iter().filter_map(|entry| LoadModule::recorded(&entry.step));
    let owned: BTreeSet<String> = of_entries.map(|module| module.name.clone()).collect();
    let mut names = owned.clone();
    // Without a /sys/module (a kernel without modules) there is no module.
    let listed = fs::read_dir(paths.root.join("sys/module")).into_iter().flatten().flatten();
    let listed = listed.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.extend(listed.filter(|name| is_of_driver(name)));
    let mut modules = Vec::new();
    for name in names {
        if let Some(state) = host.module(&name)? {
            let owned = owned.contains(&name);
            modules.push(ModuleStatus {
                name,
                refcount: state.refcount,
                holders: state.holders,
                version: state.version,
                owned,
            });
        }
    }
    Ok(modules)
}

fn mounts(host: &dyn Host, live: &[&JournalEntry]) -> Result<Vec<MountStatus>, VerbError> {
    let ours = live.iter().filter_map(|entry| entry.step.mounted());
    let status = |Mounted { target, count, .. }: Mounted<'_>| -> Result<_, VerbError> {
        let mounted = host.mounts_on(target)? > count;
        Ok(MountStatus { target: target.to_path_buf(), mounted })
    };
    ours.map(status).collect()
}

/// Returns the nodes that are there, and as missing those that longshore is to make: once it has made nodes, it keeps
/// all of the loaded driver's. Another program's driver has the nodes that its installer made, or none.
fn nodes(
    paths: &Paths,
    host: &dyn Host,
    live: &[&JournalEntry],
) -> Result<Vec<NodeStatus>, VerbError> {
    let dev = paths.host_root.join("dev");
    let mut known: BTreeMap<PathBuf, Known> = BTreeMap::new();
    known.extend(listed(&dev).into_iter().map(|path| (path, Known::default())));
    let makes = live.iter().any(|entry| MakeNodes::recorded(&entry.step).is_some());
    for WantedNode { name, node, keeper } in host.wanted_nodes()? {
        let is_installers = keeper == NodeKeeper::Installer
            || (keeper == NodeKeeper::Loader && !live.iter().any(|e| is_left_to_admin(e)));
        let wanted = Known { node: Some(node), owned: false, is_made: makes && is_installers };
        known.insert(dev.join(name), wanted);
    }
    for entry in live {
        if let Recorded::MakeNodes(Observed { before, .. }) = &entry.step {
            let made = |node: Node| Known { node: Some(node), owned: true, is_made: true };
            known.extend(before.nodes.iter().map(|node| (node.path.clone(), made(node.made))));
        }
    }
    let status = |(path, known): (PathBuf, Known)| {
        // A file that is no device node may be in a node's place.
        let found = host.node(&path).ok().flatten();
        let is_right = |found: &Node| known.node.is_none_or(|wanted| found.same_device(&wanted));
        let correct = found.as_ref().is_some_and(is_right);
        let present = found.is_some();
        (present || known.is_made).then_some(NodeStatus {
            path,
            present,
            correct,
            owned: known.owned,
        })
    };
    Ok(known.into_iter().filter_map(status).collect())
}

/// A path at which a node of the driver is, or is to be.
#[derive(Debug, Default)]
struct Known {
    /// The node that is to be there, where the driver says so.
    node: Option<Node>,
    owned: bool,
    /// True if longshore makes it where it is missing.
    is_made: bool,
}

/// Returns the paths of this name of the driver in a /dev, and in its directory of capabilities.
fn listed(dev: &Path) -> Vec<PathBuf> {
    let names = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let is_node = |entry: &fs::DirEntry| {
        entry.file_type().is_ok_and(|kind| kind.is_char_device())
            && entry.file_name().as_encoded_bytes().starts_with(b"nvidia")
    };
    let of = |dir: &Path| names(dir).filter(is_node).map(|entry| entry.path()).take(MOST_NODES);
    of(dev).chain(of(&dev.join("nvidia-caps"))).collect()
}

/// True if the nodes of the loaded driver are the administrator's.
fn is_left_to_admin(entry: &JournalEntry) -> bool {
    MakeNodes::recorded(&entry.step).is_some_and(|nodes| nodes.left_to_admin)
}

#[cfg(test)]
mod tests;
