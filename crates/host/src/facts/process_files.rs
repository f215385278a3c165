//! Inspection of other processes' files below /proc, by one thread at a time, with a deadline.
//!
//! `environ`, `maps` and `map_files` of a process whose memory map is locked sleep until it is
//! unlocked (fs/proc/base.c and task_mmu.c take the mmap_lock), and a file on a network file system
//! may never answer. A thread in such a call cannot be interrupted: so there is at most one, and
//! while it hangs no other inspection starts.

use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore_core::small_stacks;

/// Runs inspections one after the other. Clones share one thread.
#[derive(Debug, Clone, Default)]
pub struct Looker {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    running: Mutex<Option<Running>>,
    ended: Condvar,
}

/// The inspection whose thread has not returned.
#[derive(Debug)]
struct Running {
    since: Instant,
    until: Instant,
}

/// The reason why nothing was inspected.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub struct Unseen(String);

impl Looker {
    /// Returns the result of `look`, which runs on a thread called `name`. Blocks for `limit` at
    /// most.
    ///
    /// # Errors
    /// If it takes longer, an earlier inspection has exceeded its limit and still hangs, or no
    /// thread can be started.
    pub(crate) fn look<T: Send + 'static>(
        &self,
        name: &str,
        limit: Duration,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unseen> {
        let until = Instant::now() + limit;
        let (sender, receiver) = mpsc::sync_channel(1);
        // The receiver is gone once the time limit has passed.
        self.begin(name, until, move || drop(sender.send(look())))?;
        let left = until.saturating_duration_since(Instant::now());
        receiver.recv_timeout(left).map_err(|_| Unseen(format!("it took longer than {limit:?}")))
    }

    /// Runs `look` on a thread called `name`, after the one that runs now; its time limit ends at
    /// `until`.
    ///
    /// # Errors
    /// As [`Looker::look`].
    pub(crate) fn begin(
        &self,
        name: &str,
        until: Instant,
        look: impl FnOnce() + Send + 'static,
    ) -> Result<(), Unseen> {
        *self.free(until)? = Some(Running { since: Instant::now(), until });
        let ending = Ending(Arc::clone(&self.shared));
        let work = move || {
            let _ending = ending;
            look();
        };
        // If no thread starts, `work` is dropped, and with it the mark that it runs.
        let started = small_stacks::named(name).spawn(work);
        started.map(drop).map_err(|e| Unseen(format!("cannot start a thread: {e}")))
    }

    /// Waits until no inspection runs, at most until the time limit of the running one.
    fn free(&self, until: Instant) -> Result<MutexGuard<'_, Option<Running>>, Unseen> {
        let mut running = self.shared.lock();
        while let Some(other) = &*running {
            let now = Instant::now();
            let end = other.until.min(until);
            if now >= end {
                let since = other.since.elapsed().as_secs_f64();
                return Err(Unseen(format!(
                    "an earlier inspection of the processes still hangs after {since:.1} s"
                )));
            }
            let waited = self.shared.ended.wait_timeout(running, end - now);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(running)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clears the running inspection when dropped, also after a panic.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.lock() = None;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const AMPLE: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn what_is_seen_is_given() {
        assert_eq!(Looker::default().look("a-look", AMPLE, || 7), Ok(7));
    }

    #[test]
    fn while_one_hangs_there_is_no_other_thread_and_nobody_waits() {
        let looker = Looker::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let (release, hangs) = mpsc::channel::<()>();
        let hanging = {
            let begun = Arc::clone(&begun);
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                hangs.recv().is_err()
            }
        };
        let unseen = looker.look("a-look", SHORT, hanging).expect_err("it hangs");
        assert_eq!(unseen.to_string(), "it took longer than 100ms");
        let since = Instant::now();
        for _ in 0..50 {
            let begun = Arc::clone(&begun);
            let look = move || begun.fetch_add(1, Ordering::Relaxed);
            let unseen = looker.look("a-look", AMPLE, look).expect_err("one hangs").to_string();
            assert!(unseen.starts_with("an earlier inspection of the processes"), "{unseen}");
        }
        assert!(since.elapsed() < AMPLE / 2, "{:?}", since.elapsed());
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        drop(release);
        // The inspection returned: others can run as soon as its thread has cleared it.
        let since = Instant::now();
        while looker.look("a-look", AMPLE, || ()).is_err() {
            assert!(since.elapsed() < AMPLE);
            std::thread::yield_now();
        }
    }

    #[test]
    fn looks_that_come_to_their_end_follow_each_other() {
        let (looker, at_once) = (Looker::default(), AtomicUsize::new(0));
        let at_once = Arc::new(at_once);
        let one = || {
            let at_once = Arc::clone(&at_once);
            let look = move || {
                let others = at_once.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                at_once.fetch_sub(1, Ordering::SeqCst);
                others
            };
            looker.look("a-look", AMPLE, look)
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..16).map(|_| scope.spawn(one)).collect();
            for looked in all {
                assert_eq!(looked.join().expect("joins"), Ok(0));
            }
        });
    }

    #[test]
    fn one_that_panics_is_over() {
        let looker = Looker::default();
        let unseen = looker.look("a-look", AMPLE, || panic!("a fault that is meant")).map(drop);
        unseen.expect_err("nothing seen");
        assert_eq!(looker.look("a-look", AMPLE, || 7), Ok(7));
    }
}
