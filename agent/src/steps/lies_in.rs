//! Place of a recorded step's effect: on one mount, or elsewhere as well.

use std::path::Path;

use super::{MissingDirs, Nodes, Observed, Recorded};

impl Recorded {
    /// True if everything that it made is below `target`, and gone with a mount there.
    pub(crate) fn lies_in(&self, target: &Path) -> bool {
        let inside = |path: &Path| path != target && path.starts_with(target);
        match self {
            Self::MakeDir(Observed { before: MissingDirs { dirs }, .. }) => {
                dirs.iter().all(|dir| inside(dir))
            }
            Self::MakeNodes(Observed { before: Nodes { missing_dirs, nodes }, .. }) => {
                missing_dirs.iter().all(|dir| inside(dir))
                    && nodes.iter().all(|node| inside(&node.path))
            }
            // Mounts in a mount have a check of their own.
            Self::MountRoot(_)
            | Self::Bind(_)
            | Self::MountSysfs(_)
            | Self::MountTmpfs(_)
            | Self::Share(_)
            | Self::WriteParameter(_)
            | Self::LoadModule(_)
            | Self::RemoveLeftover(_)
            | Self::StartDaemon(_)
            | Self::ReserveDevice(_)
            | Self::UnloadConflicting(_)
            | Self::LinkNodes(_)
            | Self::PublishSpec(_)
            | Self::LabelFiles(_)
            | Self::WriteStatus(_)
            | Self::WriteFeatures(_) => false,
        }
    }
}
