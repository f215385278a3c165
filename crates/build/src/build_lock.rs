//! Build lock: of several processes that build the same, the first builds and the others wait.
//!
//! The lock file contains a record of its holder, for messages only. The lock itself is the
//! kernel's, which releases it when the holder dies.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::Flock;

use crate::builder::Builder;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::locks::{Attempt, LockKind};
use longshore_core::progress::{Progress, Task, Unit};

/// Time between two attempts: the holder's record is read after each.
const EVERY: Duration = Duration::from_millis(200);
/// Maximum size of a holder's record.
const MAX_RECORD: u64 = 4096;

/// The locked file, held while its owner works.
pub(super) type BuildLock = Flock<File>;

/// Waits at most `limit` for the lock file at `path`, which is created if missing, to do `what`.
///
/// # Errors
/// Exit code 15 where the file cannot be created, or another process still holds it after `limit`.
pub(super) async fn take(
    path: &Path,
    limit: Duration,
    what: &str,
    progress: &dyn Progress,
) -> Result<BuildLock, Failure> {
    let fail = |e| write_failure(path, e);
    let mut attempt = Attempt::begin(path, LockKind::Exclusive, limit).map_err(fail)?;
    let mut waiting = Waiting::default();
    let locked = attempt.within_limit_noting(EVERY, || waiting.look(path, progress)).await;
    match locked.map_err(fail)? {
        Some(lock) => {
            sign(&lock, &Builder::here(what)).map_err(fail)?;
            Ok(lock)
        }
        None => Err(still_held(path, limit, &attempt.holders())),
    }
}

/// Progress shown to a waiting process.
#[derive(Default)]
struct Waiting {
    holder: Option<Builder>,
    task: Option<Box<dyn Task>>,
}

impl Waiting {
    fn look(&mut self, path: &Path, progress: &dyn Progress) {
        let holder = read(path);
        let task = match &self.task {
            Some(task) if self.holder == holder => task,
            _ => {
                let who = shown(holder.as_ref());
                tracing::info!(lock = %path.display(), "waits for {who}");
                let what = holder.as_ref().map_or("another process".into(), Builder::shown_host);
                self.holder = holder;
                self.task.insert(progress.begin(&format!("waiting for {what}"), None, Unit::Items))
            }
        };
        task.note(&shown(self.holder.as_ref()));
    }
}

fn shown(holder: Option<&Builder>) -> String {
    holder.map_or_else(|| "another process to finish the same".to_owned(), Builder::to_string)
}

/// Writes the holder's record.
fn sign(mut file: &File, builder: &Builder) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(&serde_json::to_vec(builder)?)
}

/// Reads the last holder's record; None if it is unreadable.
fn read(path: &Path) -> Option<Builder> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_RECORD).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn still_held(path: &Path, limit: Duration, holders: &str) -> Failure {
    let who = read(path).map(|builder| format!(": {builder}")).unwrap_or_default();
    Failure::new(
        FailureKind::Preflight,
        format!(
            "{} is still held by another process after {limit:?}{holders}{who}",
            path.display()
        ),
    )
    .remedy("another longshore is at the same work: let it finish, or end it")
}

#[cfg(test)]
mod tests {
    use nix::fcntl::FlockArg;

    use super::*;
    use longshore_core::failure::ExitCode;
    use longshore_core::progress::Silent;

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_is_told_who_that_is() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        let first = take(&path, Duration::ZERO, "modules", &Silent).await.expect("free");
        let failure = take(&path, Duration::ZERO, "other", &Silent).await.expect_err("held");
        assert_eq!(failure.code(), ExitCode::Preflight);
        let holder = format!("(pid {}, since ", std::process::id());
        assert!(failure.to_string().contains(&holder), "{failure}");
        assert!(failure.to_string().ends_with("which builds modules"), "{failure}");
        drop(first);
        take(&path, Duration::ZERO, "other", &Silent).await.expect("free again");
        assert_eq!(read(&path).expect("a record").what, "other");
    }

    #[tokio::test]
    async fn a_lock_that_says_nothing_is_waited_for_all_the_same() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        std::fs::write(&path, "{").expect("write");
        let held = Flock::lock(File::open(&path).expect("open"), FlockArg::LockExclusive);
        let waiting = take(&path, Duration::from_secs(60), "modules", &Silent);
        let (lock, ()) = tokio::join!(waiting, async { drop(held) });
        lock.expect("free at last");
    }
}
