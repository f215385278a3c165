//! Settings of the driver's daemons.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::values::Span;

/// Mode of a daemon: automatic, on or off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// Run where the driver has it and the host has a use for it.
    #[default]
    Auto,
    /// Always: the driver is not ready without it.
    On,
    /// Never.
    Off,
}

impl FromStr for Wish {
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
    pub persistenced: Wish,
    /// nv-fabricmanager, and nvlsm where that is needed.
    pub fabricmanager: Wish,
    /// Time limit for each daemon to answer after its start.
    pub deadline: Duration,
}

/// Daemon settings of one configuration layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DaemonFragment {
    /// Run nvidia-persistenced: auto (where the driver has it), on or off
    #[arg(long, global = true, value_name = "WISH")]
    pub persistenced: Option<Wish>,
    /// Run nv-fabricmanager: auto (on hosts with NVSwitches), on or off
    #[arg(long, global = true, value_name = "WISH")]
    pub fabricmanager: Option<Wish>,
    /// Time limit for each daemon to answer after its start
    #[arg(long = "daemon-deadline", global = true, value_name = "SPAN")]
    pub deadline: Option<Span>,
}

/// Bringing up the fabric of a large host takes most of this.
const DEADLINE: Duration = Duration::from_secs(120);

impl DaemonFragment {
    /// Returns this fragment, with unset settings taken from `below`.
    pub(super) fn over(self, below: Self) -> Self {
        Self {
            persistenced: self.persistenced.or(below.persistenced),
            fabricmanager: self.fabricmanager.or(below.fabricmanager),
            deadline: self.deadline.or(below.deadline),
        }
    }

    pub(super) fn settle(self) -> DaemonConfig {
        DaemonConfig {
            persistenced: self.persistenced.unwrap_or_default(),
            fabricmanager: self.fabricmanager.unwrap_or_default(),
            deadline: self.deadline.map_or(DEADLINE, Span::duration),
        }
    }
}
