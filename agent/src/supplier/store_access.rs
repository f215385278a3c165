//! Access to the store: opened once, and held against removals.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::config::Config;
use longshore_core::bounded_call::{self, NoResult};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;
use longshore_core::store::usage::StoreGuard;
use tempfile::TempDir;

/// The configured store.
pub(super) struct StoreAccess<'a> {
    config: &'a Config,
    /// Nothing is written to the store.
    read_only: bool,
    opened: OnceLock<Opened>,
    /// Shared lock that prevents removals from the store meanwhile.
    shared: Mutex<Option<StoreGuard>>,
}

/// An open store.
struct Opened {
    store: Store,
    /// Directory for what is written, where the store is only read; removed with this value.
    _scratch: Option<TempDir>,
}

impl<'a> StoreAccess<'a> {
    pub(super) fn new(config: &'a Config) -> Self {
        Self { config, read_only: false, opened: OnceLock::new(), shared: Mutex::default() }
    }

    /// Access for a command that only looks: the store stays as it is, also where there is none yet, and fetched
    /// indexes go to a temporary directory.
    pub(super) fn read_only(config: &'a Config) -> Self {
        Self { read_only: true, ..Self::new(config) }
    }

    /// Opens the store.
    ///
    /// # Errors
    /// Exit code 15 where it is not writable.
    pub(super) fn open(&self) -> Result<Store, Failure> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.store.clone());
        }
        let opened = self.opener()()?;
        Ok(self.opened.get_or_init(|| opened).store.clone())
    }

    /// Like [`StoreAccess::open`], but does not hang with its disk.
    pub(super) async fn open_in_time(&self) -> Result<Store, Failure> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.store.clone());
        }
        let opened = self.in_time(self.opener()).await?;
        Ok(self.opened.get_or_init(|| opened).store.clone())
    }

    /// Returns the call that opens the store.
    fn opener(&self) -> impl FnOnce() -> Result<Opened, Failure> + Send + use<> {
        let (root, disk) = (self.config.paths.store.clone(), self.config.disk());
        let read_only = self.read_only;
        move || {
            if !read_only {
                return Ok(Opened { store: Store::open(&root, disk)?, _scratch: None });
            }
            let made = tempfile::Builder::new().prefix("longshore-plan-").tempdir();
            let scratch =
                made.or_fail(FailureKind::Preflight, || "making a temporary directory").map_err(
                    |failure| failure.remedy("set TMPDIR to a directory that can be written"),
                )?;
            let store = Store::open_read_only(&root, scratch.path(), disk)?;
            Ok(Opened { store, _scratch: Some(scratch) })
        }
    }

    /// Runs `read` on the host and the store within `step-deadline`.
    pub(super) async fn in_time<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let limit = self.config.deadlines.step;
        match bounded_call::off_runtime(limit, read).await {
            Err(NoResult::Late) => Err(self.unanswered(limit)),
            read => read.or_fail(FailureKind::Bug, || "reading the host")?,
        }
    }

    /// Takes the store's shared lock, so that nothing is removed from it from now on.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be opened, or another process removes from it for too
    /// long.
    pub(super) async fn share(&self) -> Result<(), Failure> {
        if self.lock().is_some() {
            return Ok(());
        }
        let shared = self.open()?.lock_shared(self.config.deadlines.lock).await?;
        *self.lock() = Some(shared);
        Ok(())
    }

    /// Releases the shared lock.
    pub(super) fn release(&self) {
        drop(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<StoreGuard>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the failure of an unanswered read; the hanging thread is left behind.
    fn unanswered(&self, limit: Duration) -> Failure {
        let cause = format!(
            "reading the host and the store has not come to its end in {} s: the kernel, a disk or a \
             file system does not answer (the store is {})",
            limit.as_secs_f64(),
            self.config.paths.store.display()
        );
        Failure::new(FailureKind::Preflight, cause).remedy(
            "see the kernel's log (dmesg) for what does not answer; where the host is only slow, give \
             it more time (step-deadline)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Fragment};
    use longshore_core::failure::ExitCode;

    #[tokio::test]
    async fn the_store_is_opened_once_and_held_until_it_is_released() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = config::load(Fragment::default(), &|_| None, None).expect("a default");
        config.paths.store = dir.path().join("store");
        let access = StoreAccess::new(&config);
        let store = access.open_in_time().await.expect("opens");
        assert_eq!(access.open().expect("is open").root(), store.root());
        access.share().await.expect("shared");
        access.share().await.expect("still shared");
        assert!(store.lock_exclusive(Duration::ZERO).await.is_err(), "it is held");
        access.release();
        store.lock_exclusive(Duration::ZERO).await.expect("no longer held");
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_made_is_no_store() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::write(dir.path().join("file"), "").expect("a file");
        let mut config = config::load(Fragment::default(), &|_| None, None).expect("a default");
        config.paths.store = dir.path().join("file/store");
        let access = StoreAccess::new(&config);
        for failure in [access.open().err(), access.open_in_time().await.err()] {
            assert_eq!(failure.map(|f| f.code()), Some(ExitCode::Preflight));
        }
    }
}
