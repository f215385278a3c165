//! How patient a download is.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use super::Away;
use crate::config::Downloads;

/// No attempt takes longer, whatever the size.
const LONGEST: Duration = Duration::from_secs(6 * 3600);

/// How long to wait and how often to try.
#[derive(Debug, Clone)]
pub struct Policy {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes.
    pub stall: Duration,
    /// Bytes per second that a download must keep up with, within each such time and on the whole.
    pub slowest: u64,
    /// Attempts in a row that bring next to nothing.
    pub attempts: u32,
    /// For a server that says nothing or next to nothing, all attempts together: the last of them
    /// begins before.
    pub silence: Duration,
    /// For a server that says it is busy, all attempts together.
    pub busy: Duration,
    /// Before the second attempt; doubles for each further one.
    pub backoff: Duration,
    /// The longest wait between attempts, unless a server asks for more.
    pub longest_backoff: Duration,
    /// Servers that were found to be away.
    pub away: Away,
}

impl Default for Policy {
    fn default() -> Self {
        Self::of(&Downloads::default())
    }
}

impl Policy {
    /// As patient as the configuration says.
    pub fn of(downloads: &Downloads) -> Self {
        let Downloads { connect, stall, busy } = *downloads;
        Self {
            connect,
            stall,
            slowest: 8 << 10,
            attempts: 5,
            // Who takes no connection is asked for one twice.
            silence: 2 * connect,
            busy,
            backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(10),
            away: Away::default(),
        }
    }

    /// For what one can do without: who does not answer is asked once more, and given up within some
    /// ten seconds.
    #[must_use]
    pub(crate) fn hasty(self) -> Self {
        let [connect, stall] = [4, 10].map(Duration::from_secs);
        let (connect, stall) = (connect.min(self.connect), stall.min(self.stall));
        Self { connect, stall, attempts: 2, ..self }
    }

    /// For a registry: two further sources may follow, and patience is for what has no other.
    #[must_use]
    pub fn for_registry(self) -> Self {
        Self { attempts: 3, ..self }
    }

    /// Before attempt `attempt` + 1: doubled each time, and shortened by up to a half at random so
    /// that many hosts do not come back at once.
    pub(crate) fn wait(&self, attempt: u32) -> Duration {
        let full = self.backoff.saturating_mul(1 << attempt.saturating_sub(1).min(16));
        // std seeds every RandomState differently; that is random enough to spread requests.
        let random = std::hash::RandomState::new().build_hasher().finish();
        full.min(self.longest_backoff).mul_f64(0.5 + (random % 1000) as f64 / 2000.0)
    }

    /// The longest that one attempt at `bytes` may take.
    pub(crate) fn deadline(&self, bytes: u64) -> Duration {
        let whole = Duration::from_secs(bytes / self.slowest.max(1));
        (self.connect + self.stall + whole).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound() {
        let policy = Policy::default();
        for attempt in 1..40 {
            let wait = policy.wait(attempt);
            let full = policy.backoff.saturating_mul(1 << (attempt - 1).min(16));
            let full = full.min(policy.longest_backoff);
            assert!(wait >= full / 2 && wait <= full, "{attempt}: {wait:?}");
        }
    }

    #[test]
    fn every_attempt_ends() {
        let policy = Policy::default();
        assert_eq!(policy.deadline(0), policy.connect + policy.stall);
        assert_eq!(policy.deadline(u64::MAX), LONGEST);
    }
}
