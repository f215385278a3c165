//! Wait for the users of an installed driver: decides when a change is tried again. Each try ends the
//! driver's daemons for a moment, so none is made that is certain to be refused.

use std::time::{Duration, Instant};

use super::Agent;
use crate::engine::{held_of, kept};
use crate::journal::JournalEntry;
use longshore_core::privileges;
use longshore_host::facts::in_use::{Held, InUse};
use longshore_host::values::DriverUsers;

/// Longest wait between two tries: a try ends the driver's daemons for a moment.
const LONGEST: Duration = Duration::from_secs(60);
/// Longest wait between two looks at users that do not change.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// Longest wait between two tries where references have no known holder and may be those of the
/// driver's own daemons.
const LONGEST_UNKNOWN: Duration = Duration::from_secs(3600);

/// Users and holders of the installed driver, as far as they are seen without touching its daemons.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub(super) users: DriverUsers,
    pub(super) held: Vec<Held>,
    /// True if some of the references are those of the driver's own daemons.
    pub(super) has_daemons: bool,
}

/// Result of a look at the holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// A try may succeed.
    Free,
    Same,
    /// Still in use, by others than before.
    Changed,
}

/// A wait for the holders of a driver.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The holders, as they were seen last.
    pub(super) in_use: InUse,
    /// Time until the next look.
    pub(super) wait: Duration,
    first: Duration,
    /// Time before which no try is made unless references without a known holder become fewer.
    not_before: Instant,
    /// Most of these references that were seen since the refused try, or since the last user was.
    most: i64,
}

impl Waiting {
    /// Begins a wait after a refused try, the next one being at least `pause` away; `first` is the
    /// shortest time between two looks.
    pub(super) fn new(in_use: InUse, first: Duration, pause: Duration, now: Instant) -> Self {
        let wait = pause.min(LONGEST_LOOK.max(first));
        Self { in_use, wait, first, not_before: now + pause, most: 0 }
    }

    /// Returns the wait of a change that has no users.
    pub(super) fn none(first: Duration) -> Self {
        Self::new(InUse::default(), first, Duration::ZERO, Instant::now())
    }

    /// Judges what is seen now.
    pub(super) fn look(&mut self, seen: Holders, now: Instant) -> Look {
        let Holders { users, held, has_daemons } = seen;
        let references = held.iter().map(|held| held.references.max(0)).sum();
        let is_due = now >= self.not_before || references < self.most;
        // References of visible users are theirs, and may hide others.
        self.most = if users.users.is_empty() { self.most.max(references) } else { 0 };
        let is_free = users.users.is_empty()
            && held.iter().all(|held| held.modules.is_empty())
            && (references == 0 || has_daemons);
        if is_free && is_due {
            return Look::Free;
        }
        self.wait = (self.wait * 2).min(LONGEST_LOOK.max(self.first));
        let is_same =
            users.users == self.in_use.users && modules(&held) == modules(&self.in_use.held);
        if is_same {
            return Look::Same;
        }
        self.wait = self.first;
        self.in_use = InUse { held, users: users.users, unseen: users.unseen };
        Look::Changed
    }
}

/// True if a try was refused for references alone, after the daemons had ended.
fn is_unknown(in_use: &InUse) -> bool {
    in_use.users.is_empty()
        && in_use.held.iter().any(|held| held.references > 0)
        && modules(&in_use.held).is_empty()
}

fn modules(held: &[Held]) -> Vec<&String> {
    held.iter().flat_map(|held| &held.modules).collect()
}

impl Agent {
    /// Begins the wait after a refused try. Holders that are not seen are found out only by another
    /// try, which waits longer each time.
    pub(super) fn wait_for(&mut self, in_use: InUse) -> Waiting {
        let first = self.context.conduct.interval;
        let pause = self.held_for.unwrap_or(first);
        let longest = if is_unknown(&in_use) { LONGEST_UNKNOWN } else { LONGEST };
        self.held_for = Some((pause * 2).min(longest));
        Waiting::new(in_use, first, pause, Instant::now())
    }

    /// Returns the users and holders of the driver, without its own daemons. What cannot be inspected
    /// is found out by the next try.
    pub(super) async fn holders(&self) -> Holders {
        let (users, daemons) = (self.users().await, kept(&self.journal));
        let entries: Vec<JournalEntry> = self.journal.live().cloned().collect();
        let host = std::sync::Arc::clone(&self.context.host);
        let look = move || held_of(&*host, &entries);
        let held = match privileges::run_privileged(look).await {
            Ok(Ok(held)) => held,
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        Holders { users, held, has_daemons: !daemons.is_empty() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const FIRST: Duration = Duration::from_secs(2);

    fn held(modules: &[&str], references: i64) -> Vec<Held> {
        let modules = modules.iter().map(ToString::to_string).collect();
        vec![Held { module: "nvidia".to_owned(), modules, references }]
    }

    fn seen(held: Vec<Held>, has_daemons: bool) -> Holders {
        Holders { held, has_daemons, ..Holders::default() }
    }

    #[rstest]
    #[case::nothing(seen(Vec::new(), true), Look::Free)]
    #[case::another_module(seen(held(&["nvidia_fs"], 0), true), Look::Changed)]
    #[case::references_without_daemons(seen(held(&[], 1), false), Look::Same)]
    #[case::references_of_daemons(seen(held(&[], 2), true), Look::Free)]
    fn a_try_is_made_only_where_it_may_succeed(#[case] seen: Holders, #[case] wanted: Look) {
        let now = Instant::now();
        let mut waiting = Waiting::new(InUse::default(), FIRST, FIRST, now);
        assert_eq!(waiting.look(seen, now + FIRST), wanted);
    }

    fn user() -> DriverUsers {
        let user = longshore_host::values::DriverUser {
            pid: 7,
            namespace_pid: None,
            comm: "nvidia-smi".to_owned(),
            container: None,
            pod: None,
            devices: Vec::new(),
        };
        DriverUsers { users: vec![user], ..DriverUsers::default() }
    }

    /// A user that is seen for a moment shortens no pause: each try ends the daemons.
    #[test]
    fn a_pause_is_kept_whatever_comes_and_goes_meanwhile() {
        let now = Instant::now();
        let mut waiting = Waiting::new(InUse::default(), FIRST, LONGEST, now);
        let passing = || Holders { users: user(), held: held(&[], 3), has_daemons: true };
        assert_eq!(waiting.look(seen(held(&[], 2), true), now), Look::Same);
        assert_eq!(waiting.look(passing(), now), Look::Changed);
        assert_eq!(waiting.look(seen(held(&[], 2), true), now), Look::Changed);
        assert_eq!(waiting.look(seen(Vec::new(), true), now), Look::Free, "all are gone");
        let mut waiting = Waiting::new(InUse::default(), FIRST, LONGEST, now);
        assert_eq!(waiting.look(passing(), now + LONGEST), Look::Changed);
        assert_eq!(waiting.look(seen(held(&[], 2), true), now + LONGEST), Look::Free);
    }

    #[test]
    fn references_without_a_known_holder_are_waited_for_until_they_are_fewer() {
        let now = Instant::now();
        let in_use = InUse { held: held(&[], 1), ..InUse::default() };
        let begin = || Waiting::new(in_use.clone(), FIRST, LONGEST_UNKNOWN, now);
        let mut waiting = begin();
        assert!(waiting.wait <= LONGEST_LOOK);
        assert_eq!(waiting.look(seen(held(&[], 2), true), now), Look::Same);
        assert_eq!(waiting.look(seen(held(&[], 3), true), now), Look::Same, "a daemon's own");
        assert_eq!(waiting.look(seen(held(&[], 2), true), now), Look::Free);
        let mut waiting = begin();
        assert_eq!(waiting.look(seen(held(&[], 2), true), now), Look::Same);
        let later = now + LONGEST_UNKNOWN;
        assert_eq!(waiting.look(seen(held(&[], 2), true), later), Look::Free);
    }
}
