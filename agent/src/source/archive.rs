//! Debian-format archives: open, look up, resolve, fetch.

use std::path::Path;

use crate::config::ArchiveConfig;
use crate::failure::{ExitCode, Failure};
use crate::progress::Progress;
use crate::store::Store;

pub use super::packages::Package;
pub use super::relation::Requirement;
pub use super::resolve::Unsatisfiable;

/// The indexes of every source, read and verified.
#[derive(Debug)]
pub struct Archive {}

impl Archive {
    /// Reads the sources of `config`, and the host's apt sources below `host_root` where it says so.
    ///
    /// # Errors
    /// Exit code 2 for sources that make no sense, 12 for what cannot be downloaded, 13 for what
    /// does not verify, 15 for a store that cannot be written.
    pub async fn open(
        _config: &ArchiveConfig,
        _host_root: &Path,
        _store: &Store,
        _progress: &dyn Progress,
    ) -> Result<Self, Failure> {
        Err(Failure::new(ExitCode::Download, "no archive is configured"))
    }

    /// All versions of a package, newest first; real names only.
    pub fn packages(&self, _name: &str) -> Vec<Package> {
        Vec::new()
    }

    /// Names of packages for which `pred` holds, sorted.
    pub fn names_matching(&self, _pred: &dyn Fn(&str) -> bool) -> Vec<String> {
        Vec::new()
    }

    /// The packages that satisfy `roots` and everything they depend on (Pre-Depends and Depends),
    /// one version of each name; the roots come first.
    ///
    /// A dependency is taken from the release of the package that asks for it where that has it,
    /// else from anywhere, and there the highest version that will do. The first root decides the
    /// release of the roots after it.
    ///
    /// # Errors
    /// Names the chain of packages that leads to what is not to be had.
    pub fn closure(&self, _roots: &[Requirement]) -> Result<Vec<Package>, Unsatisfiable> {
        Ok(Vec::new())
    }

    /// Brings packages into the store as blobs by their sha256; what is there and verifies is not
    /// fetched again.
    ///
    /// # Errors
    /// Exit code 12 for what cannot be downloaded, 13 for what is not what the index says, 15 for
    /// a store that is full or cannot be written.
    pub async fn fetch(
        &self,
        _packages: &[Package],
        _store: &Store,
        _progress: &dyn Progress,
    ) -> Result<(), Failure> {
        Ok(())
    }
}
