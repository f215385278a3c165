//! Places that have core objects which were compiled elsewhere, as a build sees them.

use std::fmt::Debug;

use futures_util::future::BoxFuture;

use longshore_core::failure::Failure;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_modules::artifact::core_objects::CoreQuery;
use longshore_modules::sets::core_objects::StoredCore;

/// Source of core objects that were compiled elsewhere, and judge of those that it had.
pub trait CoreSource: Debug + Send + Sync {
    /// Fetches core objects into the store, verified, and without their record; None where no place has them. A place
    /// that fails is warned of here, with the reason: then they are compiled.
    ///
    /// # Errors
    /// Exit code 15 where the store cannot be written.
    fn fetch<'a>(
        &'a self,
        asked: &'a CoreQuery,
        store: &'a Store,
        progress: &'a dyn Progress,
    ) -> BoxFuture<'a, Result<Option<StoredCore>, Failure>>;

    /// Checks that core objects which were fetched earlier still count.
    ///
    /// # Errors
    /// The reason why they do not.
    fn check(&self, core: &StoredCore) -> Result<(), String>;
}
