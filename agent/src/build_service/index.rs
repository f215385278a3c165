//! Index of the registry's sets, which a builder with a key keeps current: written after each push, and anew before
//! half of its time is over.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::supplier::{ForRegistry, NotMade};
use longshore_modules::registry::set_index::IndexSummary;

/// The index that the registry has, as this builder wrote it.
#[derive(Debug)]
pub(super) struct Index {
    /// Time for which an index counts.
    lasts: Duration,
    /// Sets that it refuses by their digests.
    denied: BTreeSet<String>,
    /// Sets that it lists; None before the first one was written.
    sets: Option<BTreeSet<String>>,
    /// Time at which the registry is searched for signed sets again, and the next index written.
    renewed_by: Instant,
    /// True if a set came since the last one was written.
    is_stale: bool,
}

impl Index {
    /// Begins without knowledge of the registry: the first index is due at once.
    pub(super) fn new(lasts: Duration, denied: BTreeSet<String>) -> Self {
        Self { lasts, denied, sets: None, renewed_by: Instant::now(), is_stale: false }
    }

    /// Notes a set that the registry has.
    pub(super) fn add(&mut self, digest: String) {
        if let Some(sets) = &mut self.sets
            && !self.denied.contains(&digest)
        {
            self.is_stale |= sets.insert(digest);
        }
    }

    /// True if an index is to be written now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_stale || self.renewed_by <= now
    }

    /// Returns the time at which one is due without a further set.
    pub(super) fn due(&self) -> Instant {
        self.renewed_by
    }

    /// Writes the index where it is due, and returns it then. It lists the sets that the builder's key signed, without
    /// those that are denied.
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
        let sets = match self.sets.take_if(|_| !is_renewed) {
            Some(sets) => sets,
            None => registry.signed_sets().await?.difference(&self.denied).cloned().collect(),
        };
        let written = registry.write_index(sets.clone(), self.lasts).await;
        self.sets = Some(sets);
        self.is_stale = true;
        let written = written?;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_due_at_first_after_a_set_that_is_new_and_after_half_of_its_time() {
        let day = Duration::from_secs(86_400);
        let mut index = Index::new(day, ["denied".to_owned()].into());
        assert!(index.is_due(Instant::now()));
        // As after a write.
        (index.sets, index.renewed_by) = (Some(["a".to_owned()].into()), Instant::now() + day / 2);
        for (digest, is_due) in [("a", false), ("denied", false), ("b", true)] {
            index.add(digest.to_owned());
            assert_eq!(index.is_due(Instant::now()), is_due, "{digest}");
        }
        index.is_stale = false;
        assert!(!index.is_due(Instant::now()) && index.is_due(Instant::now() + day / 2));
        assert_eq!(index.due(), Instant::now() + day / 2);
    }
}
