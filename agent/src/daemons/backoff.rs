//! Waiting time before a daemon that ended is restarted.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// A daemon that served this long was healthy: its end counts as a new failure.
const WELL_AFTER: Duration = Duration::from_secs(60);

/// Waits that double, shortened by up to a half at random: a common cause hits many hosts at once,
/// and they should not all retry at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the waiting time after the daemon served for `lived`; None if it never served, even
    /// if it was given minutes to start.
    pub(super) fn after(&mut self, lived: Option<Duration>) -> Duration {
        if lived.is_some_and(|lived| lived >= WELL_AFTER) {
            self.failures = 0;
        }
        let full = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_begin_anew_after_a_good_time() {
        let mut backoff = Backoff::default();
        for n in 0..40 {
            let full = FIRST.saturating_mul(1 << n.min(16)).min(LONGEST);
            let wait = backoff.after(if n % 2 == 0 { None } else { Some(Duration::ZERO) });
            assert!(wait >= full / 2 && wait <= full, "{n}: {wait:?}");
        }
        assert!(backoff.after(Some(WELL_AFTER)) <= FIRST);
        assert!(backoff.after(None) >= FIRST);
    }
}
