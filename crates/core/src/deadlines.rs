//! Time limits of all that is waited for (docs/reference/deadlines.md).

use std::time::Duration;

/// Time limit for looking at the processes that hold the driver, where no setting says otherwise.
pub const LOOK: Duration = Duration::from_secs(3);

/// Time limits of everything that longshore waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For processes that use a driver which is to be uninstalled; afterwards the driver is left as
    /// it is.
    pub users: Duration,
    /// For each call that unloads a module or unmounts; afterwards it counts as hung.
    pub unload: Duration,
    /// For each call that loads a module, mounts, or makes a device node; afterwards it counts as
    /// hung.
    pub load: Duration,
    /// For another agent on this host.
    pub lock: Duration,
    /// For searching all processes for those that hold the driver.
    pub look: Duration,
    /// For each build program, and for another process that builds the same modules.
    pub build: Duration,
    /// For the disk to write buffered data (fsync).
    pub disk: Duration,
    /// For probing the host, and for the agent's own part of each step.
    pub step: Duration,
}

impl Default for Deadlines {
    /// `unload` keeps a stop within Kubernetes' grace period of 30 s. A load has no such bound:
    /// bringing up many GPUs may take long. Nor has a disk: 250 MB of modules on a slow disk that
    /// others write to take tens of seconds.
    fn default() -> Self {
        let [unload, load, lock] = [20, 120, 60].map(Duration::from_secs);
        let [build, disk, step] = [60 * 60, 120, 5 * 60].map(Duration::from_secs);
        Self { users: unload, unload, load, lock, look: LOOK, build, disk, step }
    }
}
