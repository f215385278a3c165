//! Reads [`HostFacts`] from a root directory.

use std::path::Path;

use super::facts::HostFacts;
use crate::failure::{ExitCode, Failure};

impl HostFacts {
    /// Reads the facts: /proc and /sys below `root`, /etc and /lib/modules below `host_root`.
    ///
    /// # Errors
    /// Exit code 10 where not even the kernel's release can be read. Anything else that cannot be
    /// read is [`Known::Unknown`](super::facts::Known) or named in `unread`.
    pub fn read(root: &Path, _host_root: &Path) -> Result<Self, Failure> {
        Err(Failure::new(ExitCode::HostUnsupported, format!("reading {}", root.display())))
    }
}
