//! Time limit and interval of the wait for a driver in use.

use std::thread;
use std::time::{Duration, Instant};

/// Time limit and interval of waiting until the users of a module are gone: the kernel sends no
/// event for its reference count.
#[derive(Debug, Clone, Copy)]
pub struct InUseWait {
    /// Time limit.
    pub deadline: Duration,
    /// Interval between two checks.
    pub interval: Duration,
}

impl Default for InUseWait {
    /// 20 s, inside Kubernetes' 30 s of grace.
    fn default() -> Self {
        Self { deadline: Duration::from_secs(20), interval: Duration::from_millis(200) }
    }
}

impl InUseWait {
    /// The default interval with another deadline.
    pub fn with_deadline(deadline: Duration) -> Self {
        Self { deadline, ..Self::default() }
    }

    /// The same, with a deadline of no more than this.
    #[must_use]
    pub fn at_most(self, deadline: Duration) -> Self {
        Self { deadline: self.deadline.min(deadline), ..self }
    }

    /// Begins a wait.
    pub(super) fn begin(&self) -> Wait {
        Wait { in_use_wait: *self, since: Instant::now() }
    }
}

/// A wait in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    in_use_wait: InUseWait,
    since: Instant,
}

impl Wait {
    /// Returns a wait that begins now and ends with this one, or after `most`.
    pub(super) fn at_most(&self, most: Duration) -> Wait {
        let deadline = self.left().min(most);
        InUseWait { deadline, ..self.in_use_wait }.begin()
    }

    /// Returns the remaining time.
    pub(super) fn left(&self) -> Duration {
        self.in_use_wait.deadline.saturating_sub(self.since.elapsed())
    }

    /// True if the deadline is past.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Sleeps until the next check.
    pub(super) fn pause(&self) {
        thread::sleep(self.in_use_wait.interval.min(self.left()));
    }
}
