//! Budgets and pauses of repairs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::journal::{EntryState, JournalEntry};
use crate::steps::{LoadModule, Step};
use longshore_core::finding::Code;

/// First wait after a check that found a fault.
pub(super) const FIRST: Duration = Duration::from_secs(1);
/// Longest time between two checks while there is a fault.
const LONGEST: Duration = Duration::from_secs(60);
/// Number of repairs that may be made in succession.
const REPAIRS: u32 = 8;
/// Time after which one more repair may be made.
const REFILL: Duration = Duration::from_secs(600);
/// Pause before a module is loaded again that another program unloaded.
const UNLOADED: Duration = Duration::from_secs(60);

/// Budgets of repairs. A program that rewrites longshore's spec again and again uses up that of the
/// spec alone, and one that can never be written delays no other.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    pub(super) needed: Budget,
    /// By the finding of the failed step.
    optional: BTreeMap<Code, Budget>,
    /// True if no module was missing at an earlier look, whoever loaded them.
    was_loaded: bool,
    /// First time that a module was found unloaded by another program.
    unloaded: Option<Instant>,
}

impl Repairs {
    pub(super) fn heard(&mut self, now: Instant) {
        self.needed.heard(now);
        self.optional.values_mut().for_each(|budget| budget.heard(now));
    }

    /// Returns the budget of the optional steps with this finding.
    pub(super) fn optional(&mut self, code: Code) -> &mut Budget {
        self.optional.entry(code).or_default()
    }

    /// Takes a look at the modules: none is missing, or one together with that which it is loaded after.
    pub(super) fn saw(&mut self, none_missing: bool, both_gone: bool) {
        if none_missing || both_gone {
            (self.was_loaded, self.unloaded) = (none_missing, None);
        }
    }

    /// Leaves out the modules that another program unloaded a short time ago: it may be about to
    /// unload the modules below, which they would hold.
    pub(super) fn leave_unloaded(
        &mut self,
        mut steps: Vec<Step>,
        entries: &[JournalEntry],
        now: Instant,
    ) -> Vec<Step> {
        let was_loaded = self.was_loaded;
        let was_there = |step: &Step| {
            let is_ours = |e: &JournalEntry| e.state == EntryState::Done && e.step.is_same(step);
            LoadModule::from_step(step).is_some() && (was_loaded || entries.iter().any(is_ours))
        };
        if !steps.iter().any(was_there) {
            self.unloaded = None;
            return steps;
        }
        let since = *self.unloaded.get_or_insert(now);
        if now < since + UNLOADED {
            steps.retain(|step| !was_there(step));
        }
        steps
    }
}

/// Budget of repairs: the agent does not fight another program for ever, and the record does not
/// grow without bound.
#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    since: Instant,
    /// Time of the last failed repair, and the wait after it until the next may be tried.
    failed: Option<(Instant, Duration)>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: REPAIRS, since: Instant::now(), failed: None }
    }
}

impl Budget {
    /// True if a repair may be made now; counts it.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.failed.is_some_and(|(at, wait)| now < at + wait) {
            return false;
        }
        while self.left < REPAIRS && now.duration_since(self.since) >= REFILL {
            self.left += 1;
            self.since += REFILL;
        }
        if self.left == REPAIRS {
            self.since = now;
        }
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        true
    }

    /// Records a repair's result. A failed one is not counted: waits keep those apart.
    pub(super) fn ended(&mut self, well: bool, now: Instant) {
        let wait = self.failed.map_or(FIRST, |(_, last)| longer(last));
        self.failed = (!well).then_some((now, wait));
        self.left = (self.left + u32::from(!well)).min(REPAIRS);
    }

    /// Handles an event: the failed repair may have become possible. Events right after a failure
    /// are those of the failed repair itself, which mounted and unmounted.
    fn heard(&mut self, now: Instant) {
        if let Some((at, wait)) = &mut self.failed
            && now >= *at + *wait / 2
        {
            *wait = FIRST;
        }
    }
}

/// Returns the wait that follows one of this length.
pub(super) fn longer(wait: Duration) -> Duration {
    (wait * 2).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::steps::{ModuleOrigin, NotLoaded};

    #[test]
    fn repairs_are_bounded_and_come_back_with_time() {
        let (mut repairs, start) = (Budget::default(), Instant::now());
        let made = (0..100).filter(|_| repairs.take(start)).count();
        assert_eq!(made, REPAIRS as usize);
        assert!(!repairs.take(start + REFILL / 2));
        assert!(repairs.take(start + REFILL));
        assert!(!repairs.take(start + REFILL));
        let later = start + REFILL * 100;
        assert_eq!((0..100).filter(|_| repairs.take(later)).count(), REPAIRS as usize);
    }

    #[test]
    fn after_one_that_failed_the_next_waits_longer_each_time() {
        let (mut repairs, start) = (Budget::default(), Instant::now());
        let mut now = start;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            assert!(repairs.take(now));
            repairs.ended(false, now);
            now += Duration::from_secs(wait);
            assert!(!repairs.take(now - Duration::from_millis(1)));
        }
        repairs.ended(false, now);
        repairs.heard(now + Duration::from_secs(1));
        assert!(!repairs.take(now + LONGEST / 2), "its own events do not shorten the wait");
        repairs.heard(now + LONGEST / 2);
        assert!(repairs.take(now + LONGEST / 2), "after an event it is not waited for long");
        repairs.ended(true, now);
        assert!(repairs.take(now));
    }

    #[test]
    fn each_finding_has_a_budget_and_a_pause_of_its_own() {
        let (mut repairs, now) = (Repairs::default(), Instant::now());
        assert!(repairs.optional(Code::OperatorFileUnwritten).take(now));
        repairs.optional(Code::OperatorFileUnwritten).ended(false, now);
        assert!(!repairs.optional(Code::OperatorFileUnwritten).take(now));
        assert!(repairs.optional(Code::CdiUnpublished).take(now));
    }

    #[test]
    fn a_module_that_another_program_unloaded_is_left_for_a_minute() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let module = LoadModule {
            name: "nvidia_peermem".to_owned(),
            origin: ModuleOrigin::Driver { sha256: "0".repeat(64) },
            parameters: String::new(),
            version: None,
            srcversion: None,
        };
        let mut journal = Journal::in_memory();
        let seq = journal.intend(module.clone().observed(NotLoaded {})).unwrap();
        journal.record_done(seq, Some(1));
        let entries: Vec<JournalEntry> = journal.live().cloned().collect();
        let step = Step::LoadModule(module);
        let left = |repairs: &mut Repairs, entries: &[JournalEntry], now| {
            repairs.leave_unloaded(vec![step.clone()], entries, now).len()
        };
        let mut check = |entries: &[JournalEntry], now, wanted| {
            assert_eq!(left(&mut repairs, entries, now), wanted);
        };
        check(&entries, start, 0);
        check(&entries, start + UNLOADED / 2, 0);
        check(&entries, start + UNLOADED, 1);
        check(&[], start, 1);
        check(&entries, start + UNLOADED, 0);
        // One that another program loaded, which has no entry.
        let mut repairs = Repairs::default();
        assert_eq!(left(&mut repairs, &[], start), 1, "it was never there");
        repairs.saw(true, false);
        assert_eq!(left(&mut repairs, &[], start), 0);
        assert_eq!(left(&mut repairs, &[], start + UNLOADED), 1);
        repairs.saw(true, false);
        assert_eq!(left(&mut repairs, &[], start), 0);
        repairs.saw(false, true);
        assert_eq!(left(&mut repairs, &[], start), 1, "the network driver was unloaded since");
    }
}
