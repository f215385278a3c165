//! Reconciliation of an object in the cluster with its desired state: a [`Handle`] holds the state, and a task brings
//! the object to it by a [`Reconcile`]. The newest state counts.
//!
//! States are numbered, so that a handle can wait until the task is done with one, or with a newer one.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::client::Pauses;
use crate::error::Error;

/// A state, and the number of states before it.
pub(crate) type Numbered<S> = (u64, S);

/// Number of the last settled state, and true if the object was as desired then.
type Settled = (u64, bool);

/// Desired state of what longshore writes to an object, and may withdraw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Desired<T> {
    /// None was given yet: the object is left as it is.
    Unknown,
    /// Nothing of longshore's, be it of an earlier process.
    Nothing,
    /// This.
    Wanted(T),
}

/// Time of the next reconciliation; that of a newer state is at once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    Now,
    At(Instant),
    /// After the next of the growing pauses.
    Backoff,
    /// With a newer state.
    Changed,
    /// After [`Reconcile::wait`].
    Wait,
}

impl Then {
    pub(crate) fn after(pause: Duration) -> Self {
        Self::At(Instant::now() + pause)
    }
}

/// Result of a reconciliation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next {
    pub(crate) then: Then,
    /// The state is settled: true if the object is as desired, false if the cluster refuses that.
    pub(crate) settled: Option<bool>,
    /// Latest time of the next reconciliation.
    pub(crate) by: Option<Instant>,
}

impl From<Then> for Next {
    fn from(then: Then) -> Self {
        Self { then, settled: None, by: None }
    }
}

/// Reconciler of one object.
pub(crate) trait Reconcile: Send + 'static {
    /// Desired state of the object.
    type Desired: Clone + Send + Sync + 'static;

    /// Observes the object, decides, and writes where it differs. A newer state does not interrupt it.
    fn reconcile(
        &mut self,
        desired: &Self::Desired,
    ) -> impl Future<Output = Result<Next, Error>> + Send;

    /// Waits for what may change the decision. A newer state ends it.
    fn wait(&mut self, _: &Self::Desired) -> impl Future<Output = Result<Next, Error>> + Send {
        std::future::ready(Ok(Next::from(Then::Changed)))
    }

    /// Reports a failed call.
    fn fails(&mut self, desired: &Self::Desired, error: Error) -> Next;

    /// Returns the growing pauses.
    fn pauses(&mut self) -> &mut Pauses;
}

/// Reconciles until the handle is dropped.
async fn run<R: Reconcile>(
    mut reconciler: R,
    mut states: watch::Receiver<Numbered<R::Desired>>,
    settled: watch::Sender<Settled>,
) {
    loop {
        let (number, desired) = states.borrow_and_update().clone();
        let done = reconciler.reconcile(&desired).await;
        let mut next = done.unwrap_or_else(|error| reconciler.fails(&desired, error));
        if matches!(next.then, Then::Wait) {
            let done = tokio::select! {
                biased;
                changed = states.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                done = reconciler.wait(&desired) => done,
            };
            next = done.unwrap_or_else(|error| reconciler.fails(&desired, error));
        }
        if let Some(is_as_desired) = next.settled {
            settled.send_replace((number, is_as_desired));
        }
        let pause = async {
            match next.then {
                Then::Now => {}
                Then::At(time) => sleep_until(time).await,
                Then::Backoff => reconciler.pauses().pause().await,
                Then::Changed | Then::Wait => std::future::pending::<()>().await,
            }
        };
        let pause = async {
            match next.by {
                Some(by) => {
                    let _ = timeout_at(by, pause).await;
                }
                None => pause.await,
            }
        };
        tokio::select! {
            biased;
            changed = states.changed() => match changed {
                Ok(()) => {}
                Err(_) => return,
            },
            () = pause => {}
        }
    }
}

/// Desired state of an object, and the task that brings the object to it.
#[derive(Debug)]
pub(crate) struct Handle<S> {
    desired: watch::Sender<Numbered<S>>,
    settled: watch::Receiver<Settled>,
    task: JoinHandle<()>,
}

impl<S> Drop for Handle<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<S: Clone + Send + Sync + 'static> Handle<S> {
    /// Begins with this state; `make` gets the states, for a reconciler that has to see a newer one. It needs a tokio
    /// runtime.
    pub(crate) fn begin<R: Reconcile<Desired = S>>(
        first: S,
        make: impl FnOnce(&watch::Receiver<Numbered<S>>) -> R,
    ) -> Self {
        let (desired, states) = watch::channel((0, first));
        let (done, settled) = watch::channel((0, true));
        let reconciler = make(&states);
        Self { desired, settled, task: tokio::spawn(run(reconciler, states, done)) }
    }
}

impl<S> Handle<S> {
    /// Returns the state with its number.
    pub(crate) fn current(&self) -> watch::Ref<'_, Numbered<S>> {
        self.desired.borrow()
    }

    /// Changes the state and its number; the task is notified where `change` returns true.
    pub(crate) fn modify(&self, change: impl FnOnce(&mut u64, &mut S) -> bool) {
        self.desired.send_if_modified(|(number, state)| change(number, state));
    }

    /// Waits until the state is settled, `limit` at most; false if the object may not be as desired, also because the
    /// cluster refuses it.
    pub(crate) async fn settled(&self, limit: Duration) -> bool {
        matches!(timeout(limit, self.settles(false)).await, Ok(true))
    }

    /// Waits until the state is settled, or until the object is as desired; returns true if it is.
    pub(crate) async fn settles(&self, as_desired: bool) -> bool {
        let number = self.current().0;
        let mut settled = self.settled.clone();
        let done = settled.wait_for(|(done, is)| *done >= number && (*is || !as_desired)).await;
        // The task ends with this handle alone.
        done.is_ok_and(|settled| settled.1)
    }
}

impl<T: PartialEq> Handle<Desired<T>> {
    /// Desires this; the same again changes nothing.
    pub(crate) fn want(&self, wanted: T) {
        desire(&self.desired, Desired::Wanted(wanted));
    }

    /// Desires nothing: what is there of longshore's is withdrawn.
    pub(crate) fn withdraw(&self) {
        desire(&self.desired, Desired::Nothing);
    }

    /// Withdraws, and waits until nothing of longshore's is left, `limit` at most; false if something may be.
    pub(crate) async fn withdrawn(&self, limit: Duration) -> bool {
        self.withdraw();
        self.settled(limit).await
    }
}

/// Desires a state; one that is like the last one changes nothing.
fn desire<S: PartialEq>(desired: &watch::Sender<Numbered<S>>, next: S) {
    desired.send_if_modified(|(number, state)| {
        let differs = *state != next;
        if differs {
            (*number, *state) = (*number + 1, next);
        }
        differs
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_state_has_the_next_number() {
        let (desired, mut states) = watch::channel((0, "nothing"));
        desire(&desired, "nothing");
        assert!(!states.has_changed().expect("its sender is there"));
        desire(&desired, "a change");
        assert_eq!(*states.borrow_and_update(), (1, "a change"));
    }
}
