//! Number of new kernels that a node may ask for in an hour. Whoever has taken a node decides on the text of its object, and
//! could name another release each second.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_cluster::KernelsOfNode;
use tokio::time::Instant;

/// New releases of a node in an hour. A node with a new kernel and one for its next boot asks for two.
pub(super) const MOST_NEW: usize = 4;
/// Time for which a release counts as new.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Releases of each node that are built for, with the time at which each was admitted.
#[derive(Debug, Default)]
pub(super) struct Budget {
    nodes: BTreeMap<String, BTreeMap<String, Instant>>,
}

impl Budget {
    /// Forgets releases that were admitted an hour ago, and that their node does not ask for any more.
    pub(super) fn forget(&mut self, asking: &BTreeMap<String, KernelsOfNode>, now: Instant) {
        self.nodes.retain(|name, admitted| {
            let asked = asking.get(name);
            admitted.retain(|release, since| {
                is_new(*since, now) || asked.is_some_and(|node| node.releases.contains(release))
            });
            !admitted.is_empty()
        });
    }

    /// True if this release of a node is built for. One that was admitted stays it while the node asks for it.
    pub(super) fn admits(&mut self, node: &str, release: &str, now: Instant) -> bool {
        let admitted = self.nodes.entry(node.to_owned()).or_default();
        if admitted.contains_key(release) {
            return true;
        }
        let has_room = admitted.values().filter(|since| is_new(**since, now)).count() < MOST_NEW;
        if has_room {
            admitted.insert(release.to_owned(), now);
        }
        has_room
    }

    /// Returns the time at which a node that was refused one may ask for another release.
    pub(super) fn again(&self, node: &str, now: Instant) -> Option<Instant> {
        let admitted = self.nodes.get(node)?.values();
        admitted.filter(|since| is_new(**since, now)).min().map(|since| *since + HOUR)
    }
}

fn is_new(since: Instant, now: Instant) -> bool {
    now.duration_since(since) < HOUR
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn asking(releases: &[&str]) -> BTreeMap<String, KernelsOfNode> {
        let releases = releases.iter().map(ToString::to_string).collect();
        [("a".to_owned(), KernelsOfNode { arch: "amd64".to_owned(), releases })].into()
    }

    /// Requests of one node: minutes since the one before, release, and the result.
    #[rstest]
    #[case::an_upgrade(&[(0, "1", true), (0, "2", true), (30, "2", true), (0, "3", true)])]
    #[case::too_many(&[
        (0, "1", true), (1, "2", true), (1, "3", true), (1, "4", true), (1, "5", false),
    ])]
    #[case::after_an_hour(&[
        (0, "1", true), (0, "2", true), (0, "3", true), (0, "4", true), (59, "5", false), (1, "5", true),
    ])]
    #[case::back_and_forth(&[
        (0, "1", true), (1, "2", true), (1, "1", true), (1, "2", true), (1, "3", true), (1, "4", true), (1, "1", true),
    ])]
    fn a_node_has_so_many_new_releases_in_an_hour(#[case] requests: &[(u64, &str, bool)]) {
        let (mut budget, mut now) = (Budget::default(), Instant::now());
        for (minutes, release, expected) in requests {
            now += Duration::from_secs(60 * minutes);
            budget.forget(&asking(&[*release]), now);
            assert_eq!(budget.admits("a", release, now), *expected, "{release}");
        }
        assert!(budget.admits("b", "5", now), "another node has its own");
    }

    #[test]
    fn what_is_asked_for_stays_admitted_and_the_rest_is_forgotten() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        for release in ["1", "2", "3", "4"] {
            assert!(budget.admits("a", release, now));
        }
        assert_eq!(budget.again("a", now), Some(now + HOUR));
        assert_eq!(budget.again("b", now), None);
        let later = now + HOUR;
        budget.forget(&asking(&["1"]), later);
        assert_eq!(budget.nodes["a"].len(), 1);
        assert!(budget.admits("a", "1", later) && budget.admits("a", "5", later));
        budget.forget(&BTreeMap::new(), later + HOUR);
        assert!(budget.nodes.is_empty(), "of a node that is gone");
    }
}
