//! The working directory of a build.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::root::in_thread;
use super::sandbox::Held;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_sources::driver::{self, AvailableDriver};
use longshore_sources::driver_source::DriverSource;
use longshore_sources::packaging_patches::PackagingPatches;

/// A temporary directory of the store:
///
/// ```text
/// package/    contents of the driver's package
/// build/      /build inside the sandbox
///   driver/   the kernel sources
///   tmp/      /tmp inside
/// ```
pub(super) struct Work {
    /// Shared with the unpacking thread, which may outlive a cancelled build; removed when both
    /// have finished.
    dir: Arc<ScratchDir>,
}

impl Work {
    pub(super) fn new(store: &Store) -> Result<Self, Failure> {
        let dir = claim(store, "build")?;
        for sub in ["package", "build/tmp"] {
            let path = dir.path().join(sub);
            fs::create_dir_all(&path).map_err(|e| write_failure(&path, e))?;
        }
        Ok(Self { dir: Arc::new(dir) })
    }

    /// Returns the directory bound to /build in the sandbox.
    pub(super) fn dir(&self) -> PathBuf {
        self.dir.path().join("build")
    }

    /// Returns a handle that keeps the directory while a process may write to it.
    pub(super) fn held(&self) -> Held {
        Some(Arc::clone(&self.dir) as _)
    }

    /// Returns the directory into which [`Work::unpack`] puts the kernel sources.
    pub(super) fn sources(&self) -> PathBuf {
        self.dir().join("driver")
    }

    /// Unpacks the kernel sources of `driver` into `driver`, and checks that they are of its
    /// version. Returns the patches of their package that were applied.
    pub(super) async fn unpack(
        &self,
        source: &DriverSource,
        driver: &AvailableDriver,
        store: &Store,
    ) -> Result<Option<PackagingPatches>, Failure> {
        let what = format!("unpacking {}", source.describe());
        let (dir, source, store) = (Arc::clone(&self.dir), source.clone(), store.clone());
        let driver = driver.clone();
        in_thread(&what, move || unpack(dir.path(), &source, &driver, &store)).await
    }

    /// Removes the directory; a leftover is removed by the next build.
    pub(super) fn remove(self) {
        ScratchDir::remove(self.dir);
    }
}

fn unpack(
    dir: &Path,
    source: &DriverSource,
    wanted: &AvailableDriver,
    store: &Store,
) -> Result<Option<PackagingPatches>, Failure> {
    let sources = source.unpack(wanted.flavour, store, &dir.join("package"))?;
    let stated = driver::stated_version(&sources.dir)?;
    if let Some(stated) = stated.filter(|stated| *stated != wanted.version) {
        let (name, version) = (source.describe(), &wanted.version);
        let cause = format!("the sources in {name} say they are {stated}, not {version}");
        return Err(Failure::new(FailureKind::Verification, cause));
    }
    let target = dir.join("build/driver");
    fs::rename(&sources.dir, &target).map_err(|e| write_failure(&target, e))?;
    Ok(sources.packaging_patches)
}
