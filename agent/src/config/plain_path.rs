//! Paths of the settings as they are compared with each other.

use std::path::{Component, Path, PathBuf};

/// Returns an absolute path without its `.` and `..`.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}
