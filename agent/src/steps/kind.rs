//! The trait that every kind of step implements, and the tools that it gets.

use std::fmt;
use std::path::Path;

use super::{Applied, Bounds, EntryState, Images, Intent, Properties};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::Failure;
use longshore_host::daemon::Daemon;
use longshore_host::{Host, VerbError};

/// Result of carrying out a step.
pub type ApplyResult = Result<Applied, Failure>;
/// Result of undoing a step: the state that its entry is now in.
pub type UndoResult = Result<EntryState, VerbError>;

/// A kind of step. Methods with a default body are those that most kinds have the same; the compiler
/// demands all others, and each of the [`Properties`].
///
/// `Display` is the step in one line, for logs and errors.
pub trait StepKind: fmt::Display + PartialEq + Sized {
    /// State of the host before the step, as far as undoing needs it.
    type Before;
    /// Name of that state in the record.
    const WAS: &'static str;

    /// Returns the changed part of the host: a module's name or a path.
    fn subject(&self) -> String;

    /// Returns the line of `longshore plan`.
    fn planned(&self) -> String {
        self.to_string()
    }

    /// True if both steps leave the host the same.
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    /// Returns the properties by which the engine and others treat it.
    fn properties(&self) -> Properties<'_>;

    /// Returns the state before the step; None where the step's result is already there.
    ///
    /// # Errors
    /// If the host cannot be inspected, or has another's work in the step's place.
    fn observe(&self, host: &dyn Host) -> Result<Option<Self::Before>, Failure>;

    /// Carries out the step, and records its outcome.
    ///
    /// # Errors
    /// If it failed; an entry without an outcome may have been carried out in part.
    fn apply(&self, before: &Self::Before, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult;

    /// True if the effect that an entry recorded is (still) there and whole: by default, if the step
    /// would find its result.
    ///
    /// # Errors
    /// If the host cannot be inspected.
    fn is_there(
        &self,
        _before: &Self::Before,
        _progress: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        Ok(self.observe(host)?.is_none())
    }

    /// Undoes the step; leaves alone anything that is not (or no longer) as the step left it.
    /// Returns the state that its entry is now in.
    ///
    /// # Errors
    /// If the host refused it.
    fn undo(&self, before: &Self::Before, progress: &Progress<'_>, tools: &Tools<'_>)
    -> UndoResult;

    /// Describes what is there in place of its effect, from the state observed after it was carried
    /// out.
    fn seen(&self, now: &Self::Before) -> Deviation;

    /// Returns the mount that it made, if it made one.
    fn mounted<'a>(&'a self, _before: &'a Self::Before) -> Option<Mounted<'a>> {
        None
    }

    /// True if everything that it made is below `target`, and gone with a mount there. A kind that does
    /// not tell is undone by itself; so are mounts, which have a check of their own.
    fn is_below(&self, _before: &Self::Before, _target: &Path) -> bool {
        false
    }

    /// Checks that an agent can have written such a step: by its record any path could be changed
    /// as root.
    ///
    /// # Errors
    /// A message, if no agent writes it.
    fn check(&self, bounds: &Bounds) -> Result<(), String>;

    /// Checks that an agent can have found this state before the step: any, if it has no value that
    /// undoing uses.
    ///
    /// # Errors
    /// A message, if no agent finds it.
    fn check_before(&self, _before: &Self::Before, _bounds: &Bounds) -> Result<(), String> {
        Ok(())
    }
}

/// A step with the state that was observed before it.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{step}")]
pub struct Observed<K: StepKind> {
    /// The step.
    pub step: K,
    /// The state before it.
    pub before: K::Before,
}

/// Progress of a recorded step.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// State of its entry.
    pub state: &'a EntryState,
    /// Number of a module's loading, see
    /// [`ModuleState::instance`](longshore_host::verbs::ModuleState).
    pub instance: Option<u64>,
}

/// Description of an effect that is not as the step left it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deviation {
    /// Description of what is there instead; None if the effect is there all the same.
    pub gone: Option<String>,
    /// Descriptions of changes by other programs that do no harm.
    pub changed: Vec<String>,
}

impl Deviation {
    /// The effect is gone, and this is there instead.
    pub(super) fn gone(instead: String) -> Self {
        Self { gone: Some(instead), changed: Vec::new() }
    }
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

impl<'a> Mounted<'a> {
    /// Returns the mount point; None for a second path to a directory.
    pub fn point(&self) -> Option<&'a Path> {
        match self.from {
            MountedFrom::Tree(_) | MountedFrom::Fresh(_) => Some(self.target),
            MountedFrom::Directory(_) => None,
        }
    }
}

/// Source of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountedFrom<'a> {
    /// A tree of the store.
    Tree(&'a Path),
    /// A directory that is mounted on a second path; its mount is gone along with it.
    Directory(&'a Path),
    /// A file system of this type that is mounted here only.
    Fresh(&'static str),
}

/// Everything that steps use to change the host.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// The host.
    pub host: &'a dyn Host,
    /// Source of module images.
    pub images: &'a dyn Images,
    /// Starts and ends daemons.
    pub daemons: &'a dyn Daemons,
    /// Set if the agent is to stop.
    pub cancel: &'a CancelFlag,
}

/// Starting and ending of daemons, which telemetry follows.
pub trait Daemons {
    /// Starts the daemon under `mark`, after ending what still runs under it, and waits until it
    /// answers or `cancel` is set.
    ///
    /// # Errors
    /// If it cannot be started, ends, or does not answer in time.
    fn start(&self, daemon: &Daemon, mark: &str, cancel: &CancelFlag) -> Result<(), VerbError>;

    /// Ends every process under `mark`.
    ///
    /// # Errors
    /// If one of them cannot be signalled, or survives SIGKILL.
    fn end(&self, daemon: &Daemon, mark: &str) -> Result<(), VerbError>;
}
