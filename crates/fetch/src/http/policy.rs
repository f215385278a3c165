//! Timeouts and retries of downloads.

use std::time::Duration;

use super::unreachable::UnreachableHosts;

/// Maximum duration of an attempt, regardless of the size.
const LONGEST: Duration = Duration::from_secs(6 * 3600);

/// Time limits of downloads that are settings (docs/supply-chain/downloads.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Downloads {
    /// Until a connection is established.
    pub connect: Duration,
    /// Until the next bytes arrive.
    pub stall: Duration,
    /// For a server that reports that it is busy, all attempts together.
    pub busy: Duration,
}

impl Default for Downloads {
    fn default() -> Self {
        let [connect, stall, busy] = [10, 30, 90].map(Duration::from_secs);
        Self { connect, stall, busy }
    }
}

/// Timeouts and retries.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Timeout of a connection.
    pub connect: Duration,
    /// Timeout of the next bytes.
    pub stall: Duration,
    /// Minimum speed in bytes per second, within each stall period and on average.
    pub slowest: u64,
    /// Maximum number of consecutive attempts that receive next to nothing.
    pub attempts: u32,
    /// Time limit for a server that sends nothing or next to nothing, all attempts together: the
    /// last of them begins before.
    pub silence: Duration,
    /// Time limit for a server that reports to be busy, all attempts together.
    pub busy: Duration,
    /// Wait before the second attempt; doubles for each further one.
    pub backoff: Duration,
    /// Maximum wait between attempts, unless a server asks for more.
    pub longest_backoff: Duration,
    /// Servers that were found unreachable.
    pub away: UnreachableHosts,
}

impl Default for Policy {
    fn default() -> Self {
        Self::from_config(&Downloads::default())
    }
}

impl Policy {
    /// Returns the policy of the configuration.
    pub fn from_config(downloads: &Downloads) -> Self {
        let Downloads { connect, stall, busy } = *downloads;
        Self {
            connect,
            stall,
            slowest: 8 << 10,
            attempts: 5,
            // An unreachable server gets two connection attempts.
            silence: 2 * connect,
            busy,
            backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(10),
            away: UnreachableHosts::default(),
        }
    }

    /// Shortens the timeouts, for downloads with a fallback: an unresponsive server is tried twice,
    /// and given up within some ten seconds.
    #[must_use]
    pub fn with_short_timeouts(self) -> Self {
        let [connect, stall] = [4, 10].map(Duration::from_secs);
        let (connect, stall) = (connect.min(self.connect), stall.min(self.stall));
        Self { connect, stall, attempts: 2, ..self }
    }

    /// Returns the policy for a registry: two further sources may follow, and long retries are for
    /// what has no other source.
    #[must_use]
    pub fn for_registry(self) -> Self {
        Self { attempts: 3, ..self }
    }

    /// Returns the wait before attempt `attempt` + 1: doubled each time, and shortened by up to a
    /// half at random so that many hosts do not return at once.
    pub(super) fn wait(&self, attempt: u32) -> Duration {
        let full = self.backoff.saturating_mul(1 << attempt.saturating_sub(1).min(16));
        full.min(self.longest_backoff).mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Returns the maximum duration of one attempt at `bytes`.
    pub(super) fn deadline(&self, bytes: u64) -> Duration {
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
