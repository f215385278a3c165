//! Failures of the verbs that steps use.

use nix::errno::Errno;

use longshore_core::failure::{Failure, FailureKind};
use longshore_host::VerbError;

/// Remedy for a call that hangs in the kernel.
pub(crate) const NEEDS_REBOOT: &str = "drain this host and reboot it: a call that hangs in the \
    kernel cannot be ended; the kernel's log (dmesg) may show what it waits for. If it returns \
    after all, `longshore unload` does the rest";

/// Failure of a verb that exposes the driver to the host.
pub(crate) fn exposing(error: VerbError) -> Failure {
    if error.unanswered.is_some() {
        return Failure::new(FailureKind::RolledBack, "exposing the driver to the host")
            .with_source(error)
            .remedy(NEEDS_REBOOT);
    }
    let remedy = match error.errno {
        Errno::EROFS | Errno::EPERM | Errno::EACCES => {
            "run the container privileged, with the host's /dev, /sys and /run/nvidia"
        }
        Errno::ENOSPC => "free space on the file system of the path",
        Errno::EEXIST => "another file is in the way: inspect it and move it away",
        _ => "look at the path on the host; `longshore plan` shows which paths longshore needs",
    };
    Failure::new(FailureKind::Expose, "exposing the driver to the host")
        .with_source(error)
        .remedy(remedy)
}
