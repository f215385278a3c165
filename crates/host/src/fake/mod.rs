//! Simulated host in memory: modules with references and dependencies, mounts, nodes, parameters.
//! It can fail at the n-th verb, or die there as a killed agent does.

mod modules;
pub mod stuck;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::facts::gpus::Gpu;
use crate::values::{DriverUser, FileId, Node, NodeKeeper};
use crate::verbs::VerbError;
use crate::verbs::{Binding, Stage};

pub use stuck::Stuck;

/// A module that the fake kernel can load. Its image is its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeModule {
    /// Modules that must be loaded first; it holds them while it is loaded.
    pub depends: Vec<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// srcversion.
    pub srcversion: Option<String>,
    /// Errno that the kernel returns instead of loading it.
    pub refused: Option<Errno>,
    /// Stage at which it hangs forever: Coming in its init function, Going in its exit function.
    pub hangs: Option<Stage>,
    /// True if it has no exit function and so cannot be unloaded.
    pub permanent: bool,
    /// True if it binds to the host's PCI devices, as the driver of its name.
    pub drives: bool,
    /// Nodes that the loaded module needs.
    pub nodes: Vec<(PathBuf, Node)>,
}

/// All state of the host that a verb can change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeState {
    /// Loaded modules: name -> parameters.
    pub loaded: BTreeMap<String, String>,
    /// Load number of each module that a verb loaded; the others were loaded from the start.
    pub instances: BTreeMap<String, u64>,
    /// Modules whose init or exit function hangs.
    pub wedged: BTreeMap<String, Stage>,
    /// References to modules by processes.
    pub references: BTreeMap<String, i64>,
    /// Parameter files.
    pub parameters: BTreeMap<PathBuf, String>,
    /// Mounts, oldest first: source and target.
    pub mounts: Vec<(String, PathBuf)>,
    /// Directories.
    pub dirs: BTreeSet<PathBuf>,
    /// Directories of each mounted root, which are gone with it.
    pub roots: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// Nodes.
    pub nodes: BTreeMap<PathBuf, Node>,
    /// Files.
    pub files: BTreeMap<PathBuf, FileId>,
    /// Symbolic links, with their targets.
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// SELinux labels.
    pub labels: BTreeMap<PathBuf, String>,
    /// Published files, and those that were not renamed yet, with their contents.
    pub published: BTreeMap<PathBuf, Vec<u8>>,
    /// Status files.
    pub statuses: BTreeMap<PathBuf, String>,
    /// GPUs on the PCI bus.
    pub gpus: Vec<Gpu>,
    /// Directories below the target of each small tmpfs from before its mount.
    pub covered: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// PCI devices by address, with their drivers.
    pub bindings: BTreeMap<String, Binding>,
    /// Daemons: mark -> name.
    pub daemons: BTreeMap<String, String>,
}

/// True if `path` is inside `dir`.
fn is_below(path: &Path, dir: &Path) -> bool {
    path != dir && path.starts_with(dir)
}

impl FakeState {
    /// Detaches the topmost mount on `target`, with those in it.
    ///
    /// # Errors
    /// EINVAL if nothing is mounted there.
    pub fn detach(&mut self, target: &Path) -> Result<(), Errno> {
        let top = self.top_on(target).ok_or(Errno::EINVAL)?;
        // Mounts in a mount go with it, and those that it covers stay.
        let (gone, stay): (Vec<_>, Vec<_>) = self
            .mounts
            .drain(top..)
            .enumerate()
            .partition(|(at, (_, on))| *at == 0 || on.starts_with(target));
        self.mounts.extend(stay.into_iter().map(|(_, mount)| mount));
        for (_, (_, on)) in gone {
            for dir in self.roots.remove(&on).unwrap_or_default() {
                self.dirs.remove(&dir);
            }
            if let Some(covered) = self.covered.remove(&on) {
                self.dirs.retain(|dir| !is_below(dir, &on) || covered.contains(dir));
            }
        }
        Ok(())
    }

    fn top_on(&self, target: &Path) -> Option<usize> {
        self.mounts.iter().rposition(|(_, on)| on == target)
    }

    /// Index of the mount on `target` that no later one on a directory above covers.
    pub(crate) fn shown_on(&self, target: &Path) -> Option<usize> {
        let top = self.top_on(target)?;
        let later = &self.mounts[top + 1..];
        (!later.iter().any(|(_, on)| target.starts_with(on))).then_some(top)
    }

    pub(crate) fn has_mount_inside(&self, target: &Path) -> bool {
        let top = self.top_on(target).map_or(0, |top| top + 1);
        self.mounts[top..].iter().any(|(_, on)| on.starts_with(target))
    }

    /// The same state without the load numbers of modules and the marks of daemons.
    #[must_use]
    pub fn whichever_loading(&self) -> Self {
        let mut names: Vec<String> = self.daemons.values().cloned().collect();
        names.sort();
        let daemons = names.into_iter().enumerate().map(|(n, name)| (n.to_string(), name));
        Self { instances: BTreeMap::new(), daemons: daemons.collect(), ..self.clone() }
    }
}

/// Failure to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The n-th verb (from 0) that changes something returns this errno, and does nothing.
    Refuse(usize, Errno),
    /// The agent dies in the n-th such verb, before it takes effect: it unwinds with [`Died`].
    DieBefore(usize),
    /// The same, after it took effect.
    DieAfter(usize),
}

/// Panic payload with which a verb unwinds when the agent dies in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Died;

/// Change of references at the n-th query: tests of waiting express "after n queries this process
/// ends".
type Look = Box<dyn FnMut(&mut FakeState, usize) + Send>;

/// Callback between two steps of an agent, with the host as it is then.
type AtPoint = Arc<dyn Fn(&FakeHost) + Send + Sync>;

/// A host in memory.
#[derive(Default)]
pub struct FakeHost {
    inner: Arc<Mutex<Inner>>,
    /// Root of the files that no verb is for; None where there are none.
    root: Option<PathBuf>,
}

#[derive(Default)]
struct Inner {
    kernel: BTreeMap<String, FakeModule>,
    state: FakeState,
    users: Vec<DriverUser>,
    aliases: BTreeMap<PathBuf, PathBuf>,
    busy_mounts: BTreeSet<PathBuf>,
    rivals: BTreeMap<PathBuf, Node>,
    keepers: BTreeMap<PathBuf, NodeKeeper>,
    rival_loads: BTreeMap<String, String>,
    loadings: u64,
    at_point: Option<AtPoint>,
    fault: Option<Fault>,
    changes: usize,
    looks: usize,
    on_look: Option<Look>,
    counts: Counts,
    log: Vec<String>,
    no_files: Option<Errno>,
    no_space: Option<Errno>,
    no_statuses: Option<Errno>,
    ill: BTreeMap<String, Ill>,
    /// Mark -> pipes that are closed when the daemon ends.
    open_pipes: BTreeMap<String, Vec<io::PipeWriter>>,
}

/// Numbers of queries, which tell a test that an agent has looked again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Queries of the driver's users.
    pub users: usize,
    /// Queries of the GPUs: each check of an installed driver has one.
    pub gpus: usize,
}

/// Fault of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ill {
    /// It exits as soon as it is started.
    Dies,
    /// It runs and never answers.
    Mute,
    /// It ignores SIGTERM.
    Stubborn,
}

impl fmt::Debug for FakeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().state.fmt(f)
    }
}

impl FakeHost {
    /// A host with these directories, and nothing else.
    pub fn with_dirs<'a>(dirs: impl IntoIterator<Item = &'a str>) -> Self {
        let host = Self::default();
        for dir in dirs {
            let made = Path::new(dir).ancestors().map(Path::to_path_buf);
            host.lock().state.dirs.extend(made);
        }
        host
    }

    /// A second handle of the same host.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), root: self.root.clone() }
    }

    /// Adds a module that the kernel can load.
    pub fn knows(&self, name: &str, module: FakeModule) {
        self.lock().kernel.insert(name.to_owned(), module);
    }

    /// Changes a module that the kernel can load.
    pub fn teach(&self, name: &str, change: impl FnOnce(&mut FakeModule)) {
        change(self.lock().kernel.entry(name.to_owned()).or_default());
    }

    /// Changes the host as another program would: no fault is injected.
    pub fn change<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        change(&mut self.lock().state)
    }

    /// A copy of the host's state.
    pub fn state(&self) -> FakeState {
        self.lock().state.clone()
    }

    /// Sets the fault and counts changes from 0 again.
    pub fn fails(&self, fault: Option<Fault>) {
        let mut inner = self.lock();
        inner.fault = fault;
        inner.changes = 0;
    }

    /// Number of verbs that tried to change something since the fault was set.
    pub fn changes(&self) -> usize {
        self.lock().changes
    }

    /// Makes the kernel return `errno` for every module that is passed as a file.
    pub fn takes_no_files(&self, errno: Errno) {
        self.lock().no_files = Some(errno);
    }

    /// The same host with the files below `root` that no verb is for.
    #[must_use]
    pub fn with_files_below(self, root: &Path) -> Self {
        Self { root: Some(root.to_path_buf()), ..self }
    }

    /// Makes every file that is published fail with `errno`; None for none.
    pub fn publishes_nothing(&self, errno: Option<Errno>) {
        self.lock().no_space = errno;
    }

    /// Makes every status file that is written fail with `errno`; None for none.
    pub fn writes_no_status(&self, errno: Option<Errno>) {
        self.lock().no_statuses = errno;
    }

    /// Sets the processes reported as holding the driver.
    pub fn used_by(&self, users: Vec<DriverUser>) {
        self.lock().users = users;
    }

    /// Makes `alias` the same directory as `dir`.
    pub fn alias(&self, alias: &str, dir: &str) {
        let mut inner = self.lock();
        inner.state.dirs.insert(PathBuf::from(alias));
        inner.aliases.insert(PathBuf::from(alias), PathBuf::from(dir));
    }

    /// Sets the keeper of the node of this name below a /dev; the default is the installer.
    pub fn kept_by(&self, name: &str, keeper: NodeKeeper) {
        self.lock().keepers.insert(PathBuf::from(name), keeper);
    }

    /// Makes another program create `node` just before it would be made at `path`.
    pub fn rival(&self, path: &str, node: Node) {
        self.lock().rivals.insert(PathBuf::from(path), node);
    }

    /// Makes another program load `module` with these parameters just before it would be loaded.
    pub fn rival_load(&self, module: &str, parameters: &str) {
        self.lock().rival_loads.insert(module.to_owned(), parameters.to_owned());
    }

    /// Unloads and reloads a module, as another program would.
    pub fn reload(&self, module: &str) {
        let mut inner = self.lock();
        inner.loadings += 1;
        let loading = inner.loadings;
        inner.state.instances.insert(module.to_owned(), loading);
    }

    /// Calls `act` before and after every verb that changes something: at these points an agent can
    /// die.
    pub fn at_point(&self, act: impl Fn(&FakeHost) + Send + Sync + 'static) {
        self.lock().at_point = Some(Arc::new(act));
    }

    fn pass_point(&self) {
        let act = self.lock().at_point.clone();
        if let Some(act) = act {
            act(self);
        }
    }

    /// Makes every unmount of `target` return EBUSY; detaching works.
    pub fn busy(&self, target: &str) {
        self.lock().busy_mounts.insert(PathBuf::from(target));
    }

    /// Sets or clears a daemon's fault.
    pub fn daemon_is(&self, name: &str, ill: Option<Ill>) {
        let mut inner = self.lock();
        inner.ill.remove(name);
        if let Some(ill) = ill {
            inner.ill.insert(name.to_owned(), ill);
        }
    }

    /// Ends a daemon, as its own crash would.
    pub fn daemon_dies(&self, name: &str) {
        let mut inner = self.lock();
        let is_it = |(_, n): &(&String, &String)| *n == name;
        let marks = inner.state.daemons.iter().filter(is_it).map(|(mark, _)| mark.clone());
        for mark in marks.collect::<Vec<_>>() {
            inner.end(&mark);
        }
    }

    /// Calls `act` with the state and the number of the query whenever a module is queried.
    pub fn on_look(&self, act: impl FnMut(&mut FakeState, usize) + Send + 'static) {
        let mut inner = self.lock();
        inner.looks = 0;
        inner.on_look = Some(Box::new(act));
    }

    /// The numbers of queries so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// The verbs that changed something or were told to fail, one line each.
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one verb that changes something.
    fn verb(
        &self,
        verb: &'static str,
        subject: impl Into<String>,
        act: impl FnOnce(&mut Inner) -> Result<(), Errno>,
    ) -> Result<(), VerbError> {
        let subject = subject.into();
        self.pass_point();
        let mut inner = self.lock();
        let number = inner.changes;
        inner.changes += 1;
        inner.log.push(format!("{verb} {subject}"));
        let fault = inner.fault;
        let strikes = |n: usize| n == number;
        match fault {
            Some(Fault::Refuse(n, errno)) if strikes(n) => {
                return Err(VerbError::new(verb, subject, errno));
            }
            Some(Fault::DieBefore(n)) if strikes(n) => {
                drop(inner);
                std::panic::resume_unwind(Box::new(Died));
            }
            _ => {}
        }
        let result = act(&mut inner);
        drop(inner);
        self.pass_point();
        if matches!(fault, Some(Fault::DieAfter(n)) if strikes(n)) {
            std::panic::resume_unwind(Box::new(Died));
        }
        result.map_err(|errno| VerbError::new(verb, subject, errno))
    }

    fn path_verb(
        &self,
        verb: &'static str,
        path: &Path,
        act: impl FnOnce(&mut Inner) -> Result<(), Errno>,
    ) -> Result<(), VerbError> {
        self.verb(verb, path.display().to_string(), act)
    }
}

impl Inner {
    fn holders(&self, name: &str) -> Vec<String> {
        let holds = |holder: &&String| {
            self.kernel.get(*holder).is_some_and(|m| m.depends.iter().any(|d| d == name))
        };
        self.state.loaded.keys().filter(holds).cloned().collect()
    }

    fn refcount(&self, name: &str) -> i64 {
        let others = self.state.references.get(name).copied().unwrap_or(0);
        self.holders(name).len() as i64 + others
    }

    fn parent_is_dir(&self, path: &Path) -> Result<(), Errno> {
        let there = path.parent().is_none_or(|parent| self.state.dirs.contains(parent));
        if there { Ok(()) } else { Err(Errno::ENOENT) }
    }

    fn is_free(&self, path: &Path) -> Result<(), Errno> {
        let state = &self.state;
        let taken = state.dirs.contains(path)
            || state.nodes.contains_key(path)
            || state.links.contains_key(path);
        if taken { Err(Errno::EEXIST) } else { Ok(()) }
    }

    /// Resolves an aliased directory in a path.
    fn real(&self, path: &Path) -> PathBuf {
        for (alias, dir) in &self.aliases {
            if let Ok(rest) = path.strip_prefix(alias) {
                return dir.join(rest);
            }
        }
        path.to_path_buf()
    }

    /// Ends the process under a mark: its descriptors become readable.
    fn end(&mut self, mark: &str) {
        self.state.daemons.remove(mark);
        self.open_pipes.remove(mark);
    }
}
