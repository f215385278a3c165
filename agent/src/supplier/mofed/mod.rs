//! MOFED's headers on this host: of its container, or of the host itself.

use std::path::PathBuf;

use crate::config::Config;
use longshore_build::mofed::Mofed;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_host::facts::Probe;

/// Root of the file system of MOFED's container.
const CONTAINER: &str = "run/mellanox/drivers";
/// File by which that container says that its driver, headers and all, is there.
const READY: &str = ".driver-ready";

/// Reads the headers for a kernel, where GPUDirect RDMA is on.
pub(super) fn look(config: &Config, release: &str) -> Probe<Option<Mofed>> {
    let Some(root) = root(config) else { return Probe::Read(None) };
    match Mofed::find(&root, release, std::env::consts::ARCH) {
        Ok(found) => Probe::Read(found),
        Err(why) => Probe::Unreadable(format!("{}: {why}", root.display())),
    }
}

/// Returns the root of the file system that has MOFED; None where it is not wanted, or not ready.
fn root(config: &Config) -> Option<PathBuf> {
    let (operator, paths) = (&config.operator, &config.paths);
    let container = paths.root.join(CONTAINER);
    match (operator.rdma, operator.host_mofed) {
        (true, true) => Some(paths.host_root.clone()),
        (true, false) => container.join(READY).symlink_metadata().is_ok().then_some(container),
        (false, _) => None,
    }
}

/// Returns the headers for a compile by command, with a warning where they are unusable.
///
/// # Errors
/// A bug, where reading panics.
pub(super) async fn of_host(config: &Config, release: &str) -> Result<Option<Mofed>, Failure> {
    let (config, release) = (config.clone(), release.to_owned());
    let read = tokio::task::spawn_blocking(move || look(&config, &release)).await;
    match read.or_fail(FailureKind::Bug, || "reading MOFED's headers")? {
        Probe::Read(found) => Ok(found),
        Probe::Unreadable(why) => {
            tracing::warn!("compiling without MOFED's headers: {why}");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
