//! Time limit and interval of a wait for another process.

use std::thread;
use std::time::{Duration, Instant};

/// A bounded wait for something the kernel sends no event for, such as a reference count.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Time limit.
    pub deadline: Duration,
    /// Interval between two checks.
    pub interval: Duration,
}

impl Default for Patience {
    /// 20 s, inside Kubernetes' 30 s of grace.
    fn default() -> Self {
        Self { deadline: Duration::from_secs(20), interval: Duration::from_millis(200) }
    }
}

impl Patience {
    /// The default interval with another deadline.
    pub fn of(deadline: Duration) -> Self {
        Self { deadline, ..Self::default() }
    }

    /// The same, with a deadline of no more than this.
    #[must_use]
    pub fn at_most(self, deadline: Duration) -> Self {
        Self { deadline: self.deadline.min(deadline), ..self }
    }

    /// Begins a wait.
    pub(super) fn begin(&self) -> Wait {
        Wait { patience: *self, since: Instant::now() }
    }
}

/// A wait in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    patience: Patience,
    since: Instant,
}

impl Wait {
    /// Returns a wait that begins now and ends with this one, or after `most`.
    pub(super) fn at_most(&self, most: Duration) -> Wait {
        let deadline = self.left().min(most);
        Patience { deadline, ..self.patience }.begin()
    }

    /// Returns the remaining time.
    pub(super) fn left(&self) -> Duration {
        self.patience.deadline.saturating_sub(self.since.elapsed())
    }

    /// True if the deadline is past.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Sleeps until the next check.
    pub(super) fn pause(&self) {
        thread::sleep(self.patience.interval.min(self.left()));
    }
}
