//! Lock of the store: shared by processes that rely on its content, exclusive for a process that
//! removes files, so that it removes nothing that another is about to use.
//!
//! It is a lock on the file `lock`, which the kernel releases when a process dies. An agent whose
//! driver is installed no longer holds it: its journal names what it needs from then on.

use std::fs::File;
use std::io::ErrorKind;
use std::time::Duration;

use nix::fcntl::Flock;

use super::Store;
use crate::durable::write_failure;
use crate::failure::{Failure, FailureKind};
use crate::locks::{Attempt, LockKind};

/// The store, locked shared or exclusively, until dropped. None inside: the store is read-only, so
/// that no other process can remove anything either, or is only read and has no lock yet.
#[derive(Debug)]
pub struct StoreGuard {
    _lock: Option<Flock<File>>,
}

impl Store {
    /// Locks the store shared; waits at most `limit` for a process that removes files, which
    /// takes seconds.
    ///
    /// # Errors
    /// Exit code 15 where it stays locked, or the lock cannot be made.
    pub async fn lock_shared(&self, limit: Duration) -> Result<StoreGuard, Failure> {
        self.take(LockKind::Shared, limit).await
    }

    /// Locks the store exclusively, once no other process has held the lock within `limit`.
    ///
    /// # Errors
    /// Exit code 15 where it stays locked, or the lock cannot be made.
    pub async fn lock_exclusive(&self, limit: Duration) -> Result<StoreGuard, Failure> {
        self.take(LockKind::Exclusive, limit).await
    }

    async fn take(&self, kind: LockKind, limit: Duration) -> Result<StoreGuard, Failure> {
        // A store that is only read is no reason to make a lock in it; one that is there is shared.
        if self.scratch.is_some() && !self.root().join("lock").exists() {
            return Ok(StoreGuard { _lock: None });
        }
        let path = self.root().join("lock");
        let mut attempt = match Attempt::begin(&path, kind, limit) {
            Ok(attempt) => attempt,
            Err(e)
                if e.kind() == ErrorKind::ReadOnlyFilesystem
                    || (self.scratch.is_some() && e.kind() == ErrorKind::PermissionDenied) =>
            {
                return Ok(StoreGuard { _lock: None });
            }
            Err(e) => return Err(write_failure(&path, e)),
        };
        match attempt.within_limit().await.map_err(|e| write_failure(&path, e))? {
            Some(lock) => Ok(StoreGuard { _lock: Some(lock) }),
            None => Err(self.is_busy(limit, &attempt.holders())),
        }
    }

    fn is_busy(&self, limit: Duration, holders: &str) -> Failure {
        let cause = format!(
            "the store {} is still in use by another longshore after {limit:?}: its lock {} is \
             held{holders}",
            self.root().display(),
            self.root().join("lock").display(),
        );
        Failure::new(FailureKind::Preflight, cause).remedy(
            "let it finish its build, fetch or installation, and try again; if another program \
             holds the lock, end that process",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::failure::ExitCode;

    #[tokio::test]
    async fn many_share_and_one_has_it_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let (first, second) = (
            store.lock_shared(Duration::ZERO).await.expect("free"),
            store.lock_shared(Duration::ZERO).await,
        );
        let failure = store.lock_exclusive(Duration::ZERO).await.expect_err("shared");
        assert_eq!(failure.code(), ExitCode::Preflight);
        drop((first, second));
        let alone = store.lock_exclusive(Duration::ZERO).await.expect("free again");
        store.take(LockKind::Shared, Duration::ZERO).await.expect_err("taken");
        drop(alone);
        store.lock_shared(Duration::ZERO).await.expect("free once more");
    }

    #[tokio::test]
    async fn a_stranger_who_holds_an_older_stores_lock_keeps_nobody_waiting_beyond_the_deadline() {
        use std::os::unix::fs::PermissionsExt;
        let dir = crate::testing::for_all();
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let path = dir.path().join("lock");
        std::fs::write(&path, "").expect("write");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("mode");
        crate::testing::loosen(dir.path(), dir.path());
        let holder = crate::testing::Holder::start(&path);
        let failure = store.lock_shared(Duration::from_millis(200)).await.expect_err("held");
        assert_eq!(failure.code(), ExitCode::Preflight);
        let said = failure.to_string();
        assert!(said.contains(&format!("held by pid {}, perl", holder.0.id())), "{said}");
    }
}
