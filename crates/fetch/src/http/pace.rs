//! Detection of stalled transfers: a server that sends a byte now and then never hits a read
//! timeout.

use std::time::Duration;

use super::Policy;

/// Speed of a body, measured over periods spent waiting for it: time spent on the disk is not the
/// server's fault.
pub(super) struct StallDetector {
    stretch: Duration,
    least: u64,
    waited: Duration,
    got: u64,
}

impl StallDetector {
    /// Starts a measurement with the minimum speed of `policy`.
    pub(super) fn new(policy: &Policy) -> Self {
        let stretch = policy.stall;
        let least = u128::from(policy.slowest) * stretch.as_millis() / 1000;
        let least = u64::try_from(least).unwrap_or(u64::MAX);
        Self { stretch, least, waited: Duration::ZERO, got: 0 }
    }

    /// Records `bytes` received after `waited`.
    ///
    /// # Errors
    /// A description, where they arrive too slowly.
    pub(super) fn note(&mut self, waited: Duration, bytes: usize) -> Result<(), String> {
        self.waited += waited;
        self.got = self.got.saturating_add(bytes as u64);
        if self.waited < self.stretch {
            return Ok(());
        }
        let (waited, got) = (self.waited, self.got);
        (self.waited, self.got) = (Duration::ZERO, 0);
        if got >= self.least {
            return Ok(());
        }
        Err(format!("only {got} bytes came within {:.1} s", waited.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_is_found_out_and_a_slow_line_is_not() {
        let policy = Policy { stall: Duration::from_secs(10), slowest: 100, ..Policy::default() };
        let mut pace = StallDetector::new(&policy);
        for _ in 0..100 {
            pace.note(Duration::from_secs(1), 100).expect("fast enough");
        }
        let mut pace = StallDetector::new(&policy);
        let trickle = (0..100).take_while(|_| pace.note(Duration::from_secs(1), 99).is_ok());
        assert_eq!(trickle.count(), 9);
    }

    #[test]
    fn what_comes_at_once_is_never_too_slow() {
        let mut pace = StallDetector::new(&Policy::default());
        for _ in 0..1000 {
            pace.note(Duration::ZERO, 0).expect("no time went by");
        }
    }
}
