//! Who is at work with the store. Whoever rests on what lies there shares it; whoever removes
//! things has it alone, and so removes nothing that somebody is about to use.
//!
//! It is a lock on the file `lock`, which the kernel takes back from a process that dies. An agent
//! whose driver is installed no longer holds it: what it needs from then on stands in its journal.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::time::Instant;

use super::{Store, write_failure};
use crate::failure::{ExitCode, Failure};

/// How often a taken lock is tried again: flock has no deadline of its own.
const EVERY: Duration = Duration::from_millis(50);

/// The store, shared or alone, until dropped. None inside: the store cannot be written, so that
/// nobody can remove anything either.
#[derive(Debug)]
pub struct InUse {
    _lock: Option<Flock<File>>,
}

impl Store {
    /// Shares the store with everybody else who works with it; waits at most `patience` for whoever
    /// removes things, which takes seconds.
    ///
    /// # Errors
    /// Exit code 15 where it stays taken, or the lock cannot be made.
    pub async fn share(&self, patience: Duration) -> Result<InUse, Failure> {
        self.take(FlockArg::LockSharedNonblock, patience).await
    }

    /// Has the store alone, once nobody has used it any more within `patience`.
    ///
    /// # Errors
    /// Exit code 15 where it is used for longer, or the lock cannot be made.
    pub async fn alone(&self, patience: Duration) -> Result<InUse, Failure> {
        self.take(FlockArg::LockExclusiveNonblock, patience).await
    }

    async fn take(&self, how: FlockArg, patience: Duration) -> Result<InUse, Failure> {
        let path = self.root().join("lock");
        let opened = File::open(&path).or_else(|absent| match absent.kind() {
            ErrorKind::NotFound => {
                // Whoever may open it may hold it.
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false).mode(0o600);
                options.open(&path)
            }
            _ => Err(absent),
        });
        let mut file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::ReadOnlyFilesystem => {
                return Ok(InUse { _lock: None });
            }
            Err(e) => return Err(write_failure(&path, e)),
        };
        let deadline = Instant::now() + patience;
        loop {
            match Flock::lock(file, how) {
                Ok(lock) => return Ok(InUse { _lock: Some(lock) }),
                Err((back, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = back,
                Err((_, Errno::EWOULDBLOCK)) => return Err(self.is_busy(patience)),
                Err((_, errno)) => return Err(write_failure(&path, errno.into())),
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn is_busy(&self, patience: Duration) -> Failure {
        let cause = format!(
            "the store {} is still in use by another longshore after {patience:?}",
            self.root().display()
        );
        Failure::new(ExitCode::Preflight, cause)
            .remedy("let it finish its build, fetch or installation, and try again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_share_and_one_has_it_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path()).expect("store");
        let (first, second) =
            (store.share(Duration::ZERO).await.expect("free"), store.share(Duration::ZERO).await);
        let failure = store.alone(Duration::ZERO).await.expect_err("shared");
        assert_eq!(failure.code(), ExitCode::Preflight);
        drop((first, second));
        let alone = store.alone(Duration::ZERO).await.expect("free again");
        store.take(FlockArg::LockSharedNonblock, Duration::ZERO).await.expect_err("taken");
        drop(alone);
        store.share(Duration::ZERO).await.expect("free once more");
    }
}
