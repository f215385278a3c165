//! Events of the kernel after which an installed driver is checked again.
//!
//! None of them is trusted: each only triggers a check. Three sources are waited for on the
//! runtime's own epoll, without a thread and without a timer while nothing happens:
//!
//! | Source | Events |
//! |---|---|
//! | uevents ([`uevents`]) | modules loaded or unloaded; GPUs added, removed, bound or unbound |
//! | /proc/self/mountinfo ([`mounts`]) | mounts and unmounts in this process's mount namespace |
//! | inotify ([`places`]) | device nodes, and writes to the firmware path through this sysfs |

mod mounts;
mod places;
mod uevents;

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until};

use super::Renewal;
use crate::steps::Step;
use longshore_core::finding::{Code, Finding};
use mounts::Mounts;
use places::Places;
use uevents::Uevents;

/// Time within which events count as one.
const TOGETHER: Duration = Duration::from_millis(50);
/// Pause after irrelevant events: they cost at most four wake-ups a second.
const DULL: Duration = Duration::from_millis(200);
/// Shortest time between two checks, however many events come.
const APART: Duration = Duration::from_millis(500);
/// The same for files that other programs write beside longshore's spec, as often as they like.
const SPECS_APART: Duration = Duration::from_secs(5);

/// Sources of events for an agent.
#[derive(Debug, Clone, Default)]
pub struct Triggers {
    /// Requests a check by itself.
    pub again: Renewal,
    /// True if the running kernel's events are used.
    pub kernel: bool,
}

/// The opened sources. A source that cannot be opened is left out, with a finding.
#[derive(Debug)]
pub(super) struct Watch {
    again: Renewal,
    uevents: Option<Uevents>,
    mounts: Option<Mounts>,
    places: Option<Places>,
    /// Reasons of the sources that are left out.
    left_out: Vec<Finding>,
    /// Time of the last check.
    looked: Option<Instant>,
    /// Time of a check because of other programs' specs.
    specs_due: Option<Instant>,
}

impl Watch {
    /// Opens the sources.
    pub(super) fn begin(triggers: &Triggers) -> Self {
        let mut left_out = Vec::new();
        let Triggers { again, kernel } = triggers.clone();
        let mut keep = |what: &str, why: io::Error| {
            let seen = format!("{what} are not reported: {why}");
            left_out.push(Finding::note(Code::WatchLimited, seen));
        };
        let (mut uevents, mut mounts, mut places) = (None, None, None);
        if kernel {
            uevents = Uevents::open().map_err(|e| keep("changes of modules and GPUs", e)).ok();
            mounts = Mounts::open().map_err(|e| keep("mounts and unmounts", e)).ok();
            places = Places::open().map_err(|e| keep("changes of device nodes", e)).ok();
        }
        Self { again, uevents, mounts, places, left_out, looked: None, specs_due: None }
    }

    /// Watches the places that `steps` made. To be called before each check: a new mount is another
    /// directory.
    pub(super) fn arm(&mut self, steps: &[Step]) {
        if let Some(places) = &mut self.places {
            places.arm(steps);
        }
        self.looked = Some(Instant::now());
        self.specs_due = None;
    }

    /// Returns the sources that are left out.
    pub(super) fn left_out(&self) -> &[Finding] {
        &self.left_out
    }

    /// Waits for a reason to check again. Dropping it while it waits may lose a reason: the caller
    /// then checks, or ends.
    pub(super) async fn changed(&mut self) {
        loop {
            let Self { again, uevents, mounts, places, specs_due, looked, .. } = self;
            let tells = tokio::select! {
                biased;
                () = again.asked() => return,
                () = mounts::changed(mounts.as_ref()) => {
                    sleep(TOGETHER).await;
                    true
                }
                guard = uevents::readable(uevents.as_ref()) => {
                    sleep(TOGETHER).await;
                    uevents::read(guard)
                }
                guard = places::readable(places.as_ref()) => {
                    sleep(TOGETHER).await;
                    let reported = places::read(guard);
                    let due = || looked.map_or_else(Instant::now, |looked| looked + SPECS_APART);
                    *specs_due = specs_due.or_else(|| reported.specs.then(due));
                    reported.driver
                }
                () = until(*specs_due) => true,
            };
            if !tells {
                sleep(DULL).await;
                continue;
            }
            if let Some(looked) = self.looked {
                sleep_until(looked + APART).await;
            }
            return;
        }
    }
}

/// Waits until then; for ever without a time.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// Registers a descriptor with the runtime, which waits for it on its epoll.
#[expect(
    deprecated,
    reason = "unsound for types that may close or change their descriptor: an OwnedFd does neither, and \
              what takes its place is unsafe"
)]
fn listen(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}

#[cfg(test)]
mod tests;
