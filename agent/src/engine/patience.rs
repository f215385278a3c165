//! How long to wait for what another does, and how often to look.

use std::thread;
use std::time::{Duration, Instant};

/// A bounded wait for something the kernel sends no event for, such as a reference count.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Give up after this long.
    pub deadline: Duration,
    /// Look this often.
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

/// A wait that goes on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    patience: Patience,
    since: Instant,
}

impl Wait {
    /// A wait that begins now and ends with this one, or after `most`.
    pub(super) fn at_most(&self, most: Duration) -> Wait {
        let deadline = self.left().min(most);
        Patience { deadline, ..self.patience }.begin()
    }

    /// How long it goes on.
    pub(super) fn left(&self) -> Duration {
        self.patience.deadline.saturating_sub(self.since.elapsed())
    }

    /// Whether the deadline is past.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Waits until it is worth another look.
    pub(super) fn pause(&self) {
        thread::sleep(self.patience.interval.min(self.left()));
    }
}
