//! Blocking calls with a deadline.
//!
//! A call that hangs in the kernel, on a disk or a file system that does not answer, cannot be
//! interrupted (docs/deadlines.md). So it runs on a thread of its own, which is left behind where it
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
}
