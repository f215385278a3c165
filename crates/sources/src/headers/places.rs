//! Headers beside those of the archives.

use std::path::PathBuf;

/// Locations searched for headers beside the archives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderPlaces {
    /// Directories and tar files that the configuration names, in order of preference.
    pub given: Vec<PathBuf>,
    /// Root of the host's own file system; None does not look there.
    pub host_root: Option<PathBuf>,
}
