//! Facts of the configured host, also as if another kernel ran on it.

use crate::config::Config;
use crate::journal::{self, State};
use longshore_core::failure::Failure;
use longshore_core::paths::Paths;
use longshore_core::root::Root;
use longshore_host::HostFacts;
use longshore_host::facts::kernel_image;

/// Reads the facts of the configured host, and which of its parts an agent installed.
pub(super) fn read_host(config: &Config) -> Result<HostFacts, Failure> {
    let paths = &config.paths;
    read_host_with(paths, || match paths.is_captured() {
        true => Ok(None),
        false => journal::read_state(paths),
    })
}

/// Reads the facts of the host, and which of its modules an agent loaded by the record that `record` reads.
///
/// # Errors
/// Exit code 10 where the kernel's release cannot be read; those of `record`.
pub(crate) fn read_host_with(
    paths: &Paths,
    record: impl FnOnce() -> Result<Option<State>, Failure>,
) -> Result<HostFacts, Failure> {
    let mut facts = HostFacts::read(&paths.root, &paths.host_root)?;
    if let Some(state) = record()?
        && !state.is_of_another_boot(facts.kernel.boot_id.as_deref())
    {
        facts.ours = state.driver_modules(&facts.loaded);
    }
    Ok(facts.with_places(paths, &journal::recorded(paths)))
}

/// Returns the facts of the host as if the kernel `release` ran on it. The build of another kernel than the
/// running one is known where it is installed and its image states it, and else empty.
pub(super) fn with_kernel(mut facts: HostFacts, paths: &Paths, release: &str) -> HostFacts {
    if facts.kernel.release != release {
        release.clone_into(&mut facts.kernel.release);
        facts.kernel.version = installed_version(paths, release).unwrap_or_default();
        facts.live_driver = None;
        // /proc/version is the running kernel's.
        facts.kernel.compiler = None;
    }
    facts
}

/// Returns `uname -v` of a kernel that is installed on the host, by its image.
pub(super) fn installed_version(paths: &Paths, release: &str) -> Option<String> {
    kernel_image::version(&Root::open(&paths.host_root).ok()?, release)
}
