//! Places of the nodes that are drained at a time.

use std::collections::{BTreeSet, VecDeque};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Number of nodes that are drained at a time, as of `maxUnavailable`: `3`, or `25%` of the nodes with an agent,
/// rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Share {
    /// So many.
    Nodes(usize),
    /// So many of a hundred.
    #[display("{_0}%")]
    Percent(usize),
}

impl Default for Share {
    /// More than a rollout changes at a time by default (`maxUnavailable: 1`), and far from all: this bound is for a
    /// fault by which all agents ask at once.
    fn default() -> Self {
        Self::Percent(25)
    }
}

impl Share {
    /// Returns the number for so many nodes with an agent: one at least.
    pub(super) fn count_for(self, nodes: usize) -> usize {
        match self {
            Self::Nodes(number) => number.max(1),
            Self::Percent(percent) => (nodes * percent).div_ceil(100).max(1),
        }
    }
}

impl FromStr for Share {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const NONE: &str = "not a number of nodes from 1 on, or a percentage from 1% to 100%";
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<usize>().ok().filter(|number| is_number && *number > 0)
        };
        match text.strip_suffix('%') {
            Some(percent) => {
                number(percent).filter(|percent| *percent <= 100).map(Self::Percent).ok_or(NONE)
            }
            None => number(text).filter(|nodes| *nodes <= 10_000).map(Self::Nodes).ok_or(NONE),
        }
    }
}

#[derive(Debug)]
struct State {
    most: usize,
    taken: BTreeSet<String>,
    waiting: VecDeque<String>,
}

/// Places of nodes, and those that wait for one.
#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
    /// Changes where a place may be free, or a node begins to wait for one.
    freed: watch::Sender<()>,
}

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        let state = State { most, taken: BTreeSet::new(), waiting: VecDeque::new() };
        Self { state: Mutex::new(state), freed: watch::Sender::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver of the changes after which a try may succeed, or a place may be wanted.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    pub(super) fn limit(&self, most: usize) {
        let before = std::mem::replace(&mut self.state().most, most);
        if most > before {
            self.freed.send_replace(());
        }
    }

    /// Gives a place to a node that is cordoned already, whatever the limit.
    pub(super) fn take_over(&self, node: &str) {
        let mut state = self.state();
        state.waiting.retain(|name| name != node);
        state.taken.insert(node.to_owned());
    }

    /// Takes a place; false where none is free for this node, which then waits behind those that waited before.
    pub(super) fn try_take(&self, node: &str) -> bool {
        let mut state = self.state();
        if state.taken.contains(node) {
            return true;
        }
        let is_new = !state.waiting.iter().any(|name| name == node);
        if is_new {
            state.waiting.push_back(node.to_owned());
        }
        let free = state.most.saturating_sub(state.taken.len());
        let is_next = state.waiting.iter().take(free).any(|name| name == node);
        if is_next {
            state.waiting.retain(|name| name != node);
            state.taken.insert(node.to_owned());
        }
        drop(state);
        if is_new && !is_next {
            self.freed.send_replace(());
        }
        is_next
    }

    /// True if more nodes wait than there are free places.
    pub(super) fn is_wanted(&self) -> bool {
        let state = self.state();
        state.waiting.len() > state.most.saturating_sub(state.taken.len())
    }

    /// True if the node has a place.
    pub(super) fn is_taken(&self, node: &str) -> bool {
        self.state().taken.contains(node)
    }

    /// Gives the place back, or the wait for one up.
    pub(super) fn release(&self, node: &str) {
        let mut state = self.state();
        state.waiting.retain(|name| name != node);
        state.taken.remove(node);
        drop(state);
        self.freed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("3", Some((Share::Nodes(3), 3)))]
    #[case("25%", Some((Share::Percent(25), 3)))]
    #[case("100%", Some((Share::Percent(100), 9)))]
    #[case("1%", Some((Share::Percent(1), 1)))]
    #[case("0", None)]
    #[case("0%", None)]
    #[case("101%", None)]
    #[case("-1", None)]
    #[case("+1", None)]
    #[case("", None)]
    #[case("%", None)]
    #[case("10001", None)]
    #[case("half", None)]
    fn a_share_is_a_number_or_a_percentage(
        #[case] text: &str,
        #[case] wanted: Option<(Share, usize)>,
    ) {
        let share = text.parse::<Share>().ok();
        assert_eq!(share.map(|share| (share, share.count_for(9))), wanted);
        assert_eq!(share.map(|share| share.to_string()).as_deref(), wanted.map(|_| text));
    }

    #[test]
    fn places_are_given_in_the_order_in_which_nodes_asked() {
        let slots = Slots::new(2);
        assert_eq!(
            ["a", "b", "c", "d"].map(|node| slots.try_take(node)),
            [true, true, false, false]
        );
        assert!(slots.try_take("a"), "it has one");
        slots.release("a");
        assert!(!slots.try_take("d") && slots.try_take("c"));
        slots.take_over("e");
        slots.release("b");
        assert!(!slots.try_take("d"), "two are drained, one of which was cordoned before");
        slots.limit(3);
        assert!(slots.try_take("d"));
    }

    /// A node that gives its place back waits behind the others.
    #[test]
    fn a_place_is_wanted_while_more_nodes_wait_than_places_are_free() {
        let slots = Slots::new(1);
        let mut changes = slots.changes();
        assert!(slots.try_take("a") && !slots.is_wanted());
        assert!(!changes.has_changed().unwrap(), "nobody waits");
        assert!(!slots.try_take("b") && slots.is_wanted());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(!slots.try_take("b") && !changes.has_changed().unwrap(), "it waits already");
        slots.release("a");
        assert!(!slots.is_wanted(), "a place is free");
        assert!(!slots.try_take("a") && slots.is_wanted());
        assert!(slots.try_take("b") && slots.is_wanted());
        slots.release("a");
        assert!(!slots.is_wanted());
    }
}
