//! Counting of fetched bytes and cache hits by way of the displayed progress.

use std::time::Duration;

use super::Telemetry;
use longshore_core::progress::{Progress, Reused, Task, Unit};

/// Progress that counts its bytes as fetched ones.
pub struct Counted {
    shown: Box<dyn Progress>,
    telemetry: Telemetry,
}

impl Counted {
    /// Wraps `shown`, and counts its progress.
    pub fn new(shown: Box<dyn Progress>, telemetry: Telemetry) -> Self {
        Self { shown, telemetry }
    }
}

impl Progress for Counted {
    fn begin(&self, what: &str, total: Option<u64>, unit: Unit) -> Box<dyn Task> {
        let task = self.shown.begin(what, total, unit);
        match unit {
            Unit::Bytes => Box::new(CountedTask { task, telemetry: self.telemetry.clone() }),
            Unit::Items => task,
        }
    }

    fn reused(&self, what: Reused, hits: u64, misses: u64) {
        self.telemetry.reused(what, hits, misses);
        self.shown.reused(what, hits, misses);
    }

    fn compiled(&self, took: Duration) {
        self.telemetry.compiled(took);
        self.shown.compiled(took);
    }
}

struct CountedTask {
    task: Box<dyn Task>,
    telemetry: Telemetry,
}

impl Task for CountedTask {
    fn advance(&self, by: u64) {
        self.telemetry.fetched(by);
        self.task.advance(by);
    }

    fn total(&self, total: u64) {
        self.task.total(total);
    }

    fn note(&self, text: &str) {
        self.task.note(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::progress::Silent;

    #[test]
    fn bytes_and_what_was_available_are_counted_and_items_are_not() {
        let telemetry = Telemetry::default();
        let counted = Counted::new(Box::new(Silent), telemetry.clone());
        counted.begin("fetching", None, Unit::Bytes).advance(7);
        counted.begin("fetching more", None, Unit::Bytes).advance(5);
        counted.begin("compiling", None, Unit::Items).advance(100);
        counted.reused(Reused::Conftest, 3, 1);
        counted.reused(Reused::Conftest, 2, 0);
        counted.compiled(Duration::from_millis(1500));
        let live = telemetry.live();
        assert_eq!(live.fetched_bytes, 12);
        assert_eq!(live.last_compile_seconds, Some(1.5));
        assert_eq!(
            (live.cache_hits[&Reused::Conftest], live.cache_misses[&Reused::Conftest]),
            (5, 1)
        );
    }
}
