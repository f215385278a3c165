//! Removal of what NVIDIA's driver container left when it died.
//!
//! The plan has proved its owner and that the owner is dead; meanwhile another program may have put
//! something else in its place, so only the very thing that the plan names is removed.

use std::path::PathBuf;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::bounds::{given, is};
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch, exposing,
};
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::facts::places;
use longshore_host::values::FileId;
use longshore_host::{Host, VerbError};

/// Reason that an entry's effect is not undone.
const FOR_GOOD: &str = "a dead container's leftover is not restored";

/// Remove a leftover of NVIDIA's dead driver container. Not undone: no process is left to use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("remove {what} (left by NVIDIA's container)")]
pub struct RemoveLeftover {
    /// The leftover.
    pub what: Leftover,
}

/// A leftover was there, which is removed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillThere {}

/// Leftover of NVIDIA's driver container after it died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Leftover {
    /// Its root, mounted recursively.
    #[display("the mount on {}", target.display())]
    Mount {
        /// Absolute path of the mount point.
        target: PathBuf,
        /// Device of the directory at the mount point: another device means another owner.
        device: u64,
        /// Inode of that directory.
        inode: u64,
    },
    /// A file, for example `/run/nvidia/nvidia-driver.pid`.
    #[display("{}", path.display())]
    File {
        /// Absolute path.
        path: PathBuf,
        /// Identity of the file: another one, or one written to since, has another owner. None in a
        /// record of an older longshore, which stored only the path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<FileId>,
    },
    /// A value in a file below /sys; removed by emptying the file.
    #[display("{value} in {}", path.display())]
    Value {
        /// Absolute path.
        path: PathBuf,
        /// The value, without a newline.
        value: String,
    },
}

impl StepKind for RemoveLeftover {
    type Before = StillThere;
    const WAS: &'static str = "leftover";

    fn subject(&self) -> String {
        match &self.what {
            Leftover::Mount { target: path, .. }
            | Leftover::File { path, .. }
            | Leftover::Value { path, .. } => path.display().to_string(),
        }
    }

    fn planned(&self) -> String {
        format!("remove {}, left by NVIDIA's container", self.what)
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: Some(FOR_GOOD),
            resumed: false,
            // The place of a leftover is taken by now.
            verified: false,
            optional: None,
            recheck: Recheck::Never,
            carries_daemons: false,
            next: Next::Wanted,
            content: None,
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<StillThere>, Failure> {
        let there = self.what.is_there(host).map_err(exposing)?;
        Ok(there.then_some(StillThere {}))
    }

    fn apply(&self, _: &StillThere, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        let Self { what } = self;
        what.remove(tools.host).map_err(exposing)?;
        if what.is_there(tools.host).map_err(exposing)? {
            let cause = format!("{what}: removed, but it is still there");
            return Err(Failure::new(FailureKind::Expose, cause)
                .remedy("stop NVIDIA's driver container if it runs on this host"));
        }
        Ok(intent.done_for_good(FOR_GOOD))
    }

    fn undo(&self, _: &StillThere, _: &Progress<'_>, _: &Tools<'_>) -> UndoResult {
        Ok(EntryState::Undone)
    }

    fn seen(&self, _: &StillThere) -> Deviation {
        Deviation::gone(format!("{self}: its effect is gone"))
    }

    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        match &self.what {
            Leftover::Mount { target, .. } => {
                given(bounds.driver_roots.iter().any(|root| is(target, root)), target)
            }
            Leftover::File { path, .. } => {
                let beside = |root: &PathBuf| {
                    let parent = root.parent().unwrap_or(root);
                    places::FILES.iter().any(|name| is(path, &parent.join(name)))
                };
                given(bounds.driver_roots.iter().any(beside), path)
            }
            Leftover::Value { path, value } => bounds.firmware_path(path, value),
        }
    }
}

impl Leftover {
    /// True if the leftover is (still) there.
    fn is_there(&self, host: &dyn Host) -> Result<bool, VerbError> {
        match self {
            Leftover::Mount { target, device, inode } => {
                let there = host.dir(target)? == Some((*device, *inode));
                Ok(there && host.mounts_on(target)? > 0)
            }
            Leftover::File { path, id } => {
                let there = host.file(path)?;
                Ok(there.is_some_and(|there| id.is_none_or(|wanted| wanted == there)))
            }
            Leftover::Value { path, value } => Ok(host.parameter(path)?.as_ref() == Some(value)),
        }
    }

    /// Removes the leftover. A root that was mounted more than once is unmounted as often.
    fn remove(&self, host: &dyn Host) -> Result<(), VerbError> {
        match self {
            Leftover::Mount { target, .. } => {
                // Each detach removes one mount; there cannot be more than these.
                for _ in 0..host.mounts_on(target)? {
                    if self.is_there(host)? {
                        host.detach(target)?;
                    }
                }
                Ok(())
            }
            // The path may have become another program's since the intent was written.
            Leftover::File { .. } if !self.is_there(host)? => Ok(()),
            Leftover::File { path, .. } => match host.remove_file(path) {
                Err(e) if e.errno == Errno::ENOENT => Ok(()),
                result => result,
            },
            Leftover::Value { path, .. } => host.write_parameter(path, ""),
        }
    }
}
