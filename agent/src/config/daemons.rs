//! Which daemons of the driver run.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::values::Span;

/// Whether a daemon is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// Where the driver has it and the host has a use for it.
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

/// Which daemons of the driver run, and how long they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaemonConfig {
    /// nvidia-persistenced.
    pub persistenced: Wish,
    /// nv-fabricmanager, and nvlsm where that is needed.
    pub fabricmanager: Wish,
    /// How long each may take until it answers.
    pub deadline: Duration,
}

/// The same as one place says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DaemonFragment {
    /// Run nvidia-persistenced: auto (where the driver has it), on or off
    #[arg(long, global = true, value_name = "WISH")]
    pub persistenced: Option<Wish>,
    /// Run nv-fabricmanager: auto (on hosts with NVSwitches), on or off
    #[arg(long, global = true, value_name = "WISH")]
    pub fabricmanager: Option<Wish>,
    /// How long a daemon may take until it answers
    #[arg(long = "daemon-deadline", global = true, value_name = "SPAN")]
    pub deadline: Option<Span>,
}

/// The fabric of a large host takes most of this to come up.
const DEADLINE: Duration = Duration::from_secs(120);

impl DaemonFragment {
    /// This with what it leaves open taken from `below`.
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
