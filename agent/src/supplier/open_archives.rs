//! Access to archives that are opened when they are needed.

use longshore_core::failure::Failure;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;

/// Access to the archives: a .run file of an unknown format is unpacked by itself, with tools from
/// there.
pub(super) trait OpenArchives {
    /// Reads the archives' indexes, once.
    async fn archive(&self, store: &Store) -> Result<&Archive, Failure>;
    /// Returns the progress display.
    fn progress(&self) -> &dyn Progress;
}
