//! Settings of the driver's daemons.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::layer::settings;
use super::values::{BoundedDuration, Reaction};

/// Mode of a daemon: automatic, on or off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Run where the driver has it and the host has a use for it.
    #[default]
    Auto,
    /// Always: the driver is not ready without it.
    On,
    /// Never.
    Off,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" | "true" => Ok(Self::On),
            "off" | "false" => Ok(Self::Off),
            _ => Err(format!("`{text}` is not auto, on or off")),
        }
    }
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

    /// Run nvidia-persistenced: auto (where the driver has it), on or off
    persistenced: Option<Mode>;
        key "persistenced" flag "persistenced" "WISH" env "LONGSHORE_PERSISTENCED"
        default "`auto`"
        means "run nvidia-persistenced: `auto` (where the driver has it), `on`, `off`; see [daemons.md](../operate/daemons.md)"
    /// Run nv-fabricmanager: auto (on hosts with NVSwitches), on or off
    fabricmanager: Option<Mode>;
        key "fabricmanager" flag "fabricmanager" "WISH" env "LONGSHORE_FABRICMANAGER"
        default "`auto`"
        means "run nv-fabricmanager: `auto` (on hosts with NVSwitches), `on`, `off`"
    /// Reaction to NVSwitches without a fabric manager of the driver's version: refuse or warn
    fabric_manager_missing: Option<Reaction>;
        key "fabric-manager-missing" flag "fabric-manager-missing" "refuse|warn"
        env "LONGSHORE_FABRIC_MANAGER_MISSING"
        default "`refuse`"
        means "reaction to NVSwitches for whose driver version no source has nv-fabricmanager ([fabric-manager-missing](errors.md#fabric-manager-missing)): `refuse` ends with exit code 15 before anything is loaded, where the switches connect GPUs that this driver would drive; `warn` installs the driver all the same"
    /// Time limit for each daemon to answer after its start
    deadline: Option<BoundedDuration>;
        key "deadline" flag "daemon-deadline" "SPAN" env "LONGSHORE_DAEMON_DEADLINE"
        default "`2m`"
        means "time limit for each daemon to answer after its start; `0s` to `1h`"
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
