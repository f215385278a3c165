//! What every code says, whatever was seen: the form of the table's rows.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Code, Severity};
use crate::failure::ExitCode;

/// What a code is about. Findings are grouped by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// Machine, architecture and the devices on its bus.
    Devices,
    /// What the kernel is, has and was built with.
    Kernel,
    /// What this process may do.
    Privileges,
    /// What the kernel asks of a module's signature.
    Signatures,
    /// What else drives, or is to drive, the same devices.
    OtherDrivers,
    /// Mounts, directories and the room in them.
    Places,
    /// Where driver, modules and headers come from.
    Sources,
    /// Settings that do nothing.
    Configuration,
    /// The store, the record, and the agents before this one.
    Agent,
}

impl Area {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Area; 9] = [
        Area::Devices,
        Area::Kernel,
        Area::Privileges,
        Area::Signatures,
        Area::OtherDrivers,
        Area::Places,
        Area::Sources,
        Area::Configuration,
        Area::Agent,
    ];

    /// The heading over its findings.
    pub fn title(self) -> &'static str {
        match self {
            Area::Devices => "Devices",
            Area::Kernel => "Kernel",
            Area::Privileges => "Privileges",
            Area::Signatures => "Signatures",
            Area::OtherDrivers => "Other drivers",
            Area::Places => "Places",
            Area::Sources => "Sources",
            Area::Configuration => "Configuration",
            Area::Agent => "Agent",
        }
    }
}

/// Which severities findings of a code can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severities {
    /// It always refuses.
    Refuses,
    /// It refuses, or warns where the plan may still succeed.
    RefusesOrWarns,
    /// It always warns.
    Warns,
    /// It is only said.
    Notes,
}

impl Severities {
    /// Whether a finding can be so grave.
    pub fn has(self, severity: Severity) -> bool {
        match severity {
            Severity::Refusal => matches!(self, Self::Refuses | Self::RefusesOrWarns),
            Severity::Warning => matches!(self, Self::Warns | Self::RefusesOrWarns),
            Severity::Note => self == Self::Notes,
        }
    }

    /// For the page about all codes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuses => "refusal",
            Self::RefusesOrWarns => "refusal or warning",
            Self::Warns => "warning",
            Self::Notes => "note",
        }
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// As it is written, for example `no-device`. It never changes its meaning.
    pub name: &'static str,
    /// What it is about.
    pub area: Area,
    /// Which severities its findings have.
    pub severities: Severities,
    /// The exit code of a command that it refuses.
    pub exit: ExitCode,
    /// What it means.
    pub means: &'static str,
    /// Why it matters.
    pub matters: &'static str,
    /// What to do, where the finding itself says nothing better.
    pub remedy: &'static str,
}

impl Code {
    /// As it is written, for example `no-device`.
    pub fn as_str(self) -> &'static str {
        self.entry().name
    }

    /// The code with this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::of(&name).ok_or_else(|| de::Error::custom(format!("{name}: no such code")))
    }
}
