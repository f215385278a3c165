//! Writing of the files by which the GPU operator follows a driver (docs/cluster/gpu-operator.md).
//!
//! Containers write to their directory as well. The file before is not restored: it described
//! another driver, or another agent.

mod confirmation;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bounds::{given, is};
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch, exposing,
};
use crate::config::ConfigDigest;
use longshore_core::failure::Failure;
use longshore_core::finding::Code;
use longshore_host::verbs::status_file::Status;
use longshore_host::{Host, VerbError};

/// File of the driver's container, beside the driver root: whether its daemons run.
const DAEMONS: &str = "validations/.driver-daemons-status";
/// File of the operator's startup probe, beside the driver root: the driver is ready.
const CONFIRMED: &str = "validations/.driver-ctr-ready";
/// File with the digest of the loaded driver's configuration.
const DIGEST: &str = "nvidia-driver.state";
const READY: &str = "Ready";
const NOT_READY: &str = "NotReady";

/// Write a status file; undone by removing it, and the file by which another program confirmed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("write {} to {}", self.shown(), path.display())]
pub struct WriteStatus {
    /// Absolute path.
    pub path: PathBuf,
    /// One line of text; several in a confirmation.
    pub text: String,
    /// File that is void without this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_by: Option<PathBuf>,
}

/// The file before: it is not restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusBefore {
    /// True if it had the same text.
    pub same: bool,
}

impl WriteStatus {
    /// Returns the step for a driver that is about to be installed, with the driver root's parent.
    pub fn not_ready(parent: &Path) -> Self {
        Self { path: parent.join(DAEMONS), text: NOT_READY.to_owned(), confirmed_by: None }
    }

    /// Returns the step for a driver whose daemons run.
    pub fn ready(parent: &Path) -> Self {
        let confirmed_by = Some(parent.join(CONFIRMED));
        Self { path: parent.join(DAEMONS), text: READY.to_owned(), confirmed_by }
    }

    /// Returns the step that stores the digest of the driver's configuration.
    pub fn digest(parent: &Path, digest: &str) -> Self {
        Self { path: parent.join(DIGEST), text: digest.to_owned(), confirmed_by: None }
    }

    /// Returns the step that writes a confirmation again; `found` is the text of the one that was there.
    pub fn confirmation(parent: &Path, found: &str) -> Self {
        let text = confirmation::reduced(found);
        Self { path: Self::confirmed_at(parent), text, confirmed_by: None }
    }

    /// Returns the path of the confirmation.
    pub fn confirmed_at(parent: &Path) -> PathBuf {
        parent.join(CONFIRMED)
    }

    /// True if it writes a confirmation.
    pub fn is_confirmation(&self) -> bool {
        self.path.ends_with(CONFIRMED)
    }

    /// Returns the files that an agent without a driver may have left behind: its own status, and
    /// the confirmation.
    pub fn of_agent(parent: &Path) -> [PathBuf; 2] {
        [CONFIRMED, DAEMONS].map(|name| parent.join(name))
    }

    /// True unless it announces that the driver is not ready.
    pub fn is_final(&self) -> bool {
        self.text != NOT_READY
    }

    fn shown(&self) -> &str {
        if self.is_confirmation() { "the confirmation" } else { &self.text }
    }

    fn is_as_written(&self, host: &dyn Host) -> Result<bool, VerbError> {
        Ok(host.status(&self.path)? == Some(Status::Text(self.text.clone())))
    }
}

impl StepKind for WriteStatus {
    type Before = StatusBefore;
    const WAS: &'static str = "status";

    fn subject(&self) -> String {
        self.path.display().to_string()
    }

    fn planned(&self) -> String {
        format!("{self} (for the GPU operator)")
    }

    fn properties(&self) -> Properties<'_> {
        let of_driver = self.path.ends_with(DIGEST);
        Properties {
            for_good: None,
            // One entry covers all writes of the file.
            resumed: true,
            // The first one is overwritten by the last, and the operator removes a confirmation.
            verified: self.is_final() && !self.is_confirmation(),
            // Containers that write beside it do not decide about the driver.
            optional: Some(Code::OperatorFileUnwritten),
            recheck: match self.is_final() && !self.is_confirmation() {
                true if of_driver => Recheck::WhileLoaded,
                // The operator removes it before it stops the agent.
                true => Recheck::UntilDone,
                false => Recheck::Never,
            },
            carries_daemons: false,
            // No plan has it, and every driver is confirmed alike.
            next: if self.is_confirmation() { Next::AnyDriver } else { Next::Wanted },
            content: None,
            watch: Watch::Nothing,
            announces: if of_driver { Announces::Driver } else { Announces::Agent },
            refresh: None,
        }
    }

    /// A file that has the same text is written again: whoever wrote it, it is ours to remove.
    fn observe(&self, host: &dyn Host) -> Result<Option<StatusBefore>, Failure> {
        let same = self.is_as_written(host).map_err(exposing)?;
        Ok(Some(StatusBefore { same }))
    }

    fn apply(&self, _: &StatusBefore, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        let Err(error) = tools.host.write_status(&self.path, &self.text) else {
            return Ok(intent.done());
        };
        if matches!(self.is_as_written(tools.host), Ok(false)) {
            intent.not_done();
        }
        Err(exposing(error))
    }

    fn is_there(
        &self,
        _: &StatusBefore,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        self.is_as_written(host).map_err(exposing)
    }

    fn undo(&self, _: &StatusBefore, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        if let Some(path) = &self.confirmed_by
            && tools.host.status(path)?.is_some()
        {
            tools.host.remove_status(path)?;
        }
        match tools.host.status(&self.path)? {
            None => {}
            // One that another program wrote since.
            Some(Status::Text(text)) if text != self.text => {}
            Some(Status::Text(_) | Status::Odd) => tools.host.remove_status(&self.path)?,
        }
        Ok(EntryState::Undone)
    }

    fn seen(&self, now: &StatusBefore) -> Deviation {
        match now.same {
            true => Deviation::default(),
            false => Deviation::gone(format!("{} is not {:?}", self.path.display(), self.text)),
        }
    }

    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let parents = bounds.driver_roots.iter().filter_map(|root| root.parent());
        let written = |parent: &Path| {
            let (digest, confirmation) =
                (Self::digest(parent, &self.text), Self::confirmation(parent, &self.text));
            [Self::not_ready(parent), Self::ready(parent), digest, confirmation]
        };
        let is_one = |one: Self| {
            let confirmed = match (&one.confirmed_by, &self.confirmed_by) {
                (Some(wanted), Some(path)) => is(path, wanted),
                (wanted, path) => wanted.is_none() && path.is_none(),
            };
            confirmed && is(&self.path, &one.path) && self.text == one.text
        };
        let is_written = parents.flat_map(written).any(is_one);
        let is_valid = self.is_confirmation() || ConfigDigest::is_valid(&self.text);
        given(is_written && is_valid, &self.path)
    }
}
