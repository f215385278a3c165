//! Detection of a step that hangs.
//!
//! A call that may hang for good by itself, such as delete_module(2), is made by a child process
//! that is given up (docs/internals/decisions/wedged-modules.md). Everything else that can hang (inspecting a
//! path of a disk or server that is gone, reading the store, /proc and /sys of a module that hangs)
//! is done by the thread that changes the host. Nothing gets it out of the kernel; but the agent
//! can still report it.

use std::time::{Duration, Instant};

use crate::telemetry::Telemetry;
use longshore_core::failure::{Failure, FailureKind};

/// Interval of checking, as a fraction of the limit.
const PART: u32 = 10;

/// Waits until the step in progress, or the work between two of them, has taken longer than
/// `limit`, and returns that failure.
pub(super) async fn stuck(telemetry: &Telemetry, limit: Duration) -> Failure {
    let mut between = Instant::now();
    loop {
        match telemetry.in_progress() {
            Some((what, since)) if since >= limit => return failure(&what, since),
            Some(_) => between = Instant::now(),
            None if between.elapsed() >= limit => {
                return failure("looking at the host", between.elapsed());
            }
            None => {}
        }
        tokio::time::sleep(limit / PART).await;
    }
}

fn failure(what: &str, since: Duration) -> Failure {
    let cause = format!(
        "{what} has not come to its end in {:.0} s: the kernel, a disk or a file system does not \
         answer. This agent ends where it is; its journal has its progress",
        since.as_secs_f64()
    );
    Failure::new(FailureKind::RolledBack, cause).remedy(
        "see the kernel's log (dmesg) for what does not answer; once it does, `longshore unload` \
         undoes the rest; if it never does, drain this host and reboot it",
    )
}
