//! A step of a change that does not come to its end.
//!
//! What may hang for good by itself, such as delete_module(2), is done by a child that is given up
//! (docs/decisions/wedged-modules.md). Whatever else can hang (looking at a path of a disk or server that
//! is gone, reading the store, /proc and /sys of a module that hangs) is done by the thread that
//! changes the host. Nothing takes it out of the kernel; but it need not keep the agent from saying so.

use std::time::{Duration, Instant};

use crate::failure::{ExitCode, Failure};
use crate::telemetry::Telemetry;

/// How often it is looked at, as a part of the limit.
const PART: u32 = 10;

/// Waits until the step in progress, or what is done between two of them, has taken longer than
/// `limit`, and says so.
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
         answer. This agent ends where it is; its journal says how far it came",
        since.as_secs_f64()
    );
    Failure::new(ExitCode::RolledBack, cause).remedy(
        "see the kernel's log (dmesg) for what does not answer; when it does again, `longshore unload` \
         takes off what is there, and where it does not, drain this host and reboot it",
    )
}
