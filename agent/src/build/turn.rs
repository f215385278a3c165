//! Taking turns: what two builds both want is made once, by the first.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::failure::{ExitCode, Failure};
use crate::store::write_failure;

/// How often a taken lock is tried again: flock has no deadline of its own.
const EVERY: Duration = Duration::from_millis(200);

/// Held while its owner works; the kernel takes it back from a process that dies.
pub(super) type Turn = Flock<File>;

/// Waits at most `limit` for the lock file at `path`, which is made where it is not there.
///
/// # Errors
/// Exit code 15 where the file cannot be made, or somebody else still holds it after `limit`.
pub(super) async fn take(path: &Path, limit: Duration) -> Result<Turn, Failure> {
    let mut file = File::create(path).map_err(|e| write_failure(path, e))?;
    let deadline = tokio::time::Instant::now() + limit;
    let mut told = false;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(turn) => return Ok(turn),
            Err((back, Errno::EWOULDBLOCK)) if tokio::time::Instant::now() < deadline => {
                file = back;
            }
            Err((_, Errno::EWOULDBLOCK)) => return Err(still_held(path, limit)),
            Err((_, errno)) => return Err(write_failure(path, errno.into())),
        }
        if !told {
            tracing::info!(lock = %path.display(), "waiting for another process to finish the same");
            told = true;
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn still_held(path: &Path, limit: Duration) -> Failure {
    Failure::new(
        ExitCode::Preflight,
        format!("{} is still held by another process after {limit:?}", path.display()),
    )
    .remedy("another longshore is at the same work: let it finish, or end it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_for_the_first() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("lock");
        let first = take(&path, Duration::ZERO).await.expect("free");
        let failure = take(&path, Duration::ZERO).await.expect_err("held");
        assert_eq!(failure.code(), ExitCode::Preflight);
        drop(first);
        take(&path, Duration::ZERO).await.expect("free again");
    }
}
