//! Settings of the driver's daemons.

use std::time::Duration;

use serde::Deserialize;

use super::layer::settings;
use super::values::{BoundedDuration, Reaction, words};

/// Mode of a daemon: automatic, on or off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Mode {
    /// Run where the driver has it and the host has a use for it.
    #[default]
    Auto,
    /// Always: the driver is not ready without it.
    On,
    /// Never.
    Off,
}

words! {
    Mode, "auto, on or off";
    "auto" => Self::Auto,
    "on" | "true" => Self::On,
    "off" | "false" => Self::Off,
}

/// Modes and time limit of the driver's daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaemonConfig {
    /// nvidia-persistenced.
    pub persistenced: Mode,
    /// nv-fabricmanager, and nvlsm where that is needed.
    pub fabricmanager: Mode,
    /// Reaction to NVSwitches for whose driver no source has a fabric manager.
    pub fabric_manager_missing: Reaction,
    /// Time limit for each daemon to answer after its start.
    pub deadline: Duration,
}

settings! {
    /// Daemon settings of one configuration layer.
    DaemonFragment;

    /// Run nvidia-persistenced: `auto`, `on` or `off`
    ///
    /// `auto` runs it where the driver has it: [daemons.md](../operate/daemons.md).
    persistenced: Option<Mode>;
        key "persistenced" flag "persistenced" "auto|on|off" env "LONGSHORE_PERSISTENCED"
        default "`auto`"
    /// Run nv-fabricmanager: `auto`, `on` or `off`
    ///
    /// `auto` runs it on hosts with NVSwitches.
    fabricmanager: Option<Mode>;
        key "fabricmanager" flag "fabricmanager" "auto|on|off" env "LONGSHORE_FABRICMANAGER"
        default "`auto`"
    /// Reaction to NVSwitches without a fabric manager
    ///
    /// No source has nv-fabricmanager of the driver's version
    /// ([fabric-manager-missing](errors.md#fabric-manager-missing)): `refuse` ends with exit code
    /// 15 before anything is loaded, where the switches connect GPUs that this driver would drive;
    /// `warn` installs the driver all the same.
    fabric_manager_missing: Option<Reaction>;
        key "fabric-manager-missing" flag "fabric-manager-missing" "refuse|warn"
        env "LONGSHORE_FABRIC_MANAGER_MISSING"
        default "`refuse`"
    /// Time limit for each daemon to answer after its start
    ///
    /// `0s` to `1h`.
    deadline: Option<BoundedDuration>;
        key "deadline" flag "daemon-deadline" "SPAN" env "LONGSHORE_DAEMON_DEADLINE"
        default "`2m`"
}

/// Bringing up the fabric of a large host takes most of this.
const DEADLINE: Duration = Duration::from_secs(120);

impl DaemonFragment {
    pub(super) fn with_defaults(self) -> DaemonConfig {
        DaemonConfig {
            persistenced: self.persistenced.unwrap_or_default(),
            fabricmanager: self.fabricmanager.unwrap_or_default(),
            fabric_manager_missing: self.fabric_manager_missing.unwrap_or(Reaction::Refuse),
            deadline: self.deadline.map_or(DEADLINE, BoundedDuration::duration),
        }
    }
}
