//! Host root: the directory that the journal's paths on the host are below.
//!
//! `/proc/1/root` is the host's root only in a container that shares the host's PID namespace.
//! Elsewhere it is the container's own root, which does not show the effects to be undone: they
//! would pass for undone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::paths::Paths;
use longshore_host::values::DirId;

/// A host root that is not the agent's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoot {
    /// Path by which the agent reaches it.
    pub path: PathBuf,
    /// Device and inode of that directory.
    pub id: DirId,
}

impl HostRoot {
    /// Returns the host root among `paths`; None if it is the agent's own root, or cannot be
    /// inspected.
    pub(super) fn look_up(paths: &Paths) -> Option<Self> {
        if paths.host_root == paths.root {
            return None;
        }
        let found = fs::metadata(&paths.host_root).ok()?;
        Some(Self { path: paths.host_root.clone(), id: (found.dev(), found.ino()) })
    }

    /// Checks that `now` is the same host root.
    ///
    /// # Errors
    /// 15 if `now` is another, so that paths below this one lead elsewhere.
    pub(super) fn check(&self, now: Option<&Self>) -> Result<(), Failure> {
        if now == Some(self) {
            return Ok(());
        }
        let path = self.path.display();
        Err(Failure::new(
            FailureKind::Preflight,
            format!(
                "the last agent made device nodes below {path}, and that is not the same directory \
                 here"
            ),
        )
        .remedy(
            "run longshore as it ran then: with the host's PID namespace (--pid host, \
             hostPID: true), or the same --host-root",
        ))
    }
}
