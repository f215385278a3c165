//! Time that passes at once, for tests beside real sockets.

use std::time::Duration;

/// Turns of the runtime after which a task has done what it does without waiting for anything.
const TURNS: usize = 100;

/// Lets this time pass at once on the clock of a test's runtime, and every task do what is due by then.
///
/// A clock that is paused for the whole test would jump whenever all tasks wait for a socket, and end
/// each call by its time limit: so no call may be under way here.
///
/// # Panics
/// In a runtime with more than one thread, whose clock cannot be paused.
pub async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    tokio::time::resume();
}
