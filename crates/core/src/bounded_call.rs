//! Blocking calls with a deadline.
//!
//! A call that hangs in the kernel, on a disk or a file system that does not answer, cannot be
//! interrupted (docs/reference/deadlines.md). So it runs on a thread of its own, which is left behind where it
//! hangs: its caller goes on.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use crate::small_stacks;

/// Runs `work` on a thread called `name` and returns its result; None where it takes longer than
/// `limit`. The thread is then left behind.
///
/// The inner error is also that no thread can be started.
pub fn in_time<T: Send + 'static>(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Option<io::Result<T>> {
    let (found, answer) = mpsc::sync_channel(1);
    // The receiver is gone where the result is late.
    let thread = small_stacks::named(name).spawn(move || drop(found.send(work())));
    match thread {
        Ok(_) => answer.recv_timeout(limit).ok(),
        Err(error) => Some(Err(error)),
    }
}

/// Reason why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoResult {
    /// It has not returned within its limit; its thread is left behind.
    #[error("the time limit has passed")]
    Late,
    /// It panicked.
    #[error("the thread panicked")]
    Panicked,
}

/// Like [`in_time`], for a caller on tokio's runtime: `work` runs on one of its threads for blocking
/// calls.
///
/// # Errors
/// As [`NoResult`] says.
pub async fn off_runtime<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoResult> {
    let work = tokio::task::spawn_blocking(work);
    let ended = tokio::time::timeout(limit, work).await.map_err(|_| NoResult::Late)?;
    ended.map_err(|_| NoResult::Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_does_not_end_is_left_behind() {
        let (go_on, wait) = mpsc::channel::<()>();
        let work = move || Ok(wait.recv().is_ok());
        assert!(in_time("test", Duration::ZERO, work).is_none());
        drop(go_on);
        assert_eq!(in_time("test", Duration::from_secs(10), || Ok(1)).unwrap().unwrap(), 1);
    }

    #[tokio::test]
    async fn the_runtime_waits_no_longer_than_the_limit() {
        const AMPLE: Duration = Duration::from_secs(10);
        let (go_on, wait) = mpsc::channel::<()>();
        let late = off_runtime(Duration::ZERO, move || wait.recv().is_ok()).await;
        assert_eq!(late, Err(NoResult::Late));
        drop(go_on);
        assert_eq!(off_runtime(AMPLE, || 1).await, Ok(1));
        let panicked = off_runtime(AMPLE, || panic!("a fault that is meant")).await;
        assert_eq!(panicked.map(drop), Err(NoResult::Panicked));
    }
}
