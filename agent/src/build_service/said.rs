//! Warnings about what is asked for, which is read again and again: of each topic the last one is known, and logged again
//! after a time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Interval at which a warning that stays the same is repeated.
const SAME: Duration = Duration::from_secs(6 * 60 * 60);
/// Shortest time between two different warnings of a topic: a node may change the names and numbers in them each second.
const OTHER: Duration = Duration::from_secs(5 * 60);

/// Subject of a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// The list of kernels cannot be read.
    List,
    /// The nodes cannot be read.
    Nodes,
    /// More kernels are asked for than are built for.
    LeftOut,
    /// A node asks for too many kernels in a short time.
    Overdrawn,
    /// Texts of nodes are no releases.
    Invalid,
    /// Nodes have another architecture.
    Foreign,
}

/// Last warning of each topic, and the time at which it was logged.
#[derive(Debug, Default)]
pub(super) struct Said {
    last: BTreeMap<Topic, (String, Instant)>,
}

impl Said {
    /// True if a warning is to be logged now; it counts as logged then.
    pub(super) fn is_due(&mut self, topic: Topic, line: &str, now: Instant) -> bool {
        let is_due = self.last.get(&topic).is_none_or(|(last, at)| {
            let pause = if last == line { SAME } else { OTHER };
            now.duration_since(*at) >= pause
        });
        if is_due {
            self.last.insert(topic, (line.to_owned(), now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Warnings with the seconds since the one before, and the result of each.
    #[rstest]
    #[case::once(&[("a", 0, true), ("a", 60, false), ("a", 600, false)])]
    #[case::again(&[("a", 0, true), ("a", 6 * 3600, true), ("a", 60, false)])]
    #[case::another(&[("a", 0, true), ("b", 300, true), ("a", 300, true)])]
    #[case::too_soon(&[("a", 0, true), ("b", 299, false), ("b", 1, true)])]
    fn a_topic_is_logged_when_it_changes_and_not_more_often_than_that(
        #[case] lines: &[(&str, u64, bool)],
    ) {
        let (mut said, mut now) = (Said::default(), Instant::now());
        for (line, seconds, expected) in lines {
            now += Duration::from_secs(*seconds);
            assert_eq!(said.is_due(Topic::Nodes, line, now), *expected, "{line} at {now:?}");
        }
    }

    #[test]
    fn many_warnings_of_one_topic_mute_no_other_and_take_no_memory() {
        let (mut said, mut now) = (Said::default(), Instant::now());
        for number in 0..5000 {
            now += Duration::from_secs(1);
            said.is_due(Topic::Invalid, &number.to_string(), now);
        }
        assert!(said.is_due(Topic::Nodes, "away", now));
        assert_eq!(said.last.len(), 2);
    }
}
