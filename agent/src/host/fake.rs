//! A host in memory: modules with references and dependencies, mounts, nodes, parameters; it can
//! fail at the n-th verb, or die there as a killed agent does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use super::verbs::{DirId, DriverUser, Host, ModuleState, Node, VerbError};
use crate::failure::Failure;
use crate::kernel::image::Images;
use crate::step::ModuleOrigin;

/// A module the fake kernel can load. Its image is its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeModule {
    /// Modules that must be loaded first, and that it holds while it is.
    pub depends: Vec<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// srcversion.
    pub srcversion: Option<String>,
    /// What the kernel answers to a load in place of loading.
    pub refused: Option<Errno>,
    /// Whether it has no exit function, and so cannot be removed.
    pub permanent: bool,
    /// Nodes the loaded module wants.
    pub nodes: Vec<(PathBuf, Node)>,
}

/// Everything about the host that a verb can change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeState {
    /// Loaded modules: name -> parameters.
    pub loaded: BTreeMap<String, String>,
    /// References to modules by processes.
    pub references: BTreeMap<String, i64>,
    /// Parameter files.
    pub parameters: BTreeMap<PathBuf, String>,
    /// Mounts, oldest first: what is mounted, and where.
    pub mounts: Vec<(String, PathBuf)>,
    /// Directories.
    pub dirs: BTreeSet<PathBuf>,
    /// Nodes.
    pub nodes: BTreeMap<PathBuf, Node>,
}

/// When the host fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The n-th verb (from 0) that changes something answers with this errno, and does nothing.
    Refuse(usize, Errno),
    /// The agent dies in the n-th such verb, before it takes effect: it unwinds with [`Died`].
    DieBefore(usize),
    /// The same, after it took effect.
    DieAfter(usize),
}

/// What a verb unwinds with when the agent dies in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Died;

/// What happens to references, looked at once more: tests of waiting say "after so many looks,
/// this process ends".
type Look = Box<dyn FnMut(&mut FakeState, usize) + Send>;

/// A host in memory.
#[derive(Default)]
pub struct FakeHost {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    kernel: BTreeMap<String, FakeModule>,
    state: FakeState,
    users: Vec<DriverUser>,
    aliases: BTreeMap<PathBuf, PathBuf>,
    busy_mounts: BTreeSet<PathBuf>,
    rivals: BTreeMap<PathBuf, Node>,
    fault: Option<Fault>,
    changes: usize,
    looks: usize,
    on_look: Option<Look>,
    log: Vec<String>,
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

    /// Teaches the kernel a module.
    pub fn knows(&self, name: &str, module: FakeModule) {
        self.lock().kernel.insert(name.to_owned(), module);
    }

    /// Changes the host as somebody else would: no fault strikes.
    pub fn change<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        change(&mut self.lock().state)
    }

    /// A copy of what the host is.
    pub fn state(&self) -> FakeState {
        self.lock().state.clone()
    }

    /// Sets the fault and counts changes from 0 again.
    pub fn fails(&self, fault: Option<Fault>) {
        let mut inner = self.lock();
        inner.fault = fault;
        inner.changes = 0;
    }

    /// How many verbs tried to change something since the fault was set.
    pub fn changes(&self) -> usize {
        self.lock().changes
    }

    /// Says who is seen to hold the driver.
    pub fn used_by(&self, users: Vec<DriverUser>) {
        self.lock().users = users;
    }

    /// Makes `alias` the same directory as `dir`.
    pub fn alias(&self, alias: &str, dir: &str) {
        let mut inner = self.lock();
        inner.state.dirs.insert(PathBuf::from(alias));
        inner.aliases.insert(PathBuf::from(alias), PathBuf::from(dir));
    }

    /// Makes somebody else make `node` just before it would be made at `path`.
    pub fn rival(&self, path: &str, node: Node) {
        self.lock().rivals.insert(PathBuf::from(path), node);
    }

    /// Makes every unmount of `target` answer EBUSY; detaching works.
    pub fn busy(&self, target: &str) {
        self.lock().busy_mounts.insert(PathBuf::from(target));
    }

    /// Calls `act` with the state and the number of the look whenever a module is looked at.
    pub fn on_look(&self, act: impl FnMut(&mut FakeState, usize) + Send + 'static) {
        let mut inner = self.lock();
        inner.looks = 0;
        inner.on_look = Some(Box::new(act));
    }

    /// The verbs that changed something or were refused to, one line each.
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One verb that changes something.
    fn verb(
        &self,
        verb: &'static str,
        subject: impl Into<String>,
        act: impl FnOnce(&mut Inner) -> Result<(), Errno>,
    ) -> Result<(), VerbError> {
        let subject = subject.into();
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
        let taken = self.state.dirs.contains(path) || self.state.nodes.contains_key(path);
        if taken { Err(Errno::EEXIST) } else { Ok(()) }
    }

    /// The path with an aliased directory replaced by what it is.
    fn real(&self, path: &Path) -> PathBuf {
        for (alias, dir) in &self.aliases {
            if let Ok(rest) = path.strip_prefix(alias) {
                return dir.join(rest);
            }
        }
        path.to_path_buf()
    }

    fn unmount(&mut self, target: &Path) -> Result<(), Errno> {
        let top = self.state.mounts.iter().rposition(|(_, on)| on == target);
        self.state.mounts.remove(top.ok_or(Errno::EINVAL)?);
        Ok(())
    }
}

impl Host for FakeHost {
    fn load_module(
        &self,
        name: &str,
        image: &[u8],
        parameters: &str,
    ) -> Result<Vec<String>, VerbError> {
        self.verb("init_module", name, |inner| {
            let module = inner.kernel.get(name).ok_or(Errno::ENOEXEC)?;
            if image != name.as_bytes() {
                return Err(Errno::ENOEXEC);
            }
            if let Some(errno) = module.refused {
                return Err(errno);
            }
            if inner.state.loaded.contains_key(name) {
                return Err(Errno::EEXIST);
            }
            if !module.depends.iter().all(|d| inner.state.loaded.contains_key(d)) {
                return Err(Errno::ENOENT);
            }
            inner.state.loaded.insert(name.to_owned(), parameters.to_owned());
            Ok(())
        })?;
        Ok(Vec::new())
    }

    fn unload_module(&self, name: &str) -> Result<(), VerbError> {
        self.verb("delete_module", name, |inner| {
            if !inner.state.loaded.contains_key(name) {
                return Err(Errno::ENOENT);
            }
            if inner.refcount(name) > 0 {
                return Err(Errno::EAGAIN);
            }
            if inner.kernel.get(name).is_some_and(|module| module.permanent) {
                return Err(Errno::EBUSY);
            }
            inner.state.loaded.remove(name);
            Ok(())
        })
    }

    fn module(&self, name: &str) -> Result<Option<ModuleState>, VerbError> {
        let mut inner = self.lock();
        let look = inner.looks;
        inner.looks += 1;
        if let Some(mut act) = inner.on_look.take() {
            act(&mut inner.state, look);
            inner.on_look = Some(act);
        }
        if !inner.state.loaded.contains_key(name) {
            return Ok(None);
        }
        let known = inner.kernel.get(name).cloned().unwrap_or_default();
        Ok(Some(ModuleState {
            refcount: inner.refcount(name),
            holders: inner.holders(name),
            version: known.version,
            srcversion: known.srcversion,
        }))
    }

    fn module_parameter(&self, module: &str, name: &str) -> Result<Option<String>, VerbError> {
        let inner = self.lock();
        let given = inner.state.loaded.get(module).cloned().unwrap_or_default();
        let mut pairs = given.split_whitespace().filter_map(|pair| pair.split_once('='));
        Ok(pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()))
    }

    fn driver_users(&self) -> Result<Vec<DriverUser>, VerbError> {
        Ok(self.lock().users.clone())
    }

    fn write_parameter(&self, path: &Path, value: &str) -> Result<(), VerbError> {
        self.path_verb("write", path, |inner| {
            let slot = inner.state.parameters.get_mut(path).ok_or(Errno::ENOENT)?;
            value.clone_into(slot);
            Ok(())
        })
    }

    fn parameter(&self, path: &Path) -> Result<Option<String>, VerbError> {
        Ok(self.lock().state.parameters.get(path).cloned())
    }

    fn bind(&self, source: &Path, target: &Path) -> Result<(), VerbError> {
        self.path_verb("bind", target, |inner| {
            let dirs = &inner.state.dirs;
            if !dirs.contains(source) || !dirs.contains(target) {
                return Err(Errno::ENOENT);
            }
            inner.state.mounts.push((source.display().to_string(), target.to_path_buf()));
            Ok(())
        })
    }

    fn mount_tmpfs(&self, target: &Path) -> Result<(), VerbError> {
        self.path_verb("tmpfs", target, |inner| {
            if !inner.state.dirs.contains(target) {
                return Err(Errno::ENOENT);
            }
            inner.state.mounts.push(("tmpfs".to_owned(), target.to_path_buf()));
            Ok(())
        })
    }

    fn unmount(&self, target: &Path) -> Result<(), VerbError> {
        self.path_verb("umount", target, |inner| {
            if inner.busy_mounts.contains(target) {
                return Err(Errno::EBUSY);
            }
            inner.unmount(target)
        })
    }

    fn detach(&self, target: &Path) -> Result<(), VerbError> {
        self.path_verb("detach", target, |inner| inner.unmount(target))
    }

    fn mounts_on(&self, target: &Path) -> Result<usize, VerbError> {
        Ok(self.lock().state.mounts.iter().filter(|(_, on)| on == target).count())
    }

    fn make_node(&self, path: &Path, node: Node) -> Result<(), VerbError> {
        self.path_verb("mknod", path, |inner| {
            let path = inner.real(path);
            inner.parent_is_dir(&path)?;
            if let Some(theirs) = inner.rivals.remove(&path) {
                inner.state.nodes.insert(path.clone(), theirs);
            }
            inner.is_free(&path)?;
            inner.state.nodes.insert(path, node);
            Ok(())
        })
    }

    fn node(&self, path: &Path) -> Result<Option<Node>, VerbError> {
        let inner = self.lock();
        Ok(inner.state.nodes.get(&inner.real(path)).copied())
    }

    fn remove_file(&self, path: &Path) -> Result<(), VerbError> {
        self.path_verb("unlink", path, |inner| {
            let path = inner.real(path);
            inner.state.nodes.remove(&path).map(drop).ok_or(Errno::ENOENT)
        })
    }

    fn make_dir(&self, path: &Path) -> Result<(), VerbError> {
        self.path_verb("mkdir", path, |inner| {
            let path = inner.real(path);
            inner.parent_is_dir(&path)?;
            inner.is_free(&path)?;
            inner.state.dirs.insert(path);
            Ok(())
        })
    }

    fn remove_dir(&self, path: &Path) -> Result<(), VerbError> {
        self.path_verb("rmdir", path, |inner| {
            let path = inner.real(path);
            let is_inside = |other: &PathBuf| *other != path && other.starts_with(&path);
            if inner.state.dirs.iter().chain(inner.state.nodes.keys()).any(is_inside) {
                return Err(Errno::ENOTEMPTY);
            }
            if inner.state.mounts.iter().any(|(_, on)| on.starts_with(&path)) {
                return Err(Errno::EBUSY);
            }
            if inner.state.dirs.remove(&path) { Ok(()) } else { Err(Errno::ENOENT) }
        })
    }

    fn dir(&self, path: &Path) -> Result<Option<DirId>, VerbError> {
        let inner = self.lock();
        let dirs = &inner.state.dirs;
        let inode = |path: &Path| dirs.iter().position(|dir| dir == path).map(|at| (1, at as u64));
        let real = inner.real(path);
        let top = inner.state.mounts.iter().rposition(|(_, on)| *on == real);
        Ok(match (inode(&real), top) {
            // A tree is seen as itself; anything else has a root of its own.
            (Some(_), Some(top)) => {
                inode(Path::new(&inner.state.mounts[top].0)).or(Some((2, top as u64)))
            }
            (found, _) => found,
        })
    }

    fn wanted_nodes(&self) -> Result<Vec<(PathBuf, Node)>, VerbError> {
        let inner = self.lock();
        let loaded = inner.state.loaded.keys().filter_map(|name| inner.kernel.get(name));
        Ok(loaded.flat_map(|module| module.nodes.clone()).collect())
    }
}

/// Images for a [`FakeHost`]: every module's image is its name.
#[derive(Debug, Clone, Copy, Default)]
pub struct FakeImages;

impl Images for FakeImages {
    fn image(&self, name: &str, _: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        Ok(name.as_bytes().to_vec())
    }

    fn check_tree(&self, _: &Path) -> Result<(), Failure> {
        Ok(())
    }
}
