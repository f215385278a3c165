//! SELinux labels of files of the store.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bounds::{given, is_hex, is_plain};
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch,
};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::Code;
use longshore_host::facts::selinux::is_label;
use longshore_host::{Host, VerbError};

/// Give files of the store an SELinux label: that of a driver's tree, which containers may read, or that
/// of module files. Undone by nothing: files of the store keep their labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("label {} {label}", self.named())]
pub struct LabelFiles {
    /// Absolute paths: a tree, or modules; each is labelled with everything below it.
    pub paths: Vec<PathBuf>,
    /// The label.
    pub label: String,
}

/// Some of the files had another label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherLabels {}

impl LabelFiles {
    fn named(&self) -> String {
        match self.paths.as_slice() {
            [one] => one.display().to_string(),
            many => format!("{} files of the store", many.len()),
        }
    }
}

impl StepKind for LabelFiles {
    type Before = OtherLabels;
    const WAS: &'static str = "other-labels";

    fn subject(&self) -> String {
        self.named()
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: false,
            // Unconfined containers read the driver without labels, and the kernel loads modules from
            // memory.
            optional: Some(Code::FilesUnlabelled),
            // A disk that does not answer is no reason to doubt a Ready driver; the next start labels what
            // another program labelled.
            recheck: Recheck::Never,
            carries_daemons: false,
            // Undo leaves the labels: no change of driver has to wait for it.
            next: Next::AnyDriver,
            content: None,
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<OtherLabels>, Failure> {
        let mut labelled = true;
        for path in &self.paths {
            labelled = labelled && host.has_label(path, &self.label).map_err(unlabelled)?;
        }
        Ok((!labelled).then_some(OtherLabels {}))
    }

    fn apply(&self, _: &OtherLabels, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        let mut paths = self.paths.iter();
        match paths.try_for_each(|path| tools.host.label(path, &self.label)) {
            Ok(()) => Ok(intent.done()),
            Err(error) => {
                intent.not_done();
                Err(unlabelled(error))
            }
        }
    }

    fn undo(&self, _: &OtherLabels, _: &Progress<'_>, _: &Tools<'_>) -> UndoResult {
        Ok(EntryState::Undone)
    }

    fn seen(&self, _: &OtherLabels) -> Deviation {
        Deviation::gone(format!("{} has another SELinux label", self.named()))
    }

    /// Accepts trees and blobs of the stores.
    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let is_known = |path: &PathBuf| bounds.stores.iter().any(|store| is_of(store, path));
        self.paths.iter().try_for_each(|path| given(is_plain(path) && is_known(path), path))?;
        given(is_label(&self.label), Path::new(&self.label))
    }
}

/// True for the root of a user-mode tree, and for a blob, of this store.
fn is_of(store: &Path, path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(store) else { return false };
    let parts: Vec<&str> = inside.components().filter_map(normal).collect();
    match parts.as_slice() {
        ["userspace", _, "root"] => true,
        ["blobs", "sha256", digest] => is_hex(digest, 64),
        _ => false,
    }
}

fn normal(part: Component<'_>) -> Option<&str> {
    if let Component::Normal(name) = part { name.to_str() } else { None }
}

fn unlabelled(error: VerbError) -> Failure {
    Failure::new(FailureKind::Expose, "labelling the driver's files for SELinux")
        .with_source(error)
        .remedy(Code::FilesUnlabelled.entry().remedy)
}
