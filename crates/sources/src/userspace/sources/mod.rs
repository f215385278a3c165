//! Kernel sources of a driver in its user-mode tree: other programs compile their modules against
//! them, below the driver root.
//!
//! ```text
//! usr/src/nvidia-VERSION/            the directory that the modules are compiled from: Kbuild,
//!                                    conftest.sh, common/inc/, nvidia/, nvidia-uvm/, ...
//! ```

use std::fs::{self, FileType, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::manifest::PackageUsed;
use crate::driver;
use crate::driver_source::DriverSource;
use crate::runfile::StoredRunFile;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::scratch::claim;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};

/// Maximum number of paths; the sources of today's drivers have less than 500.
const MOST_PATHS: usize = 10_000;

/// Consequence of missing sources.
const NONE_EXPOSED: &str = "its sources cannot be exposed to GPUDirect Storage and GDRCopy";

/// Kernel sources to add to a tree.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    from: DriverSource,
    flavour: Flavour,
}

/// Returns the directory of a driver's sources below a driver root.
pub fn directory(driver_version: &str) -> PathBuf {
    Path::new("usr/src").join(format!("nvidia-{driver_version}"))
}

impl Sources {
    /// Returns the sources in an archive's package of exactly this driver.
    ///
    /// # Errors
    /// Exit code 12 where the archive has none.
    pub(super) fn in_archive(
        version: &str,
        flavour: Flavour,
        archive: &Archive,
    ) -> Result<Self, Failure> {
        let mut drivers = driver::drivers(archive);
        drivers.retain(|driver| driver.version == version);
        let found = driver::find(&drivers, Some(version), Some(flavour))
            .map_err(|failure| failure.with_consequence(NONE_EXPOSED))?;
        Ok(Self::in_package(driver::package(archive, &found)?, flavour))
    }

    /// Returns the sources in this package.
    pub(super) fn in_package(package: Package, flavour: Flavour) -> Self {
        Self { from: DriverSource::Package(package), flavour }
    }

    /// Returns the sources in an unpacked .run file.
    pub(super) fn of_run_file(file: &StoredRunFile, flavour: Flavour) -> Self {
        Self { from: DriverSource::RunFile(file.clone()), flavour }
    }

    pub(super) fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Returns the package to fetch first.
    pub(super) fn package(&self) -> Option<&Package> {
        self.from.package()
    }

    /// Returns the package to name in the manifest; a .run file is named for its other files.
    pub(super) fn used(&self) -> Option<PackageUsed> {
        self.package().map(PackageUsed::from_package)
    }

    /// Puts the sources into the driver root `root` in `store`.
    ///
    /// # Errors
    /// Exit code 12 where a .run file has none of this flavour, 13 where they are damaged, of another
    /// version or have forbidden contents, 15 where the store cannot be written.
    pub(super) fn put(&self, version: &str, store: &Store, root: &Path) -> Result<(), Failure> {
        let scratch = claim(store, "sources")?;
        let into = scratch.path().join("unpacked");
        fs::create_dir(&into).map_err(|e| write_failure(&into, e))?;
        let unpacked = self.from.unpack(self.flavour, store, &into)?.dir;
        self.make_plain(&unpacked)?;
        self.check_version(&unpacked, version)?;
        let target = root.join(directory(version));
        let parent = target.parent().unwrap_or(root);
        fs::create_dir_all(parent).map_err(|e| write_failure(parent, e))?;
        fs::rename(&unpacked, &target).map_err(|e| write_failure(&target, e))?;
        scratch.close().map_err(|e| write_failure(&into, e))
    }

    fn check_version(&self, sources: &Path, version: &str) -> Result<(), Failure> {
        match driver::stated_version(sources)? {
            Some(stated) if stated == version => Ok(()),
            Some(stated) => Err(self.bad(&format!("they are of {stated}, not {version}"))),
            None => Err(self.bad("their Kbuild states no version")),
        }
    }

    /// Gives every path the same modes for all users, and checks that it can be in a manifest and that
    /// no link leads out.
    fn make_plain(&self, sources: &Path) -> Result<(), Failure> {
        let mut left = vec![sources.to_path_buf()];
        let mut paths = 0;
        while let Some(path) = left.pop() {
            paths += 1;
            if paths > MOST_PATHS {
                return Err(self.bad(&format!("they have more than {MOST_PATHS} paths")));
            }
            if path.to_str().is_none() {
                return Err(self.bad(&format!("{} is no text", path.display())));
            }
            let kind = self.make_one_plain(&path)?;
            if kind.is_dir() {
                left.extend(driver::entries(&path)?);
            }
        }
        Ok(())
    }

    fn make_one_plain(&self, path: &Path) -> Result<FileType, Failure> {
        let failed = |e| write_failure(path, e);
        let found = fs::symlink_metadata(path).map_err(failed)?;
        if found.is_symlink() {
            let target = fs::read_link(path).map_err(failed)?;
            if !leads_down(&target) {
                let (path, target) = (path.display(), target.display());
                return Err(self.bad(&format!("{path} is a link to {target}")));
            }
            return Ok(found.file_type());
        }
        let is_program = found.is_dir() || found.permissions().mode() & 0o111 != 0;
        let mode = if is_program { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        Ok(found.file_type())
    }

    fn bad(&self, why: &str) -> Failure {
        let cause = format!("the sources in {} cannot be exposed: {why}", self.from.describe());
        Failure::new(FailureKind::Verification, cause)
            .remedy("report it to where they came from; without GDS and GDRCopy none are exposed")
    }
}

/// True for a link's target that stays below the link's directory, through any other such links.
fn leads_down(target: &Path) -> bool {
    !target.as_os_str().is_empty()
        && target.components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests;
