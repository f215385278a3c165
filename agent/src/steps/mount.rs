//! Mounting: of a driver root, of a tree in it, of a directory on a second path, of a tmpfs, of
//! sysfs.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::bounds::{self, given, is, is_plain};
use super::{
    Announces, ApplyResult, Bounds, Content, Deviation, EntryState, Intent, Mounted, MountedFrom,
    Next, Progress, Properties, Recheck, StepKind, Tools, UndoResult, Watch, exposing,
};
use longshore_core::failure::Failure;
use longshore_core::finding::Code;
use longshore_host::facts::selinux::is_label;
use longshore_host::values::TMPFS_SOURCE;
use longshore_host::{Host, VerbError};

/// Mount a directory of an assembled tree of the store; undone by unmounting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("mount {} on {}", source.display(), target.display())]
pub struct Bind {
    /// Absolute path of the directory: one of [`TREE_DIRS`] of the tree.
    pub source: PathBuf,
    /// Absolute path of the mount point.
    pub target: PathBuf,
}

/// Bind-mount a directory of longshore's on a second path; undone by unmounting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("bind-mount {} on {}", source.display(), target.display())]
pub struct Share {
    /// Absolute path of the directory.
    pub source: PathBuf,
    /// Absolute path of the mount point.
    pub target: PathBuf,
}

/// Mount a small tmpfs for device nodes; undone by unmounting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("mount a tmpfs on {}", target.display())]
pub struct MountTmpfs {
    /// Absolute path of the mount point.
    pub target: PathBuf,
    /// SELinux label of all its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Mounts that were on the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounts {
    /// Number of mounts.
    pub count: usize,
}

/// Mounts a read-only tmpfs with the first level of a driver root on it. It stays while the trees
/// that are mounted in it change, so that a consumer of the driver root sees each of them: a mount
/// on the driver root itself would leave consumers with the one that they were started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("mount a driver root's directories on {}", target.display())]
pub struct MountRoot {
    /// Driver root.
    pub target: PathBuf,
    /// SELinux label of its directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Mounts sysfs: an instance of its own, because a recursive unmount of the driver root would reach
/// the host's through a copy of that one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("mount sysfs on {}", target.display())]
pub struct MountSysfs {
    /// Mount point.
    pub target: PathBuf,
}

/// Directories of a tree that are mounted in a driver root.
pub(crate) const TREE_DIRS: [&str; 3] = ["usr", "lib", "etc"];
/// First level of a driver root.
const ROOT_DIRS: [&str; 7] = ["usr", "lib", "etc", "dev", "proc", "run", "sys"];

/// A kind of step that mounts something; [`StepKind`] follows from it.
trait Mounting: fmt::Display + Clone + PartialEq {
    fn target(&self) -> &Path;

    fn from(&self) -> MountedFrom<'_>;

    /// True if the target shows what this step mounts.
    fn is_on(&self, host: &dyn Host) -> Result<bool, VerbError> {
        match self.from() {
            MountedFrom::Tree(source) | MountedFrom::Directory(source) => {
                is_same_dir(host, source, self.target())
            }
            MountedFrom::Fresh(_) => is_own(host, self.target()),
        }
    }

    fn mount(&self, tools: &Tools<'_>) -> Result<(), Failure>;

    /// Checks that an agent can have written such a step.
    fn allowed(&self, bounds: &Bounds) -> Result<(), String>;
}

impl Mounting for Bind {
    fn target(&self) -> &Path {
        &self.target
    }

    fn from(&self) -> MountedFrom<'_> {
        MountedFrom::Tree(&self.source)
    }

    fn mount(&self, tools: &Tools<'_>) -> Result<(), Failure> {
        tools.images.check_tree(tree_of(&self.source))?;
        tools.host.bind_read_only(&self.source, &self.target).map_err(exposing)
    }

    /// Accepts a directory of a tree of a store on the driver root's of the same name; the tree
    /// itself on the driver root, as agents before [`MountRoot`] mounted it.
    fn allowed(&self, bounds: &Bounds) -> Result<(), String> {
        let Self { source, target } = self;
        let dir = |root: &PathBuf| {
            let dirs = TREE_DIRS.into_iter().map(Some).chain([None]);
            dirs.into_iter().find(|dir| is(target, &dir.map_or(root.clone(), |dir| root.join(dir))))
        };
        let dir = bounds.driver_roots.iter().find_map(dir);
        given(dir.is_some(), target)?;
        let wanted = Path::new("root").join(dir.flatten().unwrap_or_default());
        let is_tree = |store: &PathBuf| {
            let inside = source.strip_prefix(store.join("userspace")).unwrap_or(Path::new(""));
            let mut parts = inside.components();
            let named = matches!(parts.next(), Some(Component::Normal(_)));
            named && parts.as_path() == wanted
        };
        given(is_plain(source) && bounds.stores.iter().any(is_tree), source)
    }
}

impl Mounting for Share {
    fn target(&self) -> &Path {
        &self.target
    }

    fn from(&self) -> MountedFrom<'_> {
        MountedFrom::Directory(&self.source)
    }

    fn mount(&self, tools: &Tools<'_>) -> Result<(), Failure> {
        tools.host.bind(&self.source, &self.target).map_err(exposing)
    }

    /// Accepts a directory that is exposed at its own path.
    fn allowed(&self, bounds: &Bounds) -> Result<(), String> {
        let Self { source, target } = self;
        let is_dir = bounds::shown_dirs().any(|dir| dir == target);
        let is_same = |root: &PathBuf| bounds::below(root, target) == *source;
        given(is_dir && is_plain(target), target)?;
        given(bounds.driver_roots.iter().any(is_same), source)
    }
}

impl Mounting for MountTmpfs {
    fn target(&self) -> &Path {
        &self.target
    }

    fn from(&self) -> MountedFrom<'_> {
        MountedFrom::Fresh("tmpfs")
    }

    fn mount(&self, tools: &Tools<'_>) -> Result<(), Failure> {
        let mount = |label: Option<&str>| tools.host.mount_tmpfs(&self.target, label);
        with_label(self.label.as_deref(), mount).map_err(exposing)
    }

    /// Accepts two directories of the driver root.
    fn allowed(&self, bounds: &Bounds) -> Result<(), String> {
        let targets = |root: &PathBuf| ["dev", "run"].map(|name| root.join(name));
        let is_one = bounds.driver_roots.iter().flat_map(targets).any(|at| at == self.target);
        given(is_one, &self.target)?;
        labelled(self.label.as_deref())
    }
}

impl Mounting for MountRoot {
    fn target(&self) -> &Path {
        &self.target
    }

    fn from(&self) -> MountedFrom<'_> {
        MountedFrom::Fresh("tmpfs")
    }

    /// True if the root has all of its directories as well: those of an older agent may be fewer.
    fn is_on(&self, host: &dyn Host) -> Result<bool, VerbError> {
        let has_all = || {
            ROOT_DIRS.iter().try_fold(true, |all, dir| {
                Ok::<_, VerbError>(all && host.has_dir(&self.target.join(dir))?)
            })
        };
        Ok(is_own(host, &self.target)? && has_all()?)
    }

    fn mount(&self, tools: &Tools<'_>) -> Result<(), Failure> {
        let mount = |label: Option<&str>| tools.host.mount_root(&self.target, &ROOT_DIRS, label);
        with_label(self.label.as_deref(), mount).map_err(exposing)
    }

    /// Accepts the driver root.
    fn allowed(&self, bounds: &Bounds) -> Result<(), String> {
        given(bounds.driver_roots.iter().any(|root| is(&self.target, root)), &self.target)?;
        labelled(self.label.as_deref())
    }
}

impl Mounting for MountSysfs {
    fn target(&self) -> &Path {
        &self.target
    }

    fn from(&self) -> MountedFrom<'_> {
        MountedFrom::Fresh("sysfs")
    }

    fn mount(&self, tools: &Tools<'_>) -> Result<(), Failure> {
        tools.host.mount_sysfs(&self.target).map_err(exposing)
    }

    /// Accepts `sys` of the driver root.
    fn allowed(&self, bounds: &Bounds) -> Result<(), String> {
        let is_one = bounds.driver_roots.iter().any(|root| is(&self.target, &root.join("sys")));
        given(is_one, &self.target)
    }
}

/// Mounts with a label, or without it where the host's policy refuses one: a driver without labels is of use to
/// all but confined containers.
fn with_label(
    label: Option<&str>,
    mount: impl Fn(Option<&str>) -> Result<(), VerbError>,
) -> Result<(), VerbError> {
    match mount(label) {
        Err(error) if label.is_some() && is_refused(error.errno) => {
            let code = Code::FilesUnlabelled;
            tracing::warn!("{code}: mounting without an SELinux label: {error}");
            mount(None)
        }
        mounted => mounted,
    }
}

fn is_refused(errno: Errno) -> bool {
    matches!(errno, Errno::EACCES | Errno::EPERM | Errno::EINVAL)
}

impl<M: Mounting> StepKind for M {
    type Before = Mounts;
    const WAS: &'static str = "mounts";

    fn subject(&self) -> String {
        self.target().display().to_string()
    }

    /// A label counts only when the mount is made: consumers hold a mount that is there.
    fn is_same(&self, other: &Self) -> bool {
        self.target() == other.target() && self.from() == other.from()
    }

    fn properties(&self) -> Properties<'_> {
        let content = match self.from() {
            MountedFrom::Tree(source) => Some(Content::Tree(tree_of(source))),
            MountedFrom::Directory(_) | MountedFrom::Fresh(_) => None,
        };
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: None,
            recheck: Recheck::Always,
            carries_daemons: true,
            next: Next::Wanted,
            content,
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    /// Returns the mounts on the target; None if the step's own is among them, as an agent with a
    /// lost journal leaves it: a second mount on top would be of no use.
    fn observe(&self, host: &dyn Host) -> Result<Option<Mounts>, Failure> {
        let count = host.mounts_on(self.target()).map_err(exposing)?;
        let is_there = count > 0 && self.is_on(host).map_err(exposing)?;
        Ok((!is_there).then_some(Mounts { count }))
    }

    fn apply(&self, _: &Mounts, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        self.mount(tools)?;
        Ok(intent.done())
    }

    /// True if there is a mount more than before. The content of a mount is visible only through
    /// it, and any mount beyond ours is another program's.
    fn is_there(
        &self,
        before: &Mounts,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        Ok(host.mounts_on(self.target()).map_err(exposing)? > before.count)
    }

    fn undo(&self, before: &Mounts, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        let (host, target) = (tools.host, self.target());
        if host.mounts_on(target)? == before.count + 1 && is_replaced(self.from(), host, target)? {
            let why = "another program mounted something else in its place";
            tracing::warn!("{} stays mounted: {why}", target.display());
            return Ok(EntryState::Kept(why.to_owned()));
        }
        unmount(host, target, before)
    }

    fn seen(&self, _: &Mounts) -> Deviation {
        let target = self.target().display();
        Deviation::gone(match self.from() {
            MountedFrom::Tree(source) | MountedFrom::Directory(source) => {
                format!("{} is no longer mounted on {target}", source.display())
            }
            MountedFrom::Fresh(kind) => format!("the {kind} on {target} is no longer mounted"),
        })
    }

    fn mounted<'a>(&'a self, before: &'a Mounts) -> Option<Mounted<'a>> {
        Some(Mounted { target: self.target(), count: before.count, from: self.from() })
    }

    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        self.allowed(bounds)
    }
}

/// True if the mount on the target, which came after a step's mount, is certainly another program's. A second
/// mount of the same tree, as propagation makes it, is not. Never so for a second path to a directory: its source is
/// a mount of longshore's, and may be gone already.
pub(crate) fn is_replaced(
    from: MountedFrom<'_>,
    host: &dyn Host,
    target: &Path,
) -> Result<bool, VerbError> {
    match from {
        MountedFrom::Tree(source) => is_another(host, source, target),
        MountedFrom::Directory(_) => Ok(false),
        MountedFrom::Fresh(_) => Ok(!is_own(host, target)?),
    }
}

/// Accepts no label, or one that ends no mount option.
fn labelled(label: Option<&str>) -> Result<(), String> {
    given(label.is_none_or(is_label), Path::new(label.unwrap_or_default()))
}

/// Returns the root of the tree that a mount shows: the tree itself, or one of its [`TREE_DIRS`].
fn tree_of(source: &Path) -> &Path {
    let is_dir = TREE_DIRS.into_iter().any(|dir| source.file_name() == Some(dir.as_ref()));
    source.parent().filter(|_| is_dir).unwrap_or(source)
}

/// True if the topmost mount on the target is a file system of longshore's.
fn is_own(host: &dyn Host, target: &Path) -> Result<bool, VerbError> {
    Ok(host.mount_source(target)?.as_deref() == Some(TMPFS_SOURCE))
}

fn is_same_dir(host: &dyn Host, source: &Path, target: &Path) -> Result<bool, VerbError> {
    let source = host.dir(source)?;
    Ok(source.is_some() && source == host.dir(target)?)
}

/// True if the directory at `target` is another one than `source`; false if the source is gone,
/// which leaves nothing to compare.
fn is_another(host: &dyn Host, source: &Path, target: &Path) -> Result<bool, VerbError> {
    Ok(host.dir(source)?.is_some_and(|wanted| host.dir(target).is_ok_and(|d| d != Some(wanted))))
}

fn unmount(host: &dyn Host, target: &Path, before: &Mounts) -> UndoResult {
    match host.mounts_on(target)?.checked_sub(before.count) {
        None | Some(0) => {}
        Some(1) => match host.unmount(target) {
            Err(e) if e.errno == Errno::EBUSY => {
                tracing::warn!("{e}: detaching it lazily, it disappears with its last user");
                host.detach(target)?;
            }
            result => result?,
        },
        // Another program mounted over ours: the topmost mount is not ours to unmount.
        Some(_) => {
            return Err(VerbError::new(
                "unmount (something else is mounted on top of it)",
                target.display().to_string(),
                Errno::EBUSY,
            ));
        }
    }
    Ok(EntryState::Undone)
}
