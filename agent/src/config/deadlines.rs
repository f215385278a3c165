//! How long each thing may take that is waited for while a host is changed
//! (docs/deadlines.md).

use std::time::Duration;

use super::values::{OnBusy, Span};
use crate::host::real::LOOK;

/// How long each thing may take that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// The users of a driver that is to be taken off; then it is left as it is.
    pub users: Duration,
    /// One call that takes a module or a mount off; then it counts as hanging.
    pub unload: Duration,
    /// One call that loads a module; then it counts as hanging.
    pub load: Duration,
    /// Another agent on this host.
    pub lock: Duration,
    /// Looking at all processes for those that hold the driver.
    pub look: Duration,
}

impl Default for Deadlines {
    /// A stop ends within Kubernetes' 30 s of grace. A load has no such bound: what brings up many
    /// GPUs may take long.
    fn default() -> Self {
        let unload = Duration::from_secs(20);
        let (load, lock) = (Duration::from_secs(120), Duration::from_secs(60));
        Self { users: unload, unload, load, lock, look: LOOK }
    }
}

impl Deadlines {
    pub(super) fn settle(
        on_busy: Option<OnBusy>,
        unload: Option<Span>,
        load: Option<Span>,
        lock: Option<Span>,
        look: Option<Span>,
    ) -> Self {
        let default = Self::default();
        let or = |span: Option<Span>, default| span.map_or(default, Span::duration);
        let unload_said = or(unload, default.unload);
        Self {
            users: on_busy.unwrap_or(OnBusy::Wait(None)).users_deadline(unload_said),
            // A module that is given no time at all would count as hanging.
            unload: unload_said.max(LEAST),
            load: or(load, default.load).max(LEAST),
            lock: or(lock, default.lock),
            look: or(look, default.look),
        }
    }
}

/// What a call into the kernel is given at least: removing nvidia takes seconds on a host with many
/// GPUs.
const LEAST: Duration = Duration::from_secs(5);
