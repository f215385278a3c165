//! Sets that are to be in the registry, and when each is looked after next. A set that cannot be made holds up no other
//! one: it is tried again after a pause that grows.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_modules::registry::call::is_of_content;
use tokio::time::Instant;

use crate::telemetry::BuilderSets;

/// Time after which a set that was in the registry is looked for again: a registry's cleanup may have removed it, and
/// an archive may have a newer driver.
const RECHECK: Duration = Duration::from_secs(15 * 60);
/// Pauses after a failure: the first, and the longest.
const SOURCES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5 * 60));
const BUILDS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(60 * 60));
/// Number of sets that are remembered though nothing asks for them any more: nodes come and go.
const MOST_REMEMBERED: usize = 4096;

/// A set: one driver, in one flavour, for one kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Work {
    /// Version or branch; None for the newest.
    pub(super) driver: Option<String>,
    /// Flavour.
    pub(super) flavour: Flavour,
    /// `uname -r`.
    pub(super) kernel: String,
}

/// Kind of a failure: the same one is reported once.
type Reported = (ExitCode, Option<String>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    New,
    Served,
    /// The driver does not have this flavour, and nothing named it.
    Needless,
    Failed {
        tries: u32,
        reported: Reported,
    },
}

#[derive(Debug, Clone)]
struct State {
    standing: Standing,
    due: Instant,
    /// Number of times that the registry failed for it since it was last looked after.
    postponed: u32,
}

/// The sets in order, and their states.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Sets that are asked for, in the order in which new ones are made.
    order: Vec<Work>,
    states: BTreeMap<Work, State>,
    /// True if the set that was looked after last was a new one.
    was_new: bool,
}

impl Queue {
    /// Follows what is asked for now. New sets are due at `now`. States of what was asked for before are kept, so that a
    /// failed build is not new when a node comes back.
    pub(super) fn follow(&mut self, order: Vec<Work>, now: Instant) {
        for work in &order {
            let new = State { standing: Standing::New, due: now, postponed: 0 };
            self.states.entry(work.clone()).or_insert(new);
        }
        if self.states.len() > MOST_REMEMBERED {
            self.states.retain(|work, _| order.contains(work));
        }
        self.order = order;
    }

    /// Returns the set to look after now. One that was never tried and one that is tried or looked for again alternate, so
    /// that demand without end starves neither; of each the one that is due the longest is first, then the order asked
    /// for. Those that the registry failed for are behind the others.
    pub(super) fn next(&self, now: Instant) -> Option<&Work> {
        let rank = |work: &&Work| {
            let state = self.states.get(*work)?;
            let is_new = state.standing == Standing::New;
            (state.due <= now).then_some((state.postponed, is_new == self.was_new, state.due))
        };
        let due = self.order.iter().filter_map(|work| Some((rank(&work)?, work)));
        // The first of equal ones.
        due.min_by_key(|(rank, _)| *rank).map(|(_, work)| work)
    }

    /// Notes that the registry failed for a set: the others are tried before it.
    pub(super) fn postpone(&mut self, work: &Work) {
        if let Some(state) = self.states.get_mut(work) {
            state.postponed = state.postponed.saturating_add(1);
        }
    }

    /// Returns the time at which the next set is due; None where nothing is asked for.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.order.iter().filter_map(|work| self.states.get(work)).map(|state| state.due).min()
    }

    /// Notes that the registry has the set.
    pub(super) fn served(&mut self, work: &Work, now: Instant) {
        self.set(work, Standing::Served, now + RECHECK);
    }

    /// Notes that the driver does not have the flavour, which nothing named.
    pub(super) fn needless(&mut self, work: &Work, now: Instant) {
        self.set(work, Standing::Needless, now + RECHECK);
    }

    /// Notes a failure; returns false where the same was noted before.
    pub(super) fn failed(&mut self, work: &Work, failure: &Failure, now: Instant) -> bool {
        let class = failure.compile_class().map(|class| class.class.clone());
        let reported = (failure.code(), class);
        let (tries, is_new) = match self.states.get(work).map(|state| &state.standing) {
            Some(Standing::Failed { tries, reported: before }) => (tries + 1, *before != reported),
            _ => (1, true),
        };
        let pause = spread(pause(failure, tries));
        self.set(work, Standing::Failed { tries, reported }, now + pause);
        is_new
    }

    fn set(&mut self, work: &Work, standing: Standing, due: Instant) {
        let state = State { standing, due, postponed: 0 };
        let before = self.states.insert(work.clone(), state);
        self.was_new = before.is_none_or(|before| before.standing == Standing::New);
    }

    /// Returns the numbers of sets that are asked for, by state.
    pub(super) fn count(&self) -> BuilderSets {
        let mut sets = BuilderSets::default();
        for work in &self.order {
            match self.states.get(work).map(|state| &state.standing) {
                Some(Standing::Served) => sets.served += 1,
                Some(Standing::Failed { .. }) => sets.failing += 1,
                Some(Standing::Needless) => {}
                Some(Standing::New) | None => sets.waiting += 1,
            }
        }
        sets
    }
}

/// Returns the pause after so many failures in a row: twice as long each time. An archive that does not answer is asked
/// again soon; a compile is not repeated before its inputs or its host may be others, nor a push that was refused for good.
fn pause(failure: &Failure, tries: u32) -> Duration {
    let (first, longest) = match failure.kind() {
        FailureKind::Download if !is_of_content(failure) => SOURCES,
        _ => BUILDS,
    };
    first.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(longest)
}

/// Returns three quarters of a pause to all of it, so that failures of one moment are not tried again at one moment.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::CompileClass;
    use longshore_modules::registry::call::ContentRefused;
    use rstest::rstest;

    fn work(kernel: &str) -> Work {
        Work { driver: Some("535".to_owned()), flavour: Flavour::Open, kernel: kernel.to_owned() }
    }

    fn failure(kind: FailureKind) -> Failure {
        Failure::new(kind, "of a test")
    }

    fn queue(kernels: &[&str], now: Instant) -> Queue {
        let mut queue = Queue::default();
        queue.follow(kernels.iter().map(|kernel| work(kernel)).collect(), now);
        queue
    }

    #[test]
    fn a_failing_set_holds_up_no_other() {
        let now = Instant::now();
        let mut queue = queue(&["a", "b"], now);
        assert_eq!(queue.next(now), Some(&work("a")));
        assert!(queue.failed(&work("a"), &failure(FailureKind::Compile), now));
        assert_eq!(queue.next(now), Some(&work("b")));
        queue.served(&work("b"), now);
        assert_eq!(queue.next(now), None);
        let later = now + BUILDS.1;
        queue.follow(["a", "b", "c"].map(work).to_vec(), later);
        assert_eq!(queue.next(later), Some(&work("a")), "b is due, too, and not for as long");
        queue.failed(&work("a"), &failure(FailureKind::Compile), later);
        assert_eq!(queue.next(later), Some(&work("c")));
        let sets = queue.count();
        assert_eq!((sets.served, sets.failing, sets.waiting), (1, 1, 1));
    }

    /// New demand at each try, whose names sort first, beside a set that failed and a new one that sorts last.
    #[test]
    fn new_sets_and_those_that_are_due_again_alternate_and_the_longest_due_is_first() {
        let mut now = Instant::now();
        let mut queue = queue(&["failed", "z-new"], now);
        queue.failed(&work("failed"), &failure(FailureKind::Compile), now);
        now += BUILDS.1;
        let mut tried = Vec::new();
        for number in 0..4 {
            let fresh = format!("a-{number}");
            queue.follow(["a-0", "a-1", "a-2", "failed", "z-new", &fresh].map(work).to_vec(), now);
            let next = queue.next(now).expect("a set").clone();
            tried.push(next.kernel.clone());
            match next.kernel.as_str() {
                "failed" => {
                    queue.failed(&next, &failure(FailureKind::Compile), now);
                }
                _ => queue.served(&next, now),
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(tried, ["failed", "z-new", "a-0", "a-1"]);
        now += RECHECK;
        assert_eq!(queue.next(now), Some(&work("failed")), "those that are there are due, too");
        queue.failed(&work("failed"), &failure(FailureKind::Compile), now);
        assert_eq!(queue.next(now), Some(&work("a-2")));
        queue.served(&work("a-2"), now);
        assert_eq!(queue.next(now), Some(&work("z-new")), "it is looked for again");
    }

    #[test]
    fn a_set_that_the_registry_failed_for_is_behind_the_others_until_it_is_looked_after() {
        let now = Instant::now();
        let mut queue = queue(&["a", "b"], now);
        queue.postpone(&work("a"));
        assert_eq!(queue.next(now), Some(&work("b")));
        queue.postpone(&work("b"));
        queue.postpone(&work("b"));
        assert_eq!(queue.next(now), Some(&work("a")));
        queue.served(&work("a"), now);
        assert_eq!(queue.next(now), Some(&work("b")));
    }

    #[test]
    fn the_same_failure_is_reported_once_and_another_one_again() {
        let now = Instant::now();
        let mut queue = queue(&["a"], now);
        let class = |class: &str| CompileClass { class: class.into(), name: None, of_inputs: true };
        let compile = failure(FailureKind::Compile).with_compile_class(class("interface-gone"));
        let other = failure(FailureKind::Compile).with_compile_class(class("memory"));
        assert!(queue.failed(&work("a"), &failure(FailureKind::Toolchain), now));
        assert!(!queue.failed(&work("a"), &failure(FailureKind::Toolchain), now));
        assert!(queue.failed(&work("a"), &compile, now));
        assert!(!queue.failed(&work("a"), &compile, now));
        assert!(queue.failed(&work("a"), &other, now));
        queue.served(&work("a"), now);
        assert!(queue.failed(&work("a"), &other, now), "it was in the registry meanwhile");
    }

    #[rstest]
    #[case::away(FailureKind::Download, 1, 10)]
    #[case::still_away(FailureKind::Download, 3, 40)]
    #[case::long_away(FailureKind::Download, 90, 300)]
    #[case::does_not_compile(FailureKind::Compile, 1, 60)]
    #[case::still_not(FailureKind::Compile, 4, 480)]
    #[case::never(FailureKind::Compile, u32::MAX, 3600)]
    #[case::no_headers(FailureKind::Toolchain, 2, 120)]
    fn pauses_grow_to_a_bound(#[case] kind: FailureKind, #[case] tries: u32, #[case] seconds: u64) {
        let whole = pause(&failure(kind), tries);
        assert_eq!(whole, Duration::from_secs(seconds));
        for _ in 0..50 {
            let spread = spread(whole);
            assert!(spread >= whole.mul_f64(0.75) && spread <= whole, "{spread:?}");
        }
    }

    #[test]
    fn a_push_that_was_refused_for_good_is_tried_again_as_a_compile_is() {
        let refused = failure(FailureKind::Download).with_source(ContentRefused);
        assert_eq!(pause(&refused, 1), BUILDS.0);
        assert_eq!(pause(&refused, u32::MAX), BUILDS.1);
    }

    #[test]
    fn a_failure_is_not_forgotten_when_its_node_is_gone_for_a_while() {
        let now = Instant::now();
        let mut queue = queue(&["a"], now);
        queue.failed(&work("a"), &failure(FailureKind::Compile), now);
        queue.follow(Vec::new(), now);
        assert_eq!((queue.next(now), queue.next_due()), (None, None));
        queue.follow(vec![work("a")], now);
        assert_eq!(queue.next(now), None);
        assert!(!queue.failed(&work("a"), &failure(FailureKind::Compile), now));
        // States of other kernels do not pile up.
        let many = |from: usize| (from..from + 3000).map(|n| work(&n.to_string())).collect();
        queue.follow(many(0), now);
        queue.follow(many(3000), now);
        assert_eq!(queue.states.len(), 3000);
    }
}
