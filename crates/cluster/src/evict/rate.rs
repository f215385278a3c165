//! Bound on the evictions of all nodes in a minute.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const MINUTE: Duration = Duration::from_secs(60);

/// Evictions that were made in the last minute, of at most so many.
#[derive(Debug)]
pub(crate) struct Rate {
    most: usize,
    made: Mutex<VecDeque<Instant>>,
}

impl Rate {
    /// Allows so many in a minute.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), made: Mutex::default() }
    }

    /// Waits until one more is allowed.
    pub(super) async fn take(&self) {
        while let Some(next) = self.try_take(Instant::now()) {
            sleep_until(next).await;
        }
    }

    /// Counts one; returns the time of the next try where it is one too many.
    fn try_take(&self, now: Instant) -> Option<Instant> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        while made.front().is_some_and(|at| now.duration_since(*at) >= MINUTE) {
            made.pop_front();
        }
        match made.front() {
            Some(first) if made.len() >= self.most => Some(*first + MINUTE),
            _ => {
                made.push_back(now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_are_made_in_a_minute_and_no_more() {
        let (rate, begun) = (Rate::new(3), Instant::now());
        for n in 0..9 {
            rate.take().await;
            assert_eq!(begun.elapsed().as_secs(), n / 3 * 60, "{n}");
        }
    }
}
