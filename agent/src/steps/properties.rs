//! Properties of a step: the answers to what the engine, the lifecycle and the store ask of it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ModuleOrigin;
use longshore_core::finding::Code;
use longshore_host::{Host, VerbError};

/// Properties of a step. There is no default: each kind spells all of them.
#[derive(Debug, Clone, Copy)]
pub struct Properties<'a> {
    /// Reason that its effect is never undone; None if undoing is possible.
    pub for_good: Option<&'static str>,
    /// True if a lost effect is made again by its first entry, because its remains are found by
    /// that entry.
    pub resumed: bool,
    /// True if an installation verifies its effect at the end.
    pub verified: bool,
    /// Code of the finding that its failure is, where a driver is installed without it all the same;
    /// None for a step that every installation needs.
    pub optional: Option<Code>,
    /// Part of its effect in the rechecks of a Ready driver.
    pub recheck: Recheck,
    /// True if daemons of the driver run on its effect, and end before it is undone.
    pub carries_daemons: bool,
    /// Its effect's use for a driver that replaces this one.
    pub next: Next<'a>,
    /// Content of the store or of /lib/modules that it uses.
    pub content: Option<Content<'a>>,
    /// Places in which the kernel reports changes to its effect.
    pub watch: Watch<'a>,
    /// Subject that its effect announces to other programs: it is undone before that changes.
    pub announces: Announces,
    /// Repeated writing of its effect while the driver is Ready; None for an effect that lasts.
    pub refresh: Option<Refresh<'a>>,
}

/// Part of a step's effect in the rechecks of a Ready driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recheck {
    /// Always compared.
    Always,
    /// Compared while the driver's modules are the ones it became Ready with.
    WhileLoaded,
    /// Compared as [`Recheck::WhileLoaded`] until it was carried out: another program may undo it then.
    UntilDone,
    /// Not compared: it has a supervisor of its own, or nothing to compare.
    Never,
}

/// Use of a step's effect for the next driver.
#[derive(Debug, Clone, Copy)]
pub enum Next<'a> {
    /// Of use to any driver.
    AnyDriver,
    /// Overwritten by a step on the same path.
    Overwritten(&'a Path),
    /// Of use unless this module is replaced.
    UnlessReplaced(&'a str),
    /// Rewritten by the next driver's spec for the host with this root, unless this module is replaced.
    RewrittenUnlessReplaced(&'a Path, &'a str),
    /// Of use if the next driver has the same step.
    Wanted,
    /// Of use if the next driver has the same step and this module is not replaced.
    WantedUnlessReplaced(&'a str),
}

/// Content that a step uses.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// A module's file.
    Module {
        /// Kernel name of the module.
        name: &'a str,
        /// Source of its file.
        origin: &'a ModuleOrigin,
    },
    /// An assembled tree of the store.
    Tree(&'a Path),
}

/// Places in which the kernel reports changes to a step's effect.
#[derive(Debug, Clone, Copy)]
pub enum Watch<'a> {
    /// None.
    Nothing,
    /// A file that may be written to.
    File(&'a Path),
    /// Directories with device nodes.
    Nodes(&'a [PathBuf]),
    /// The directory of a /dev with links to device nodes.
    Links(&'a Path),
    /// The directory of CDI specs below this root of the host.
    Specs(&'a Path),
}

/// Subject of an announcement to other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announces {
    /// None.
    Nothing,
    /// An agent that serves the driver: it is over when the agent ends.
    Agent,
    /// The loaded driver: it is over when that is unloaded, or is another one.
    Driver,
    /// The driver's files and nodes, to programs that give them to containers: over when the driver is
    /// unloaded.
    Files,
}

/// Repeated writing of an effect that expires.
#[derive(Debug, Clone, Copy)]
pub struct Refresh<'a> {
    /// Time from one write to the next.
    pub every: Duration,
    /// Name of what expires, for the log.
    pub name: &'static str,
    /// The step that writes it.
    pub step: &'a dyn Refreshed,
}

/// A step whose effect expires unless it is written again.
pub trait Refreshed: fmt::Debug + Sync {
    /// Writes it again, with this state of the agent.
    ///
    /// # Errors
    /// If the host refused it.
    fn refresh(&self, host: &dyn Host, state: &str) -> Result<(), VerbError>;
}
