//! The store while a supplier works with it, and once the driver is installed.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use super::Supplier;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::journal::PlanSummary;
use crate::step::Step;
use crate::upkeep::gc::{self, Needed, Report};
use crate::upkeep::history;

/// How long somebody else at work with the store is waited for: they will do the same.
const PATIENCE: Duration = Duration::from_secs(1);

impl Supplier<'_> {
    /// From now on nothing is removed from the store that this supplier finds there.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be opened, or somebody removes things for ever.
    pub(super) async fn share_store(&self) -> Result<(), Failure> {
        let is_shared = || self.in_use.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_shared() {
            return Ok(());
        }
        let shared = self.store()?.share().await?;
        *self.in_use.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
        Ok(())
    }

    /// Remembers what is installed, and removes what is not needed where the store has grown beyond
    /// its bound. The driver is there: what fails here is a warning.
    pub(super) async fn look_after_store(&self, plan: &PlanSummary, steps: &[Step]) {
        let recorded =
            self.store().and_then(|store| history::record(&store, history::installed(plan, steps)));
        if let Err(failure) = recorded {
            tracing::warn!("not remembering what is installed: {}", failure.one_line());
        }
        drop(self.in_use.lock().unwrap_or_else(PoisonError::into_inner).take());
        match self.collect().await {
            Ok(Some(report)) if !report.removed.is_empty() => tracing::info!(
                "removed {} things from the store: {} MiB before, {} MiB after",
                report.removed.len(),
                report.before >> 20,
                report.after >> 20
            ),
            Ok(_) => {}
            Err(failure) => tracing::warn!("the store stays as it is: {}", failure.one_line()),
        }
    }

    /// None where there is no bound.
    async fn collect(&self) -> Result<Option<Report>, Failure> {
        let Some(bound) = self.config.store_max_size else { return Ok(None) };
        let store = self.store()?;
        let alone = store.alone(PATIENCE).await?;
        let paths = self.config.paths.clone();
        let work = move || {
            // Held in here: the thread outlives a caller who is stopped.
            let _alone = alone;
            let needed = Needed::of(&store, &paths)?;
            gc::decide(&store, &needed, Some(bound), SystemTime::now())?.carry_out(&store)
        };
        let work = tokio::task::spawn_blocking(work);
        work.await.or_fail(ExitCode::Bug, || "removing from the store")?.map(Some)
    }
}
