//! Decisions about the node's cordon, by the desired drain, the node, and earlier states.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::cordon::NodeCordon;
use crate::reconcile::Desired;

/// Pauses and limits of evictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictPace {
    /// Time limit of all evictions for one change, from the cordon on.
    pub deadline: Duration,
    /// First pause between two rounds of evictions; each further one is twice as long.
    pub first: Duration,
    /// Longest such pause.
    pub longest: Duration,
    /// Time after which a refused call is made again.
    pub refused: Duration,
}

impl Default for EvictPace {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(600),
            first: Duration::from_secs(2),
            longest: Duration::from_secs(30),
            refused: Duration::from_secs(300),
        }
    }
}

/// A change that waits for the driver's users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Identifies it.
    pub(crate) id: String,
    pub(crate) reason: String,
    /// Pod of the agent that makes it, `NAMESPACE/NAME`, which is never evicted.
    pub(crate) agent: String,
    /// Uids of the users' pods, as their cgroups have them.
    pub(crate) pods: BTreeSet<String>,
    /// Time limit of the evictions, from the cordon on.
    pub(crate) deadline: Duration,
}

/// Earlier states that a decision depends on: those of the present change.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Id, reason and time limit of the change.
    change: Option<(String, String, Duration)>,
    /// Longshore's cordon was seen on the node.
    cordoned: bool,
    /// It was this task that cordoned the node, or tried to.
    cordons: bool,
    /// End of the evictions.
    until: Option<Instant>,
    /// Another program uncordoned the node.
    overruled: bool,
}

/// End of a drain, before its change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    NoChange,
    Overruled,
    Expired,
}

/// Decision about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Cordon,
    Uncordon,
    Forget,
    /// Evict, until that time at most.
    Evict(Instant),
    Rest(Rest),
}

impl Past {
    /// Takes the change that a decision is for: what another change led to is void.
    pub(super) fn follow(&mut self, desired: &Desired<Change>) {
        let change = match desired {
            Desired::Wanted(change) => Some(change),
            Desired::Unknown | Desired::Nothing => None,
        };
        let id = |(id, ..): &(String, String, Duration)| id.clone();
        if self.change.as_ref().map(id) != change.map(|change| change.id.clone()) {
            let of = |change: &Change| (change.id.clone(), change.reason.clone(), change.deadline);
            *self = Self { change: change.map(of), ..Self::default() };
        }
    }

    /// Takes a look at the node: a cordon that is gone was undone by another program.
    fn sees(&mut self, node: &NodeCordon, now: Instant) {
        let is_own = node.is_unschedulable && node.has_record;
        let undone = !node.is_unschedulable && (node.has_record || self.cordoned);
        let waits = self.change.is_some();
        // After the time limit it is this task that undid it.
        self.overruled |= waits && undone && !self.is_expired(now);
        self.cordoned |= waits && is_own;
    }

    fn is_expired(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Begins the time limit with the node's cordon, whoever made it; one that an earlier controller made for the same
    /// change counts from its record, by the clock of this one.
    fn begins(&mut self, node: &NodeCordon, pace: &EvictPace, now: Instant, clock: Timestamp) {
        let Some((_, reason, deadline)) = self.change.as_ref().filter(|_| !self.overruled) else {
            return;
        };
        if !node.is_unschedulable || self.until.is_some() {
            return;
        }
        let spent = match self.cordons {
            true => Duration::ZERO,
            false => node.cordoned_for(reason, clock),
        };
        self.until = Some(now + pace.deadline.min(*deadline).saturating_sub(spent));
    }

    /// Decides about a node that was read, at this time of the monotonic and of the real clock.
    pub(super) fn decide(
        &mut self,
        node: &NodeCordon,
        pace: &EvictPace,
        now: Instant,
        clock: Timestamp,
    ) -> Action {
        self.sees(node, now);
        self.begins(node, pace, now, clock);
        let rest = match (&self.change, self.overruled, self.is_expired(now)) {
            (None, ..) => Some(Rest::NoChange),
            (_, true, _) => Some(Rest::Overruled),
            (_, _, true) => Some(Rest::Expired),
            _ => None,
        };
        match (rest, node.is_unschedulable, node.has_record) {
            (Some(_), true, true) => Action::Uncordon,
            (Some(_), false, true) => Action::Forget,
            (Some(rest), _, false) => Action::Rest(rest),
            (None, false, _) => {
                self.cordons = true;
                Action::Cordon
            }
            (None, true, _) => Action::Evict(self.until.unwrap_or(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PACE: EvictPace = EvictPace {
        deadline: Duration::from_secs(600),
        first: Duration::from_secs(2),
        longest: Duration::from_secs(30),
        refused: Duration::from_secs(300),
    };

    const FREE: (bool, bool) = (false, false);
    const OWN: (bool, bool) = (true, true);
    const FOREIGN: (bool, bool) = (true, false);
    const UNDONE: (bool, bool) = (false, true);

    fn clock() -> Timestamp {
        "2026-11-23T03:10:00Z".parse().unwrap()
    }

    fn change(reason: &str) -> Desired<Change> {
        Desired::Wanted(Change {
            id: reason.to_owned(),
            reason: reason.to_owned(),
            agent: "gpu/driver".to_owned(),
            pods: BTreeSet::new(),
            deadline: PACE.deadline,
        })
    }

    fn name(action: Action) -> &'static str {
        match action {
            Action::Cordon => "cordon",
            Action::Uncordon => "uncordon",
            Action::Forget => "forget",
            Action::Evict(_) => "evict",
            Action::Rest(Rest::NoChange) => "no change",
            Action::Rest(Rest::Overruled) => "overruled",
            Action::Rest(Rest::Expired) => "expired",
        }
    }

    /// Nodes in the order in which they are seen, and the decision about each.
    #[rstest]
    #[case::usual(&[(FREE, "cordon"), (OWN, "evict"), (OWN, "evict")])]
    #[case::cordoned_before(&[(FOREIGN, "evict"), (FOREIGN, "evict")])]
    #[case::cordoned_before_and_freed(&[(FOREIGN, "evict"), (FREE, "cordon"), (OWN, "evict")])]
    #[case::left_by_an_earlier_agent(&[(OWN, "evict")])]
    #[case::uncordoned_meanwhile(&[(OWN, "evict"), (UNDONE, "forget"), (FREE, "overruled"), (FREE, "overruled")])]
    #[case::uncordoned_before(&[(UNDONE, "forget"), (FREE, "overruled")])]
    #[case::uncordoned_with_the_record(&[(OWN, "evict"), (FREE, "overruled")])]
    #[case::cordoned_after_that(&[(OWN, "evict"), (FREE, "overruled"), (FOREIGN, "overruled")])]
    #[case::record_removed_alone(&[(OWN, "evict"), (FOREIGN, "evict")])]
    fn a_waiting_change(#[case] seen: &[((bool, bool), &str)]) {
        let (mut past, now) = (Past::default(), Instant::now());
        past.follow(&change("a"));
        for ((unschedulable, record), wanted) in seen {
            let node = NodeCordon::new(*unschedulable, *record);
            assert_eq!(name(past.decide(&node, &PACE, now, clock())), *wanted);
        }
    }

    #[rstest]
    #[case(OWN, "uncordon")]
    #[case(UNDONE, "forget")]
    #[case(FOREIGN, "no change")]
    #[case(FREE, "no change")]
    fn without_a_change_only_an_own_cordon_is_undone(
        #[case] (unschedulable, record): (bool, bool),
        #[case] wanted: &str,
    ) {
        let mut past = Past::default();
        past.follow(&Desired::Nothing);
        let node = NodeCordon::new(unschedulable, record);
        assert_eq!(name(past.decide(&node, &PACE, Instant::now(), clock())), wanted);
    }

    /// The limit holds for one change, and for it only once.
    #[test]
    fn after_the_limit_an_own_cordon_is_undone_until_another_change_waits() {
        let (mut past, begun) = (Past::default(), Instant::now());
        let mut decide =
            |desired: &Desired<Change>, (unschedulable, record): (bool, bool), after: u32| {
                past.follow(desired);
                let now = begun + PACE.deadline / 2 * after;
                name(past.decide(&NodeCordon::new(unschedulable, record), &PACE, now, clock()))
            };
        assert_eq!(decide(&change("a"), FREE, 0), "cordon");
        assert_eq!(decide(&change("a"), OWN, 2), "evict", "it begins with the cordon");
        assert_eq!(decide(&change("a"), OWN, 3), "evict");
        assert_eq!(decide(&change("a"), OWN, 4), "uncordon");
        assert_eq!(decide(&change("a"), FREE, 4), "expired");
        assert_eq!(decide(&change("a"), FOREIGN, 9), "expired");
        assert_eq!(decide(&change("b"), FREE, 9), "cordon");
        assert_eq!(decide(&Desired::Nothing, OWN, 9), "uncordon");
        assert_eq!(decide(&change("b"), FREE, 9), "cordon");
    }

    /// Time and reason of an earlier agent's cordon, and the seconds that are left of the limit of 600.
    #[rstest]
    #[case::just_now("2026-11-23T03:10:00Z", "a", 600)]
    #[case::before("2026-11-23T03:03:20Z", "a", 200)]
    #[case::at_the_limit("2026-11-23T03:00:00Z", "a", 0)]
    #[case::long_ago("1970-01-01T00:00:00Z", "a", 0)]
    #[case::in_the_future("2026-11-24T03:10:00Z", "a", 600)]
    #[case::of_another_zone("2026-11-23T05:03:20+02:00", "a", 200)]
    #[case::no_time("yesterday", "a", 600)]
    #[case::for_another_change("2026-11-23T03:03:20Z", "b", 600)]
    fn the_limit_counts_from_the_record_of_an_earlier_agent(
        #[case] since: &str,
        #[case] reason: &str,
        #[case] left: u64,
    ) {
        let (mut past, now) = (Past::default(), Instant::now());
        past.follow(&change("a"));
        let node = NodeCordon::since(since, reason);
        let wanted = match left {
            0 => Action::Uncordon,
            left => Action::Evict(now + Duration::from_secs(left)),
        };
        assert_eq!(past.decide(&node, &PACE, now, clock()), wanted);
        let later = now + Duration::from_secs(left / 2);
        assert_eq!(past.decide(&node, &PACE, later, clock()), wanted, "it is read once");
    }

    /// That of the request, and that of the controller, whichever is shorter.
    #[test]
    fn the_limit_is_the_shorter_one() {
        for (deadline, wanted) in [(60, 60), (3600, 600)] {
            let (mut past, now) = (Past::default(), Instant::now());
            let Desired::Wanted(change) = change("a") else { unreachable!() };
            let deadline = Duration::from_secs(deadline);
            past.follow(&Desired::Wanted(Change { deadline, ..change }));
            let decided = past.decide(&NodeCordon::new(true, false), &PACE, now, clock());
            assert_eq!(decided, Action::Evict(now + Duration::from_secs(wanted)));
        }
    }

    /// Its clock may be another one than that of the agent which reads the record.
    #[test]
    fn the_limit_of_an_own_cordon_does_not_depend_on_its_record() {
        let (mut past, now) = (Past::default(), Instant::now());
        past.follow(&change("a"));
        assert_eq!(
            past.decide(&NodeCordon::new(false, false), &PACE, now, clock()),
            Action::Cordon
        );
        let node = NodeCordon::since("1970-01-01T00:00:00Z", "a");
        let decided = past.decide(&node, &PACE, now, clock());
        assert_eq!(decided, Action::Evict(now + PACE.deadline));
    }
}
