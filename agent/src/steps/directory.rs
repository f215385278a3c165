//! Making of directories.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::bounds::{self, given, is, is_plain};
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch, exposing,
};
use longshore_core::failure::Failure;
use longshore_host::{Host, VerbError};

/// Make a directory and its missing parents; undone by removing those made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("make directory {}", path.display())]
pub struct MakeDir {
    /// Absolute path.
    pub path: PathBuf,
}

/// Directories that were missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingDirs {
    /// Absolute paths, outermost first.
    pub dirs: Vec<PathBuf>,
}

impl StepKind for MakeDir {
    type Before = MissingDirs;
    const WAS: &'static str = "missing-dirs";

    fn subject(&self) -> String {
        self.path.display().to_string()
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: None,
            recheck: Recheck::Always,
            carries_daemons: false,
            next: Next::Wanted,
            content: None,
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<MissingDirs>, Failure> {
        let dirs = missing(host, &self.path).map_err(exposing)?;
        Ok((!dirs.is_empty()).then_some(MissingDirs { dirs }))
    }

    fn apply(&self, before: &MissingDirs, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        before.dirs.iter().try_for_each(|dir| tools.host.make_dir(dir)).map_err(exposing)?;
        Ok(intent.done())
    }

    fn undo(&self, before: &MissingDirs, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        remove(tools.host, &before.dirs)
    }

    fn seen(&self, _: &MissingDirs) -> Deviation {
        Deviation::gone(format!("the directory {} is gone", self.path.display()))
    }

    fn is_below(&self, before: &MissingDirs, target: &Path) -> bool {
        before.dirs.iter().all(|dir| is_inside(target, dir))
    }

    /// Accepts the driver root, a directory that is exposed at its own path, here or below the driver
    /// root, or the one with the files of daemons.
    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let path = self.path.as_path();
        let of_root = |root: &PathBuf| {
            root == path || bounds::shown_dirs().any(|dir| bounds::below(root, dir) == path)
        };
        let is = bounds.driver_roots.iter().any(of_root)
            || bounds::shown_dirs().any(|dir| dir == path)
            || bounds.daemons.iter().any(|dir| dir == path);
        given(is && is_plain(path), path)
    }

    /// Accepts the last of the directories that lead to the path, outermost first.
    fn check_before(&self, before: &MissingDirs, _: &Bounds) -> Result<(), String> {
        let MissingDirs { dirs } = before;
        let mut way: Vec<&Path> = self.path.ancestors().take(dirs.len()).collect();
        way.reverse();
        let is_way = way.len() == dirs.len() && way.iter().zip(dirs).all(|(a, b)| is(b, a));
        let is_root = dirs.iter().any(|dir| dir == Path::new("/"));
        given(!dirs.is_empty() && is_way && !is_root, &self.path)
    }
}

/// True for a path below the directory, and not the directory itself.
pub(super) fn is_inside(dir: &Path, path: &Path) -> bool {
    path != dir && path.starts_with(dir)
}

/// Returns the missing ones of `path` and its parent directories, outermost first.
pub(super) fn missing(host: &dyn Host, path: &Path) -> Result<Vec<PathBuf>, VerbError> {
    let mut missing = Vec::new();
    for dir in path.ancestors() {
        if host.has_dir(dir)? {
            break;
        }
        missing.push(dir.to_path_buf());
    }
    missing.reverse();
    Ok(missing)
}

/// Removes the directories we made, innermost first; keeps one that others put something into or
/// mounted something on.
pub(super) fn remove(host: &dyn Host, dirs: &[PathBuf]) -> UndoResult {
    for dir in dirs.iter().rev() {
        if !host.has_dir(dir)? {
            continue;
        }
        let removed = kept_if_used(dir, host.remove_dir(dir))?;
        if removed != EntryState::Undone {
            return Ok(removed);
        }
    }
    Ok(EntryState::Undone)
}

/// Returns the state of an entry whose directory was to be removed: it is kept if others put something
/// into it, on it, or (a link) in its place.
pub(super) fn kept_if_used(dir: &Path, removed: Result<(), VerbError>) -> UndoResult {
    let theirs = [Errno::ENOTEMPTY, Errno::EEXIST, Errno::EBUSY, Errno::ENOTDIR];
    match removed {
        Err(e) if theirs.contains(&e.errno) => {
            tracing::warn!("{} stays: another program uses it", dir.display());
            Ok(EntryState::Kept(e.to_string()))
        }
        removed => removed.map(|()| EntryState::Undone),
    }
}
