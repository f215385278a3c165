//! The directory a build works in.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::{Claimed, claim};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::source::archive::Package;
use crate::source::driver;
use crate::store::{Store, write_failure};

/// A temporary directory of the store:
///
/// ```text
/// package/    what the driver's package holds
/// build/      /build inside the sandbox
///   driver/   the kernel sources
///   tmp/      /tmp inside
/// ```
pub(super) struct Work {
    /// Shared with the thread that unpacks: it may outlive a cancelled build, and the directory
    /// goes when both are done with it.
    dir: Arc<Claimed>,
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

    /// What the sandbox sees as /build.
    pub(super) fn dir(&self) -> PathBuf {
        self.dir.path().join("build")
    }

    /// Puts the kernel sources of `package` into `driver`, and checks that they are of `version`.
    pub(super) async fn unpack(
        &self,
        package: &Package,
        version: &str,
        store: &Store,
    ) -> Result<(), Failure> {
        let what = format!("unpacking {} {}", package.name, package.version);
        let (dir, package, store) = (Arc::clone(&self.dir), package.clone(), store.clone());
        let version = version.to_owned();
        tokio::task::spawn_blocking(move || unpack(dir.path(), &package, &version, &store))
            .await
            .or_fail(ExitCode::Bug, || what)?
    }

    /// Removes the directory; what cannot be removed now is by the next build.
    pub(super) fn remove(self) {
        let path = self.dir.path().to_path_buf();
        let removed = Arc::into_inner(self.dir).map(Claimed::close);
        if let Some(Err(error)) = removed {
            tracing::warn!("removing {}: {error}", path.display());
        }
    }
}

fn unpack(dir: &Path, package: &Package, version: &str, store: &Store) -> Result<(), Failure> {
    let sources = driver::unpack_sources(package, store, &dir.join("package"))?;
    let stated = driver::stated_version(&sources)?;
    if stated.as_deref().is_some_and(|stated| stated != version) {
        return Err(Failure::new(
            ExitCode::Verification,
            format!(
                "the sources in {} {} say they are {}, not {version}",
                package.name,
                package.version,
                stated.unwrap_or_default()
            ),
        ));
    }
    let target = dir.join("build/driver");
    fs::rename(&sources, &target).map_err(|e| write_failure(&target, e))
}
