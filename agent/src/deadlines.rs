//! Time limits of all that is waited for (docs/deadlines.md).

use std::time::Duration;

/// Time limit for looking at the processes that hold the driver, where no setting says otherwise.
pub const LOOK: Duration = Duration::from_secs(3);

/// How long each thing may take that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// The users of a driver that is to be taken off; then it is left as it is.
    pub users: Duration,
    /// One call that takes a module or a mount off; then it counts as hanging.
    pub unload: Duration,
    /// One call that loads a module, mounts something or makes a node; then it counts as hanging.
    pub load: Duration,
    /// Another agent on this host.
    pub lock: Duration,
    /// Looking at all processes for those that hold the driver.
    pub look: Duration,
    /// A program of a build, or another process that makes the same.
    pub build: Duration,
    /// The disk, to write what it was given.
    pub disk: Duration,
    /// Reading the host, and what a step of a change does beside what it waits for.
    pub step: Duration,
}

impl Default for Deadlines {
    /// A stop ends within Kubernetes' 30 s of grace. A load has no such bound: what brings up many
    /// GPUs may take long. Nor has a disk: 250 MB of modules on a slow one that others write to as
    /// well take tens of seconds.
    fn default() -> Self {
        let [unload, load, lock] = [20, 120, 60].map(Duration::from_secs);
        let [build, disk, step] = [60 * 60, 120, 5 * 60].map(Duration::from_secs);
        Self { users: unload, unload, load, lock, look: LOOK, build, disk, step }
    }
}
