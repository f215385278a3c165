//! Startup lock for one agent at a time: a second agent waits for the first to end.
//!
//! An old pod that is terminating uninstalls its driver while the new one starts already.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::journal::{Holder, Journal};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Interval of trying the lock.
const INTERVAL: Duration = Duration::from_millis(500);

/// Takes the lock and reads the state; waits for another agent, and logs its holder. None if `stop`
/// is set meanwhile: nothing was begun.
///
/// # Errors
/// Like [`Journal::open`], after the lock's deadline if another agent holds it.
pub(super) async fn open_journal(
    config: &Config,
    stop: &CancelFlag,
) -> Result<Option<Journal>, Failure> {
    let since = Instant::now();
    let deadline = config.deadlines.lock;
    let mut logged: Option<Holder> = None;
    loop {
        let (paths, disk) = (config.paths.clone(), config.disk());
        let opened = tokio::task::spawn_blocking(move || Journal::try_open(&paths, disk))
            .await
            .or_fail(FailureKind::Bug, || "opening the journal")??;
        let holder = match opened {
            Ok(journal) => return Ok(Some(journal)),
            Err(holder) => holder,
        };
        let left = deadline.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err(holder.into_failure(&config.paths.state, since.elapsed()));
        }
        if logged.as_ref() != Some(&holder) {
            let s = left.as_secs();
            tracing::info!("another longshore runs ({holder}): waiting up to {s} s for it to end");
            logged = Some(holder);
        }
        tokio::select! {
            biased;
            () = stop.wait() => return Ok(None),
            () = tokio::time::sleep(INTERVAL.min(left)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Fragment};
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;
    use longshore_core::paths::Paths;

    fn config(paths: &Paths, lock: Duration) -> Config {
        let config = config::load(Fragment::default(), &|_| None, None).unwrap();
        let deadlines = longshore_core::deadlines::Deadlines { lock, ..config.deadlines };
        Config { paths: paths.clone(), deadlines, ..config }
    }

    /// Longer than the test.
    const AMPLE: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn the_next_agent_waits_for_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::below(dir.path());
        let (config, stop) = (config(&paths, AMPLE), CancelFlag::default());
        let first = Journal::open(&paths, Disk::default()).unwrap();
        let waiting = open_journal(&config, &stop);
        tokio::pin!(waiting);
        tokio::select! {
            _ = &mut waiting => panic!("it did not wait"),
            () = tokio::time::sleep(100 * INTERVAL) => {}
        }
        drop(first);
        assert!(waiting.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn who_is_stopped_while_waiting_begins_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::below(dir.path());
        let (config, stop) = (config(&paths, AMPLE), CancelFlag::default());
        let _first = Journal::open(&paths, Disk::default()).unwrap();
        stop.set();
        assert!(open_journal(&config, &stop).await.unwrap().is_none());
        assert!(!paths.state.join("state.json").exists());
    }

    #[tokio::test]
    async fn an_agent_that_does_not_end_is_named_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::below(dir.path());
        let _first = Journal::open(&paths, Disk::default()).unwrap();
        let config = config(&paths, Duration::from_millis(1));
        let failure = open_journal(&config, &CancelFlag::default()).await.unwrap_err();
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.to_string().starts_with("another longshore runs (pid "), "{failure}");
    }
}
