//! Retries of a server, and the end of them: a dead one is given up quickly, because another may
//! have the file, a busy one late, because it will recover.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::Policy;

/// Reason why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The transfer was interrupted.
    Broken,
    /// The server sent nothing, or next to nothing, for this long.
    Silent(Duration),
    /// The server answered that it is busy: after this long, and with this Retry-After.
    Busy(Duration, Option<Duration>),
}

/// Retry state for one server and one file.
pub(super) struct RetryBudget<'p> {
    policy: &'p Policy,
    attempt: u32,
    silent: Duration,
    busy: Duration,
    /// Number of busy answers, for which the waits grow, too.
    refusals: u32,
}

impl<'p> RetryBudget<'p> {
    /// Starts counting the attempts that `policy` allows.
    pub(super) fn new(policy: &'p Policy) -> Self {
        Self { policy, attempt: 1, silent: Duration::ZERO, busy: Duration::ZERO, refusals: 0 }
    }

    /// Resets the count after a successful part of the transfer.
    pub(super) fn restore(&mut self) {
        *self = Self::new(self.policy);
    }

    /// Returns the time to wait before the next attempt; None for no further attempt.
    pub(super) fn after(&mut self, trouble: Trouble) -> Option<Duration> {
        let policy = self.policy;
        if let Trouble::Busy(took, again) = trouble {
            self.refusals += 1;
            let wait = policy.wait(self.refusals).max(again.unwrap_or_default());
            self.busy = self.busy.saturating_add(took).saturating_add(wait);
            return (self.busy <= policy.busy).then_some(wait);
        }
        if let Trouble::Silent(took) = trouble {
            self.silent = self.silent.saturating_add(took);
        }
        if self.attempt >= policy.attempts || self.silent >= policy.silence {
            return None;
        }
        let wait = policy.wait(self.attempt);
        self.attempt += 1;
        Some(wait)
    }
}

/// True for a status that means try again later: 408, 429, 5xx.
pub fn is_busy(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// Parses `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let seconds = date.as_second() - jiff::Timestamp::now().as_second();
    Some(Duration::from_secs(seconds.try_into().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn policy() -> Policy {
        Policy { attempts: 3, ..Policy::default() }
    }

    /// Number of attempts, and the total wait, if `trouble` never ends.
    fn all(policy: &Policy, trouble: Trouble) -> (u32, Duration) {
        let mut budget = RetryBudget::new(policy);
        let (mut asked, mut waited) = (1, Duration::ZERO);
        while let Some(wait) = budget.after(trouble) {
            (asked, waited) = (asked + 1, waited + wait);
            assert!(asked < 1000, "for ever");
        }
        (asked, waited)
    }

    #[test]
    fn a_line_that_breaks_is_tried_a_few_times() {
        assert_eq!(all(&policy(), Trouble::Broken).0, 3);
    }

    #[test]
    fn who_says_nothing_costs_at_most_half_a_minute() {
        let policy = Policy::default();
        for took in [policy.connect, policy.stall] {
            let (asked, waited) = all(&policy, Trouble::Silent(took));
            let whole = took * asked + waited;
            assert!(whole <= Duration::from_secs(32), "{took:?}: {whole:?}");
        }
    }

    /// Number of attempts at a server that is always busy and says so after `took`, and the time of
    /// the last attempt.
    fn busy(policy: &Policy, took: Duration) -> (u32, Duration) {
        let mut budget = RetryBudget::new(policy);
        let (mut asked, mut since) = (1, Duration::ZERO);
        while let Some(wait) = budget.after(Trouble::Busy(took, None)) {
            (asked, since) = (asked + 1, since + took + wait);
            assert!(asked < 1000, "for ever");
        }
        (asked, since)
    }

    #[rstest]
    #[case::at_once(0)]
    #[case::soon(5)]
    #[case::late(20)]
    fn who_is_busy_for_a_minute_is_waited_for(#[case] seconds: u64) {
        let took = Duration::from_secs(seconds);
        for policy in [
            Policy::default(),
            Policy::default().with_short_timeouts(),
            Policy::default().for_registry(),
        ] {
            // Waits are shortened at random.
            for _ in 0..100 {
                let (asked, last) = busy(&policy, took);
                assert!(last >= Duration::from_secs(60), "asked until {last:?}");
                assert!(last <= policy.busy && asked < 30, "{asked} times until {last:?}");
            }
        }
    }

    #[test]
    fn a_server_says_when_it_wants_to_be_asked_again_and_not_too_late() {
        let policy = policy();
        let after = |again| {
            let again = Some(Duration::from_secs(again));
            RetryBudget::new(&policy).after(Trouble::Busy(Duration::ZERO, again))
        };
        assert_eq!(after(20), Some(Duration::from_secs(20)));
        assert_eq!(after(3600), None);
        assert_eq!(after(u64::MAX), None);
    }

    #[test]
    fn what_was_worth_it_begins_the_count_anew() {
        let policy = policy();
        let mut budget = RetryBudget::new(&policy);
        for _ in 0..10 {
            assert!(budget.after(Trouble::Broken).is_some());
            budget.restore();
        }
    }

    #[rstest]
    #[case("7", Some(7))]
    #[case(" 0 ", Some(0))]
    #[case("Wed, 21 Oct 2015 07:28:00 GMT", Some(0))]
    #[case("soon", None)]
    #[case("-1", None)]
    fn a_time_to_come_again_is_read(#[case] text: &str, #[case] seconds: Option<u64>) {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().expect("a value"))]);
        assert_eq!(retry_after(&headers), seconds.map(Duration::from_secs));
    }
}
