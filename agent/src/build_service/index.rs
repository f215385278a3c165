//! Index of the registry's sets, which a builder with a key keeps current: written after each push, and anew before
//! half of its time is over.
//!
//! A signature does not make a set current: whoever may write to the registry can put an old signed one back under its tag.
//! So the list grows by what this builder pushed and by what another index by its key lists, and not by what is found; only
//! the first list of a repository without one is that of the signed sets there.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::supplier::{ForRegistry, NotMade};
use longshore_modules::registry::set_index::IndexSummary;
use longshore_modules::signature::set_index::{LowestVersions, SetIndex};

/// Number of digests that a message names.
const NAMED: usize = 3;
/// Number of sets that are remembered as named in a warning.
const MOST_DOUBTED: usize = 1000;

/// The index that counts: the one that this builder wrote last, or that another writer has put there since.
#[derive(Debug)]
struct Known {
    version: u64,
    sets: BTreeSet<String>,
}

/// The index of the registry, as this builder keeps it.
#[derive(Debug)]
pub(super) struct Index {
    /// Time for which an index counts.
    lasts: Duration,
    /// Sets that it refuses by their digests.
    denied: BTreeSet<String>,
    /// None before the first one was read or written.
    known: Option<Known>,
    /// Sets that this builder pushed.
    pushed: BTreeSet<String>,
    /// Sets that a warning has named.
    doubted: BTreeSet<String>,
    /// Time at which the registry is searched for signed sets again, and the next index written.
    renewed_by: Instant,
    /// True if a set came since the last one was written.
    is_stale: bool,
}

impl Index {
    /// Begins without knowledge of the registry: the first index is due at once.
    pub(super) fn new(lasts: Duration, denied: BTreeSet<String>) -> Self {
        let (pushed, doubted) = (BTreeSet::new(), BTreeSet::new());
        let renewed_by = Instant::now();
        Self { lasts, denied, known: None, pushed, doubted, renewed_by, is_stale: false }
    }

    /// Notes a set that this builder pushed.
    pub(super) fn add(&mut self, digest: String) {
        self.pushed.insert(digest);
        self.is_stale |= self.lacks_pushed();
    }

    /// True if an index is to be written now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_stale || self.renewed_by <= now
    }

    /// Returns the time at which one is due without a further set.
    pub(super) fn due(&self) -> Instant {
        self.renewed_by
    }

    /// True if a signed set that the registry has is one of the list; the registry's present index is asked where it is
    /// not. Before any list is known, each one is.
    ///
    /// # Errors
    /// The registry's failure.
    pub(super) async fn has(
        &mut self,
        digest: &str,
        registry: &ForRegistry<'_>,
    ) -> Result<bool, NotMade> {
        if !self.knows(digest) {
            self.take_over(registry.index().await?, Timestamp::now());
        }
        Ok(self.knows(digest))
    }

    /// True if a set that is not of the list is to be named in a warning: the first time.
    pub(super) fn doubts(&mut self, digest: &str) -> bool {
        if self.doubted.len() >= MOST_DOUBTED {
            self.doubted.clear();
        }
        self.doubted.insert(digest.to_owned())
    }

    /// Writes the index where it is due, and returns it then. It lists what this builder pushed, and what the last index by
    /// its key lists, without the sets that are denied or, at each renewal, that the registry does not have any more.
    ///
    /// # Errors
    /// The registry's failure; then it stays due.
    pub(super) async fn write(
        &mut self,
        registry: &ForRegistry<'_>,
    ) -> Result<Option<IndexSummary>, NotMade> {
        let now = Instant::now();
        if !self.is_due(now) {
            return Ok(None);
        }
        let is_renewed = self.renewed_by <= now;
        self.take_over(registry.index().await?, Timestamp::now());
        if is_renewed {
            let found = registry.signed_sets().await?;
            let others = self.compare(&found);
            if !others.is_empty() {
                let first = others.iter().take(NAMED).cloned().collect::<Vec<_>>().join(" ");
                tracing::warn!(
                    "{} signed sets of the registry are not listed, as neither this builder pushed them nor an index by \
                     its key lists them: {first} ...; list those that are current (`longshore index`), and remove the \
                     others",
                    others.len()
                );
            }
        }
        let sets = self.listed();
        let written = registry.write_index(sets.clone(), self.lasts).await?;
        self.known = Some(Known { version: written.version, sets });
        self.is_stale = false;
        if is_renewed {
            self.renewed_by = now + self.lasts / 2;
        }
        tracing::info!(
            "the index {} lists {} sets, and expires at {:.0}",
            written.version,
            written.sets,
            written.expires
        );
        Ok(Some(written))
    }

    /// Takes over the index by the builder's key that the registry has: another writer may have listed sets. One that is
    /// older than the known one, or of the future, is left: it was put back, or counts for no node.
    fn take_over(&mut self, there: Option<SetIndex>, now: Timestamp) {
        let Some(there) = there else { return };
        if let Some(known) = &self.known {
            let lowest = LowestVersions { seen: Some(known.version), ..LowestVersions::default() };
            if let Err(why) = there.check_version(now, lowest) {
                tracing::warn!(
                    "an index that is there is replaced, and its list not taken over: {why}"
                );
                self.is_stale = true;
                return;
            }
        }
        self.known = Some(Known { version: there.version, sets: there.sets });
        self.is_stale |= self.lacks_pushed();
    }

    /// Compares the list with the signed sets that the registry has: drops those that are gone, and returns the others that
    /// are not of the list. The first list is what was found.
    fn compare(&mut self, found: &BTreeSet<String>) -> Vec<String> {
        match &mut self.known {
            Some(known) => known.sets.retain(|set| found.contains(set)),
            None => self.known = Some(Known { version: 0, sets: found.clone() }),
        }
        self.pushed.retain(|set| found.contains(set));
        found.iter().filter(|set| !self.knows(set)).cloned().collect()
    }

    /// True if a set is of the list, or none is known. One that is denied is no concern of the list's.
    fn knows(&self, digest: &str) -> bool {
        let Some(known) = &self.known else { return true };
        [&known.sets, &self.pushed, &self.denied].iter().any(|sets| sets.contains(digest))
    }

    /// Returns the sets that the next index lists.
    fn listed(&self) -> BTreeSet<String> {
        let known = self.known.iter().flat_map(|known| &known.sets);
        let all = known.chain(&self.pushed);
        all.filter(|set| !self.denied.contains(*set)).cloned().collect()
    }

    /// True if the known index does not list all that this builder pushed.
    fn lacks_pushed(&self) -> bool {
        let is_listed = |set: &String| {
            let known = self.known.as_ref();
            self.denied.contains(set) || known.is_some_and(|known| known.sets.contains(set))
        };
        !self.pushed.iter().all(is_listed)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    /// Time of the tests, in seconds since 1970.
    const NOW: u64 = 1_795_183_200;
    const VERSION: u64 = NOW - 1000;

    fn sets(names: &str) -> BTreeSet<String> {
        names.split_whitespace().map(str::to_owned).collect()
    }

    fn time(seconds: u64) -> Timestamp {
        Timestamp::from_second(seconds.try_into().expect("a number")).expect("a time")
    }

    fn there(version: u64, names: &str) -> SetIndex {
        let (issued, expires) = (time(version), time(NOW + 86_400));
        SetIndex { version, issued, expires, sets: sets(names) }
    }

    /// An index that was written as this list.
    fn written(names: &str, pushed: &str) -> Index {
        let known = Some(Known { version: VERSION, sets: sets(names) });
        let renewed_by = Instant::now() + DAY / 2;
        let pushed = sets(pushed);
        Index { known, pushed, renewed_by, ..Index::new(DAY, sets("denied")) }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_due_at_first_after_a_set_that_is_new_and_after_half_of_its_time() {
        assert!(Index::new(DAY, BTreeSet::new()).is_due(Instant::now()));
        let mut index = written("a", "");
        for (digest, is_due) in [("a", false), ("denied", false), ("b", true)] {
            index.add(digest.to_owned());
            assert_eq!(index.is_due(Instant::now()), is_due, "{digest}");
        }
        index.is_stale = false;
        assert!(!index.is_due(Instant::now()) && index.is_due(Instant::now() + DAY / 2));
        assert_eq!(index.due(), Instant::now() + DAY / 2);
    }

    /// Sets of the index before, those pushed, the registry's index, and what is listed then, by a write that is due or not.
    #[rstest]
    #[case::own("a", "a", Some(there(VERSION, "a")), "a", false)]
    #[case::another_wrote("a", "a", Some(there(VERSION + 1, "a b")), "a b", false)]
    #[case::in_the_same_second("a", "a", Some(there(VERSION, "a b")), "a b", false)]
    #[case::another_did_not_see_a_push("a", "a", Some(there(VERSION + 1, "b")), "a b", true)]
    #[case::another_took_one_back("a b", "a", Some(there(VERSION + 1, "a")), "a", false)]
    #[case::another_lists_a_denied_one("a", "", Some(there(VERSION + 1, "a denied")), "a", false)]
    #[case::put_back("a", "", Some(there(VERSION - 1, "old")), "a", true)]
    #[case::of_the_future("a", "", Some(there(NOW + 3600, "old")), "a", true)]
    #[case::removed("a", "b", None, "a b", false)]
    fn what_another_writer_listed_is_taken_over_and_an_older_index_is_not(
        #[case] before: &str,
        #[case] pushed: &str,
        #[case] found: Option<SetIndex>,
        #[case] listed: &str,
        #[case] is_due: bool,
    ) {
        let mut index = written(before, pushed);
        index.take_over(found, time(NOW));
        assert_eq!(index.listed(), sets(listed));
        assert_eq!(index.is_due(Instant::now()), is_due);
    }

    /// The list before, or None for a repository without one; the sets pushed and found; the list then, and the others.
    #[rstest]
    #[case::first(None, "", "a b denied", "a b", "")]
    #[case::as_before(Some("a b"), "", "a b", "a b", "")]
    #[case::replayed(Some("b"), "", "a b", "b", "a")]
    #[case::pushed(Some("a"), "b", "a b", "a b", "")]
    #[case::cleaned_up(Some("a b"), "c", "a", "a", "")]
    #[case::replaced(Some("a"), "b", "b", "b", "")]
    #[case::emptied(Some("a"), "b", "", "", "")]
    #[case::of_an_empty_list(Some(""), "", "a denied", "", "a")]
    fn the_first_search_makes_the_list_and_a_later_one_adds_nothing(
        #[case] before: Option<&str>,
        #[case] pushed: &str,
        #[case] found: &str,
        #[case] listed: &str,
        #[case] others: &str,
    ) {
        let mut index = match before {
            Some(before) => written(before, pushed),
            None => Index::new(DAY, sets("denied")),
        };
        let named = index.compare(&sets(found));
        assert_eq!((index.listed(), BTreeSet::from_iter(named)), (sets(listed), sets(others)));
    }

    #[rstest]
    #[case::listed("a", true)]
    #[case::pushed("b", true)]
    #[case::denied("denied", true)]
    #[case::another("old", false)]
    fn a_signed_set_counts_as_there_by_the_list_alone(#[case] digest: &str, #[case] counts: bool) {
        assert_eq!(written("a", "b").knows(digest), counts);
        assert!(Index::new(DAY, BTreeSet::new()).knows(digest), "no list is known");
    }

    #[test]
    fn a_set_is_named_once() {
        let mut index = written("a", "");
        assert!(index.doubts("old") && !index.doubts("old") && index.doubts("older"));
        for number in 0..5000 {
            index.doubts(&number.to_string());
        }
        assert!(index.doubted.len() <= MOST_DOUBTED);
    }
}
