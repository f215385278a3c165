//! Publishing of the driver's CDI spec.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bounds::{given, is_hex};
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch,
};
use crate::cdi::{self, DIRECTORY, FILE};
use crate::config::DriverCapability;
use longshore_core::digest::digest_of;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::finding::{Code, Finding};
use longshore_core::paths::Paths;
use longshore_host::verbs::published::{Published, PublishedFile};
use longshore_host::{Host, VerbError};

/// Publish the CDI spec of the driver that the host has then; undone by removing it.
///
/// The spec names files and nodes that are known only once the driver is exposed, so the step names
/// where they are, and the journal the digest of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("publish the CDI spec {}", self.place().shown())]
pub struct PublishSpec {
    /// Root of the host's file system, as this process reaches it.
    pub host_root: PathBuf,
    /// Driver root.
    pub driver_root: PathBuf,
    /// Parts of the driver that containers get.
    pub capabilities: Vec<DriverCapability>,
}

/// File to be published, and its directory before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotPublished {
    /// sha256 (hex) of the file.
    pub sha256: String,
    /// True if its directory was missing.
    pub makes_dir: bool,
}

impl PublishSpec {
    fn place(&self) -> PublishedFile<'_> {
        PublishedFile { root: &self.host_root, dir: Path::new(DIRECTORY), name: FILE }
    }

    /// Makes the file's content, checked as its readers do.
    fn content(&self, host: &dyn Host) -> Result<Vec<u8>, Failure> {
        let paths = Paths {
            driver_root: self.driver_root.clone(),
            ..Paths::new(host.root(), &self.host_root)
        };
        let spec = cdi::of_host(&paths, &self.capabilities, host)?;
        let text = spec.to_json().or_fail(FailureKind::Bug, || "writing the CDI spec as JSON")?;
        Ok(text.into_bytes())
    }

    /// Returns findings about specs of other programs with the same devices.
    pub fn rivals(&self, host: &dyn Host) -> Vec<Finding> {
        cdi::rivals(&cdi::below(host.root(), &self.host_root))
    }

    /// Refuses to take the devices of another program's spec away: a device of two files of one
    /// directory is resolved from neither.
    fn check_rivals(&self, host: &dyn Host) -> Result<(), Failure> {
        let rivals = self.rivals(host);
        let Some(rival) = rivals.into_iter().find(cdi::is_conflict) else { return Ok(()) };
        let cause = format!("the CDI spec is not published: {}", rival.detail);
        Err(Failure::new(FailureKind::Expose, cause).remedy(rival.remedy))
    }

    fn publish(&self, before: &NotPublished, host: &dyn Host) -> Result<(), Failure> {
        let content = self.content(host)?;
        if digest(&content) != before.sha256 {
            let cause = "the driver's files or nodes changed while its CDI spec was made";
            return Err(Failure::new(FailureKind::Expose, cause));
        }
        let place = self.place();
        if before.makes_dir {
            host.make_place(&place).map_err(unpublished)?;
        }
        host.publish(&place, &content).map_err(unpublished)
    }
}

impl StepKind for PublishSpec {
    type Before = NotPublished;
    const WAS: &'static str = "not-published";

    fn subject(&self) -> String {
        self.place().shown()
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: Some(Code::CdiUnpublished),
            recheck: Recheck::WhileLoaded,
            carries_daemons: false,
            next: Next::RewrittenUnlessReplaced(&self.host_root, "nvidia"),
            content: None,
            watch: Watch::Specs(&self.host_root),
            // No container is to get a driver that is being unloaded.
            announces: Announces::Files,
            refresh: None,
        }
    }

    /// Never finds the step unneeded: a file of this name is an agent's whose record was lost.
    fn observe(&self, host: &dyn Host) -> Result<Option<NotPublished>, Failure> {
        let content = self.content(host)?;
        let found = host.published(&self.place()).map_err(unpublished)?;
        if matches!(found, Published::NoDirectory | Published::Nothing) {
            self.check_rivals(host)?;
        }
        let makes_dir = found == Published::NoDirectory;
        Ok(Some(NotPublished { sha256: digest(&content), makes_dir }))
    }

    fn apply(&self, before: &NotPublished, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        match self.publish(before, tools.host) {
            Ok(()) => Ok(intent.done()),
            Err(failure) => {
                // A directory that was just made is no one else's; the failure counts.
                let removed = before.makes_dir.then(|| tools.host.remove_place(&self.place()));
                if removed.is_none_or(|removed| removed.is_ok()) {
                    intent.not_done();
                }
                Err(failure)
            }
        }
    }

    fn is_there(
        &self,
        before: &NotPublished,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        let found = host.published(&self.place()).map_err(unpublished)?;
        let Published::File(found) = found else { return Ok(false) };
        Ok(digest(&found) == before.sha256 && self.content(host)? == found)
    }

    fn undo(
        &self,
        before: &NotPublished,
        progress: &Progress<'_>,
        tools: &Tools<'_>,
    ) -> UndoResult {
        let (host, place) = (tools.host, self.place());
        let state = match host.published(&place)? {
            Published::NoDirectory => return Ok(EntryState::Undone),
            Published::File(found) if digest(&found) != before.sha256 => {
                host.withdraw(&place, true)?;
                theirs(&place, progress)
            }
            Published::Other(_) => {
                host.withdraw(&place, true)?;
                theirs(&place, progress)
            }
            Published::File(_) | Published::Nothing => {
                host.withdraw(&place, false)?;
                EntryState::Undone
            }
        };
        if !before.makes_dir || state != EntryState::Undone {
            return Ok(state);
        }
        super::directory::kept_if_used(Path::new(DIRECTORY), host.remove_place(&place))
    }

    fn seen(&self, _: &NotPublished) -> Deviation {
        Deviation::gone(format!("{} is missing, or not the present driver's", self.place().shown()))
    }

    /// Accepts the host's root, with a driver root.
    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let dev = self.host_root.join("dev");
        given(bounds.devs.contains(&dev), &self.host_root)?;
        given(bounds.driver_roots.contains(&self.driver_root), &self.driver_root)
    }

    fn check_before(&self, before: &NotPublished, _: &Bounds) -> Result<(), String> {
        given(is_hex(&before.sha256, 64), &self.host_root)
    }
}

fn unpublished(error: VerbError) -> Failure {
    Failure::new(FailureKind::Expose, "publishing the CDI spec").with_source(error).remedy(
        "allow writes to /var/run/cdi on the host (space, a mount that is not read-only, a \
         directory of root's), or set cdi-spec to off",
    )
}

/// State of an entry in whose place another file is: one that was not published yet did nothing.
fn theirs(place: &PublishedFile<'_>, progress: &Progress<'_>) -> EntryState {
    if *progress.state == EntryState::Intended {
        return EntryState::Undone;
    }
    let why = "another program changed it after us";
    tracing::warn!("{} stays: {why}", place.shown());
    EntryState::Kept(why.to_owned())
}

fn digest(bytes: &[u8]) -> String {
    // Reading from memory does not fail.
    digest_of(bytes).unwrap_or_default()
}
