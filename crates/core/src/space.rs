//! Check for free space on a file system before writing.

use std::io;
use std::path::Path;

use crate::failure::{Failure, FailureKind, OrFail};

/// Space left free for other programs.
pub const MARGIN: u64 = 64 << 20;

/// Checks that `bytes` more fit on the file system of `dir`, with a margin.
///
/// # Errors
/// Exit code 15 where they do not.
pub fn require(dir: &Path, bytes: u64) -> Result<(), Failure> {
    let free = free(dir)
        .or_fail(FailureKind::Disk, || format!("asking how much is free at {}", dir.display()))?;
    enough(dir, bytes, free)
}

/// Returns the free space of the file system of `dir`, in bytes, that others than root may use.
///
/// # Errors
/// The kernel's errno.
pub fn free(dir: &Path) -> io::Result<u64> {
    let found = nix::sys::statvfs::statvfs(dir)?;
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}

fn enough(dir: &Path, bytes: u64, free: u64) -> Result<(), Failure> {
    if bytes.saturating_add(MARGIN) <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(Failure::new(
        FailureKind::Disk,
        format!(
            "{} has {} MiB free, and {} MiB are to be written there",
            dir.display(),
            free >> 20,
            mib(bytes.saturating_add(MARGIN))
        ),
    )
    .remedy("free space on the store's file system, or set --store to another one"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ExitCode;

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_written() {
        let dir = tempfile::tempdir().expect("dir");
        require(dir.path(), 1).expect("fits");
        let failure = require(dir.path(), u64::MAX).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.to_string().contains(&dir.path().display().to_string()), "{failure}");
        enough(dir.path(), 0, MARGIN).expect("fits");
        enough(dir.path(), 1, MARGIN).expect_err("refused");
    }
}
