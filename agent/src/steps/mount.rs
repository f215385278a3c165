//! Mounting: of a tree, of a directory on a second path, of a tmpfs.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::bounds::{self, given, is, is_plain};
use super::{
    Applied, Bounds, Content, EntryState, Intent, Kind, Next, Progress, Properties, Recheck, Seen,
    Tools, Watch, exposing,
};
use crate::failure::Failure;
use crate::host::verbs::TMPFS_SOURCE;
use crate::host::{Host, VerbError};

/// Mount an assembled tree of the store; undone by unmounting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Absolute path of the tree.
    pub source: PathBuf,
    /// Absolute path of the mount point.
    pub target: PathBuf,
}

/// Bind-mount a directory of longshore's on a second path; undone by unmounting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Absolute path of the directory.
    pub source: PathBuf,
    /// Absolute path of the mount point.
    pub target: PathBuf,
}

/// Mount a small tmpfs for device nodes; undone by unmounting it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountTmpfs {
    /// Absolute path of the mount point.
    pub target: PathBuf,
}

/// Mounts that were on the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounts {
    /// Number of mounts.
    pub count: usize,
}

/// A mount that a step made.
#[derive(Debug, Clone, Copy)]
pub struct Mounted<'a> {
    /// Absolute path of the mount point.
    pub target: &'a Path,
    /// Number of mounts that were on it before.
    pub count: usize,
    /// Source of the mount.
    pub from: MountedFrom<'a>,
}

/// Source of a mount.
#[derive(Debug, Clone, Copy)]
pub enum MountedFrom<'a> {
    /// A tree of the store.
    Tree(&'a Path),
    /// A directory that is mounted on a second path; its mount is gone along with it.
    Directory(&'a Path),
    /// A tmpfs.
    Tmpfs,
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount {} on {}", self.source.display(), self.target.display())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bind-mount {} on {}", self.source.display(), self.target.display())
    }
}

impl fmt::Display for MountTmpfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount a tmpfs on {}", self.target.display())
    }
}

impl Kind for Bind {
    type Before = Mounts;
    const WAS: &'static str = "mounts";

    fn subject(&self) -> String {
        self.target.display().to_string()
    }

    fn planned(&self) -> String {
        self.to_string()
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    fn properties(&self) -> Properties<'_> {
        Properties { content: Some(Content::Tree(&self.source)), ..properties() }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<Mounts>, Failure> {
        observe(host, &self.target, || is_on(host, &self.source, &self.target))
    }

    fn apply(&self, _: &Mounts, tools: &Tools<'_>, intent: Intent<'_>) -> Result<Applied, Failure> {
        tools.images.check_tree(&self.source)?;
        tools.host.bind_read_only(&self.source, &self.target).map_err(exposing)?;
        Ok(intent.done())
    }

    fn is_there(
        &self,
        before: &Mounts,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        is_one_more(host, &self.target, before)
    }

    fn undo(
        &self,
        before: &Mounts,
        _: &Progress<'_>,
        tools: &Tools<'_>,
    ) -> Result<EntryState, VerbError> {
        let (host, target) = (tools.host, &self.target);
        if host.mounts_on(target)? == before.count + 1 && is_another(host, &self.source, target)? {
            return Ok(mounted_by_others(target));
        }
        unmount(host, target, before)
    }

    fn seen(&self, _: &Mounts) -> Seen {
        not_mounted(&self.source, &self.target)
    }

    fn mounted<'a>(&'a self, before: &'a Mounts) -> Option<Mounted<'a>> {
        let from = MountedFrom::Tree(&self.source);
        Some(Mounted { target: &self.target, count: before.count, from })
    }

    /// Accepts a tree of a store on the driver root.
    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let Self { source, target } = self;
        given(bounds.driver_roots.iter().any(|root| is(target, root)), target)?;
        let is_tree = |store: &PathBuf| {
            let inside = source.strip_prefix(store.join("userspace")).unwrap_or(Path::new(""));
            let mut parts = inside.components();
            let named = matches!(parts.next(), Some(Component::Normal(_)));
            named && parts.as_path() == Path::new("root")
        };
        given(is_plain(source) && bounds.stores.iter().any(is_tree), source)
    }

    fn check_before(&self, _: &Mounts, _: &Bounds) -> Result<(), String> {
        Ok(())
    }
}

impl Kind for Share {
    type Before = Mounts;
    const WAS: &'static str = "mounts";

    fn subject(&self) -> String {
        self.target.display().to_string()
    }

    fn planned(&self) -> String {
        self.to_string()
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    fn properties(&self) -> Properties<'_> {
        properties()
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<Mounts>, Failure> {
        observe(host, &self.target, || is_on(host, &self.source, &self.target))
    }

    fn apply(&self, _: &Mounts, tools: &Tools<'_>, intent: Intent<'_>) -> Result<Applied, Failure> {
        tools.host.bind(&self.source, &self.target).map_err(exposing)?;
        Ok(intent.done())
    }

    fn is_there(
        &self,
        before: &Mounts,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        is_one_more(host, &self.target, before)
    }

    fn undo(
        &self,
        before: &Mounts,
        _: &Progress<'_>,
        tools: &Tools<'_>,
    ) -> Result<EntryState, VerbError> {
        unmount(tools.host, &self.target, before)
    }

    fn seen(&self, _: &Mounts) -> Seen {
        not_mounted(&self.source, &self.target)
    }

    fn mounted<'a>(&'a self, before: &'a Mounts) -> Option<Mounted<'a>> {
        let from = MountedFrom::Directory(&self.source);
        Some(Mounted { target: &self.target, count: before.count, from })
    }

    /// Accepts a directory that is exposed at its own path.
    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let Self { source, target } = self;
        let is_dir = bounds::shown_dirs().any(|dir| dir == target);
        let is_same = |root: &PathBuf| bounds::below(root, target) == *source;
        given(is_dir && is_plain(target), target)?;
        given(bounds.driver_roots.iter().any(is_same), source)
    }

    fn check_before(&self, _: &Mounts, _: &Bounds) -> Result<(), String> {
        Ok(())
    }
}

impl Kind for MountTmpfs {
    type Before = Mounts;
    const WAS: &'static str = "mounts";

    fn subject(&self) -> String {
        self.target.display().to_string()
    }

    fn planned(&self) -> String {
        self.to_string()
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    fn properties(&self) -> Properties<'_> {
        properties()
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<Mounts>, Failure> {
        observe(host, &self.target, || is_tmpfs(host, &self.target))
    }

    fn apply(&self, _: &Mounts, tools: &Tools<'_>, intent: Intent<'_>) -> Result<Applied, Failure> {
        tools.host.mount_tmpfs(&self.target).map_err(exposing)?;
        Ok(intent.done())
    }

    fn is_there(
        &self,
        before: &Mounts,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        is_one_more(host, &self.target, before)
    }

    fn undo(
        &self,
        before: &Mounts,
        _: &Progress<'_>,
        tools: &Tools<'_>,
    ) -> Result<EntryState, VerbError> {
        let (host, target) = (tools.host, &self.target);
        let is_own = is_tmpfs(host, target)?;
        if host.mounts_on(target)? == before.count + 1 && !is_own {
            return Ok(mounted_by_others(target));
        }
        unmount(host, target, before)
    }

    fn seen(&self, _: &Mounts) -> Seen {
        Seen::gone(format!("the tmpfs on {} is no longer mounted", self.target.display()))
    }

    fn mounted<'a>(&'a self, before: &'a Mounts) -> Option<Mounted<'a>> {
        Some(Mounted { target: &self.target, count: before.count, from: MountedFrom::Tmpfs })
    }

    /// Accepts two directories of the driver root.
    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let targets = |root: &PathBuf| ["dev", "run"].map(|name| root.join(name));
        let is_one = bounds.driver_roots.iter().flat_map(targets).any(|at| at == self.target);
        given(is_one, &self.target)
    }

    fn check_before(&self, _: &Mounts, _: &Bounds) -> Result<(), String> {
        Ok(())
    }
}

fn properties<'a>() -> Properties<'a> {
    Properties {
        for_good: None,
        resumed: false,
        verified: true,
        recheck: Recheck::Always,
        carries_daemons: true,
        next: Next::Wanted,
        content: None,
        watch: Watch::Nothing,
    }
}

/// Returns the mounts on `target`; None if the step's own is among them (`shows`), as an agent with
/// a lost journal leaves it: a second mount on top would be of no use.
fn observe(
    host: &dyn Host,
    target: &Path,
    shows: impl Fn() -> Result<bool, VerbError>,
) -> Result<Option<Mounts>, Failure> {
    let count = host.mounts_on(target).map_err(exposing)?;
    let there = count > 0 && shows().map_err(exposing)?;
    Ok((!there).then_some(Mounts { count }))
}

fn is_on(host: &dyn Host, source: &Path, target: &Path) -> Result<bool, VerbError> {
    let source = host.dir(source)?;
    Ok(source.is_some() && source == host.dir(target)?)
}

fn is_tmpfs(host: &dyn Host, target: &Path) -> Result<bool, VerbError> {
    Ok(host.mount_source(target)?.as_deref() == Some(TMPFS_SOURCE))
}

/// True if there is a mount more than before. The content of a mount is visible only through it,
/// and any mount beyond ours is another program's.
fn is_one_more(host: &dyn Host, target: &Path, before: &Mounts) -> Result<bool, Failure> {
    Ok(host.mounts_on(target).map_err(exposing)? > before.count)
}

fn not_mounted(source: &Path, target: &Path) -> Seen {
    Seen::gone(format!("{} is no longer mounted on {}", source.display(), target.display()))
}

fn mounted_by_others(target: &Path) -> EntryState {
    let why = "another program mounted something else in its place";
    tracing::warn!("{} stays mounted: {why}", target.display());
    EntryState::Kept(why.to_owned())
}

/// True if the directory at `target` is another one than `source`; false if the source is gone,
/// which leaves nothing to compare.
pub(crate) fn is_another(host: &dyn Host, source: &Path, target: &Path) -> Result<bool, VerbError> {
    Ok(host.dir(source)?.is_some_and(|wanted| host.dir(target).is_ok_and(|d| d != Some(wanted))))
}

fn unmount(host: &dyn Host, target: &Path, before: &Mounts) -> Result<EntryState, VerbError> {
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
